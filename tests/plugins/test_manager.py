"""The plugins of one engine: what is loaded, how calls reach it, and how wrappers apply."""

from __future__ import annotations

import sys
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import pytest

from outrider import hookimpl
from outrider.api import ConfigError, ModelError, PluginError, ProposerCapabilities
from outrider.config import EngineConfig
from outrider.plugins import PluginManager

CALLS: list[str] = []
"""What was called, in order."""


@pytest.fixture(autouse=True)
def _no_calls_yet():
    CALLS.clear()


class Drafter:
    outrider_api = 1

    @hookimpl
    def propose(self, context: Any) -> Any:
        CALLS.append("propose")
        return context


class Backend:
    outrider_api = 1

    @hookimpl
    def claim_layer(self, layer: Any) -> Any:
        CALLS.append(f"{type(self).__name__} claim")
        return type(self).__name__ if layer in ("any", type(self).__name__) else None

    @hookimpl
    def build_attention_metadata(self, common: Any) -> Any:
        return f"{type(self).__name__} {common}"

    @hookimpl
    def build_for_drafting(self, draft_index: int) -> Any:
        return f"{type(self).__name__} draft {draft_index}"


class First(Backend):
    pass


class Second(Backend):
    pass


class Tracer:
    """Wraps every call that the engine makes in a step."""

    outrider_api = 1

    @hookimpl(wrapper=True)
    def propose(self) -> Generator[None, Any, Any]:
        CALLS.append("before")
        result = yield
        CALLS.append("after")
        return (result, "traced")

    @hookimpl(wrapper=True)
    def claim_layer(self, layer: Any) -> Generator[None, Any, Any]:
        CALLS.append(f"trace {layer}")
        return (yield)

    @hookimpl(wrapper=True)
    def build_attention_metadata(self) -> Generator[None, Any, Any]:
        return f"<{(yield)}>"

    @hookimpl(wrapper=True)
    def capabilities(self) -> Generator[None, Any, Any]:
        declared = yield
        return declared or ProposerCapabilities(max_positions=7)


class Outer:
    outrider_api = 1

    @hookimpl(wrapper=True)
    def propose(self) -> Generator[None, Any, Any]:
        CALLS.append("outer before")
        result = yield
        CALLS.append("outer after")
        return result


def load(**flat: Any) -> PluginManager:
    return PluginManager.load(EngineConfig.from_flat(**{"model": "any", "attention_backend": [], **flat}))


def refusal(error: type[Exception] = PluginError, **flat: Any) -> str:
    with pytest.raises(error) as caught:
        load(**flat)
    return str(caught.value)


def test_plain_decoding_has_no_proposer():
    manager = load()
    assert (manager.proposer, manager.backends, manager.extensions) == (None, (), ())


def test_calls_reach_the_proposer_and_it_knows_its_names(fake_site):
    fake_site.proposer("echo")
    proposer = load(speculative_config={"method": "echo"}).proposer
    assert (proposer.name, proposer.distribution) == ("echo", "outrider-echo 1.0")
    assert type(proposer.plugin) is sys.modules["fake_echo"].Proposer
    assert load(speculative_config={"method": Drafter}).proposer.propose("context") == "context"


def test_every_engine_has_an_instance_of_its_own():
    first, second = (load(speculative_config={"method": Drafter}) for _ in range(2))
    assert first.proposer.plugin is not second.proposer.plugin


def test_only_what_the_configuration_names_is_imported(fake_site):
    fake_site.proposer("echo")
    fake_site.proposer("other")
    load(speculative_config={"method": "echo"})
    assert "fake_echo" in sys.modules
    assert "fake_other" not in sys.modules


def test_capabilities_have_defaults_and_a_checked_type():
    assert load(speculative_config={"method": Drafter}).proposer.capabilities() == ProposerCapabilities()

    class Declaring(Drafter):
        @hookimpl
        def capabilities(self) -> Any:
            return ProposerCapabilities(max_draft_tokens=3)

    class Confused(Drafter):
        @hookimpl
        def capabilities(self) -> Any:
            return {"max_draft_tokens": 3}

    assert load(speculative_config={"method": Declaring}).proposer.capabilities().max_draft_tokens == 3
    with pytest.raises(
        PluginError, match=r"Confused.*capabilities returned \{'max_draft_tokens': 3\}; return a"
    ):
        load(speculative_config={"method": Confused}).proposer.capabilities()


def test_hooks_that_are_not_implemented_do_nothing():
    proposer = load(speculative_config={"method": Drafter}).proposer
    assert proposer.load_model(target=None, device=None) is None
    assert proposer.dummy_run(8) is None
    (backend,) = load(attention_backend=First).backends
    assert backend.claim_layer("nothing") is None


def test_an_exception_at_load_names_the_plugin_and_the_hook():
    class Failing(Drafter):
        @hookimpl
        def load_model(self) -> None:
            raise KeyError("fc.weight")

        @hookimpl
        def dummy_run(self) -> None:
            raise ModelError("told on purpose")

    proposer = load(speculative_config={"method": Failing}).proposer
    with pytest.raises(
        PluginError, match=r"proposer 'Failing' \(class .*\): load_model raised KeyError: 'fc.weight'"
    ):
        proposer.load_model(target=None, device=None)
    with pytest.raises(ModelError, match="^told on purpose$"):
        proposer.dummy_run(4)


def test_an_exception_of_propose_comes_through():
    class Failing(Drafter):
        @hookimpl
        def propose(self) -> Any:
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        load(speculative_config={"method": Failing}).proposer.propose(None)


