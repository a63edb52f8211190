"""On CPU the logits of a position are the same bits, whatever stands beside it and however it came there."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from outrider import LLM, SamplingParams
from outrider.models.fast_model import FastDecoder
from outrider.runner.model_runner import ModelRunner
from outrider.testing.proposers import RandomProposer, SelfProposer
from outrider.testing.tiny_models import tiny_transformer

PROMPTS = [[1, 2, 3, 4, 5, 6, 7], [9], [11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21], [5, 6] * 9]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_transformer(tmp_path_factory.mktemp("tiny") / "model"))


class Recorder:
    """The logits row behind every prefix of tokens that an engine computed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rows: dict[tuple[int, ...], set[bytes]] = {}
        run = ModelRunner._run_target

        def recording(runner: Any, step: Any) -> Any:
            result = run(runner, step)
            logits: torch.Tensor = result[0]
            for row, flat in zip(logits, step.logits_rows.spec.logits_indices.tolist(), strict=True):
                batch_row = step.rows.batch_rows[step.rows.request_of_row[flat]]
                prefix = runner._batch.token_ids[batch_row, : step.rows.positions[flat] + 1]
                self.rows.setdefault(tuple(prefix.tolist()), set()).add(row.numpy().tobytes())
            return result

        monkeypatch.setattr(ModelRunner, "_run_target", recording)


def generate_with(model: str, batches: list[list[list[int]]], temperature: float, **settings: Any) -> None:
    params = SamplingParams(temperature=temperature, seed=3, max_tokens=14)
    with LLM(model, block_size=4, **settings) as llm:
        for prompts in batches:
            llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False)


@pytest.mark.parametrize(
    ("temperature", "weights"), [(0.0, "float32"), (0.9, "float32"), (0.9, "bfloat16"), (0.9, "int8")]
)
def test_a_position_has_one_logits_row(
    model: str, temperature: float, weights: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def generate(*args: Any, **settings: Any) -> None:
        generate_with(*args, weights=weights, **settings)

    recorder = Recorder(monkeypatch)

    one_by_one, together, twice = [[prompt] for prompt in PROMPTS], [PROMPTS], [PROMPTS * 2]
    generate(model, one_by_one, temperature, enable_prefix_caching=False)
    alone = {prefix: next(iter(rows)) for prefix, rows in recorder.rows.items()}
    generate(model, together + twice, temperature)
    generate(model, twice, temperature, max_num_batched_tokens=8, max_num_seqs=3)
    generate(model, twice, temperature, num_kv_blocks=10, enable_prefix_caching=False)
    for proposer, k in ((SelfProposer, 1), (SelfProposer, 5), (RandomProposer, 3)):
        speculative = {"method": proposer, "num_speculative_tokens": k, "adaptive": False}
        generate(model, together, temperature, speculative_config=speculative)

    assert len(alone) >= 14 * len(PROMPTS)
    assert {prefix: recorder.rows[prefix] for prefix in alone} == {
        prefix: {row} for prefix, row in alone.items()
    }


@pytest.fixture(scope="module")
def mixed_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Layers whose attention differs: in one call each needs a step of its own form."""
    folder = tmp_path_factory.mktemp("mixed") / "model"
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, max_position_embeddings=512, use_sliding_window=True, sliding_window=5,
        layer_types=["sliding_attention", "full_attention"] * 2,
    )  # fmt: skip
    Qwen3ForCausalLM(config).save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize("name", ["model", "mixed_model"])
def test_a_layer_that_is_watched_gives_the_same_bits(
    name: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    model: str = request.getfixturevalue(name)
    recorder = Recorder(monkeypatch)
    params = SamplingParams(temperature=0.0, max_tokens=14)
    prompts = [*PROMPTS, list(range(60)) * 5]
    with LLM(model, block_size=4, enable_prefix_caching=False) as llm:
        layers = llm._engine.loaded.model.get_submodule("model.layers")
        assert type(llm._engine.loaded.model.get_submodule("model")).__mro__[1] is FastDecoder
        seen: list[torch.Size] = []
        for watched in (False, True):
            if watched:  # the layers then run one after another instead of in one call
                layers[1].register_forward_hook(lambda _module, _args, output: seen.append(output.shape))
            llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False)
    assert seen
    assert len(recorder.rows) >= 14 * len(PROMPTS)
    assert all(len(rows) == 1 for rows in recorder.rows.values())
