"""The pages say what the code does: signatures equal the specifications, and every example runs."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pluggy
import pytest
import torch

from outrider import SamplingParams, hookspecs
from outrider.api import AttentionShape, DraftRequest, DraftTokens, LayerInfo, ProposeContext
from outrider.config import EngineConfig
from outrider.plugins import PluginManager
from outrider.plugins.validation import BACKEND_HOOKS, LIFECYCLE_HOOKS, PROPOSER_HOOKS

DOCS = Path(__file__).parents[1] / "docs"
SECTIONS = dict(
    section.split("\n", 1)
    for section in re.split(r"^## ", (DOCS / "hooks.md").read_text("utf-8"), flags=re.M)[1:]
)
HOOKS = sorted(
    name
    for name in dir(hookspecs)
    if pluggy.PluginManager(hookspecs.PROJECT_NAME).parse_hookspec_opts(hookspecs, name)
)
FIRST_RESULT = "Stops at first non-None result"


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.S)


def test_every_hook_has_a_heading_and_no_other_has():
    assert sorted(SECTIONS) == HOOKS


@pytest.mark.parametrize("hook", HOOKS)
def test_the_documented_signature_is_the_specifications(hook):
    signature = str(inspect.signature(getattr(hookspecs, hook))).replace("'", "")
    assert blocks(SECTIONS[hook], "python")[0].strip() == f"def {hook}{signature}"


@pytest.mark.parametrize("hook", HOOKS)
def test_every_argument_is_explained(hook):
    explained = re.findall(r"^\* `(\w+)`: ", SECTIONS[hook], flags=re.M)
    assert explained == list(inspect.signature(getattr(hookspecs, hook)).parameters)


@pytest.mark.parametrize("hook", HOOKS)
def test_docstring_and_page_agree_on_the_first_result(hook):
    specification = getattr(hookspecs, hook)
    options: Any = pluggy.PluginManager(hookspecs.PROJECT_NAME).parse_hookspec_opts(hookspecs, hook)
    assert (FIRST_RESULT in " ".join(SECTIONS[hook].split())) == options["firstresult"]
    assert (FIRST_RESULT in (specification.__doc__ or "")) == options["firstresult"]


def run_block(source: str) -> type[Any]:
    """Execute an example and return the plugin class that it defines last."""
    namespace: dict[str, Any] = {"__name__": "example"}
    exec(compile(source, "example", "exec"), namespace)
    return [
        value for value in namespace.values() if isinstance(value, type) and hasattr(value, "outrider_api")
    ][-1]


def manager(**flat: Any) -> PluginManager:
    return PluginManager.load(EngineConfig.from_flat(**{"model": "m", "attention_backend": [], **flat}))


def context(*token_ids: int, budget: int = 3) -> ProposeContext:
    request = DraftRequest(
        "a", np.array(token_ids, np.int32), len(token_ids), len(token_ids), 0, 1, budget, SamplingParams(), 0
    )
    return ProposeContext(
        requests=[request],
        row_start_loc=np.array([0, 1], np.int32),
        hidden_states=None,
        aux_hidden_states=(),
        attention=None,
        sample=lambda *_: [],
    )


@pytest.mark.parametrize("hook", PROPOSER_HOOKS)
def test_proposer_examples_run(hook):
    example = run_block(blocks(SECTIONS[hook], "python")[1])
    proposer: Any = manager(speculative_config={"method": example}).proposer
    capabilities = proposer.capabilities()
    proposer.load_model(SimpleNamespace(vocab_size=10), torch.device("cpu"))
    proposer.dummy_run(8)
    drafts = proposer.propose(context(5, 6, 7, 8, 5))
    assert isinstance(drafts, DraftTokens)
    assert {
        "capabilities": capabilities.max_draft_tokens == 3,
        "load_model": drafts.token_ids == [[9, 9, 9]],
        "dummy_run": hook != "dummy_run" or proposer.plugin.scratch.size == 8,
        "propose": drafts.token_ids == [[6, 7, 8]],
    }[hook]


@pytest.mark.parametrize("hook", LIFECYCLE_HOOKS)
def test_life_cycle_examples_run(hook):
    example = run_block(blocks(SECTIONS[hook], "python")[1])
    plugins = manager(extensions=example)
    plugins.request_added("a", [1, 2], SamplingParams())
    plugins.tokens_committed("a", [3, 4, 5])
    plugins.request_preempted("a")
    plugins.request_finished("a")
    expected: dict[str, dict[str, Any]] = {
        "request_added": {"num_tokens": 2},
        "tokens_committed": {"histogram": {3: 1}},
        "request_preempted": {"ids": ["a"]},
        "request_finished": {"ids": set()},
    }
    assert vars(plugins.extensions[0].plugin) == expected[hook]
    assert plugins.num_lifecycle_errors == {}


@pytest.mark.parametrize("hook", BACKEND_HOOKS)
def test_backend_examples_run(hook):
    example = run_block(blocks(SECTIONS[hook], "python")[1])
    (backend,) = manager(attention_backend=example).backends
    shape = AttentionShape(
        num_heads=4, num_kv_heads=2, key_size=8, value_size=8, scaling=1.0, sliding_window=1
    )
    layer = LayerInfo(
        name="l", module=torch.nn.Identity(), attention=shape, dtype=torch.float32, device=torch.device("cpu")
    )
    claimed: Any = backend.claim_layer(layer)
    common: Any = SimpleNamespace(block_table="table")
    spec: Any = SimpleNamespace(num_draft_tokens=(2, 0, 3))
    if hook == "claim_layer":
        value = torch.arange(32.0).reshape(2, 2, 8)
        assert torch.equal(claimed.forward(None, None, None, value)[:, 3], value[:, 1])
    elif hook == "build_attention_metadata":
        assert backend.build_attention_metadata(common, spec) == {"blocks": "table", "verifying": 5}
    else:
        assert backend.build_for_drafting(common, 0) == "table"


PAGE = (DOCS / "plugins.md").read_text("utf-8")


def test_the_host_and_the_plugin_of_the_page_run(fake_site, tmp_path):
    plugin, host, _extension = blocks(PAGE, "python")
    (fake_site.path / "outrider_repeat.py").write_text(plugin)
    entry = re.search(r'\[project\.entry-points\."(.*)"\]\n(\w+) = "(.*)"', blocks(PAGE, "toml")[0])
    assert entry is not None
    fake_site.distribution("outrider-repeat", "0.1.0", entry_points={entry[1]: {entry[2]: entry[3]}})
    (tmp_path / "host.py").write_text(host)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "host.py")],
        env={"PYTHONPATH": str(fake_site.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    assert done.stdout == blocks(PAGE, "text")[0]


def test_the_extension_of_the_page_runs():
    class Slow:
        outrider_api = 1

        @hookspecs.hookimpl
        def propose(self) -> DraftTokens:
            return DraftTokens(token_ids=[[]])

    plugins = manager(extensions=run_block(blocks(PAGE, "python")[2]), speculative_config={"method": Slow})
    assert plugins.proposer is not None
    assert plugins.proposer.propose(context(1)) == DraftTokens(token_ids=[[]])
    assert plugins.extensions[0].plugin.seconds > 0