def test_each_backend_is_asked_alone_in_the_given_order():
    manager = load(attention_backend=[Second, First])
    assert [backend.name for backend in manager.backends] == ["Second", "First"]
    second, first = manager.backends
    assert first.claim_layer("any") == "First"
    assert second.claim_layer("any") == "Second"
    assert CALLS == ["First claim", "Second claim"]
    assert first.build_attention_metadata("common", "spec") == "First common"
    assert second.build_for_drafting("common", 2) == "Second draft 2"


def test_wrappers_apply_to_the_proposer_and_to_each_backend():
    manager = load(
        attention_backend=[First, Second], extensions=Tracer, speculative_config={"method": Drafter}
    )
    assert manager.proposer.propose("context") == ("context", "traced")
    assert CALLS == ["before", "propose", "after"]
    CALLS.clear()
    assert [backend.claim_layer("Second") for backend in manager.backends] == [None, "Second"]
    assert CALLS == ["trace Second", "First claim", "trace Second", "Second claim"]
    built = [backend.build_attention_metadata("common", "spec") for backend in manager.backends]
    assert built == ["<First common>", "<Second common>"]
    assert manager.proposer.capabilities().max_positions == 7
    assert [extension.name for extension in manager.extensions] == ["Tracer"]


def test_the_last_extension_is_the_outermost():
    load(extensions=[Tracer, Outer], speculative_config={"method": Drafter}).proposer.propose(None)
    assert CALLS == ["outer before", "before", "propose", "after", "outer after"]


def test_an_extension_wraps_only_the_engine_that_names_it():
    load(extensions=Tracer, speculative_config={"method": Drafter})
    load(speculative_config={"method": Drafter}).proposer.propose(None)
    assert CALLS == ["propose"]


def test_a_plugin_may_compare_equal_to_another():
    @dataclass
    class Same:  # a dataclass has __eq__ and no __hash__
        outrider_api = 1

        @hookimpl
        def claim_layer(self) -> Any:
            return type(self).__name__

    class Other(Same):
        pass

    manager = load(attention_backend=[Same, Other])
    assert [backend.claim_layer(None) for backend in manager.backends] == ["Same", "Other"]


@pytest.mark.parametrize("key", ["attention_backend", "extensions"])
def test_naming_one_plugin_twice_is_refused(key):
    assert f"{First.__name__!r}" in refusal(attention_backend=[First, First])
    assert "is named twice in the configuration" in refusal(
        **{key: [First, First] if "back" in key else [Outer] * 2}
    )


def test_one_name_may_be_a_proposer_and_an_extension():
    class Both:
        outrider_api = 1

        @hookimpl
        def propose(self) -> Any:
            return "both"

    assert load(speculative_config={"method": Both}, extensions=Both).proposer.propose(None) == "both"


def test_options_arrive_and_their_errors_are_configuration_errors():
    message = refusal(ConfigError, speculative_config={"method": Drafter, "num_speculative_token": 3})
    assert "has no option 'num_speculative_token'; did you mean 'num_speculative_tokens'?" in message


def test_an_extension_is_found_by_name(fake_site):
    fake_site.module("fake_x", "class X:\n    outrider_api = 1\n")
    fake_site.distribution("outrider-x", entry_points={"outrider.extensions": {"x": "fake_x:X"}})
    (extension,) = load(extensions="x").extensions
    assert (extension.name, extension.distribution) == ("x", "outrider-x 1.0")


BACKEND_MODULE = """
from outrider import hookimpl

class Backend:
    outrider_api = 1

    @hookimpl
    def claim_layer(self):
        return None
"""


@pytest.fixture
def only_fake_backends(fake_site, monkeypatch):
    """Three fake backends, one of them broken; those that are really installed here may not load."""
    fake_site.module("fake_backends", BACKEND_MODULE)
    for name, value in {
        "zulu": "fake_backends:Backend",
        "alpha": "fake_backends:Backend",
        "ill": "nowhere:X",
    }.items():
        fake_site.distribution(
            f"outrider-{name}", entry_points={"outrider.attention_backends": {name: value}}
        )
    monkeypatch.setenv("OUTRIDER_PLUGINS", "zulu,alpha,ill")
    return fake_site


def test_no_backend_named_means_every_installed_one_that_works(only_fake_backends, caplog):
    manager = load(attention_backend=None)
    assert [backend.name for backend in manager.backends] == ["alpha", "zulu"]
    assert [(info.name, info.status) for info in manager.skipped] == [("ill", "broken")]
    assert "No module named 'nowhere'" in manager.skipped[0].error
    assert "attention backend 'ill' (outrider-ill 1.0) cannot be imported" in caplog.text


def test_an_excluded_backend_is_not_asked(only_fake_backends, monkeypatch):
    monkeypatch.setenv("OUTRIDER_PLUGINS", "zulu")
    manager = load(attention_backend=None)
    assert [backend.name for backend in manager.backends] == ["zulu"]
    assert manager.skipped == ()


def test_a_broken_backend_that_is_named_is_an_error(only_fake_backends):
    assert "attention backend 'ill' (outrider-ill 1.0) cannot be imported" in refusal(attention_backend="ill")


def test_a_backend_that_two_distributions_offer_is_never_picked_silently(only_fake_backends, caplog):
    only_fake_backends.distribution(
        "rival", entry_points={"outrider.attention_backends": {"zulu": "fake_backends:Backend"}}
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OUTRIDER_PLUGINS", "zulu,alpha")
        message = refusal(attention_backend=None)
    assert message.startswith(
        "2 distributions offer attention backend 'zulu': outrider-zulu 1.0 and rival 1.0"
    )
