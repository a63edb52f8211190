"""Life-cycle hooks reach every plugin; a plugin that raises harms neither the engine nor the others."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Literal

import pytest

from outrider import SamplingParams, hookimpl
from outrider.api import PluginError, ProposerError
from outrider.plugins import LifecycleGuard, LoadedPlugin, PluginManager

PARAMS = SamplingParams()


class Listener:
    outrider_api = 1

    def __init__(self) -> None:
        self.heard: list[Any] = []

    @hookimpl
    def request_added(self, request_id: str, token_ids: list[int], sampling_params: Any) -> None:
        self.heard.append(("added", request_id, token_ids, sampling_params))

    @hookimpl
    def tokens_committed(self, request_id: str, token_ids: list[int]) -> None:
        self.heard.append(("committed", request_id, token_ids))

    @hookimpl
    def request_preempted(self, request_id: str) -> None:
        self.heard.append(("preempted", request_id))

    @hookimpl(specname="request_finished")
    def forget(self, request_id: str) -> None:
        self.heard.append(("finished", request_id))


class Failing:
    outrider_api = 1

    @hookimpl(tryfirst=True)
    def request_added(self) -> None:
        raise RuntimeError("added is broken")

    @hookimpl(tryfirst=True)
    def request_finished(self) -> None:
        raise RuntimeError("finished is broken")


def loaded(plugin: Any, kind: Any = "extension", name: str | None = None) -> LoadedPlugin:
    name = name or type(plugin).__name__
    return LoadedPlugin(kind=kind, name=name, distribution=f"outrider-{name} 1.0", plugin=plugin)


def manager(*plugins: Any, proposer: Any = None, policy: Literal["skip", "raise"] = "skip") -> PluginManager:
    return PluginManager(
        proposer=None if proposer is None else loaded(proposer, "proposer"),
        extensions=[
            loaded(plugin, name=f"{type(plugin).__name__}{i or ''}") for i, plugin in enumerate(plugins)
        ],
        guard=LifecycleGuard(policy),
    )


def live(plugins: PluginManager) -> None:
    plugins.request_added("a", [1, 2], PARAMS)
    plugins.tokens_committed("a", [3])
    plugins.request_preempted("a")
    plugins.request_finished("a")


LIFE = [("added", "a", [1, 2], PARAMS), ("committed", "a", [3]), ("preempted", "a"), ("finished", "a")]


def test_every_kind_of_plugin_hears_everything():
    listeners = [Listener() for _ in range(3)]
    plugins = PluginManager(
        proposer=loaded(listeners[0], "proposer"),
        backends=[loaded(listeners[1], "attention_backend")],
        extensions=[loaded(listeners[2])],
    )
    live(plugins)
    assert [listener.heard for listener in listeners] == [LIFE] * 3


def test_nobody_listens():
    live(manager())


def test_a_plugin_gets_a_copy_of_the_tokens():
    class Vandal:
        outrider_api = 1

        @hookimpl
        def request_added(self, token_ids: list[int]) -> None:
            token_ids.clear()

        @hookimpl
        def tokens_committed(self, token_ids: list[int]) -> None:
            token_ids.append(0)

    tokens = [1, 2]
    plugins = manager(Vandal())
    plugins.request_added("a", tokens, PARAMS)
    plugins.tokens_committed("a", tokens)
    assert tokens == [1, 2]


def test_skip_counts_logs_once_per_hook_and_lets_the_others_hear(caplog):
    listener = Listener()
    plugins = manager(listener, proposer=Failing())
    for _ in range(3):
        live(plugins)
    assert listener.heard == LIFE * 3
    assert plugins.num_lifecycle_errors == {"Failing": 6}
    messages = [record.getMessage() for record in caplog.records]
    assert [message.partition(";")[0] for message in messages] == [
        "proposer 'Failing' (outrider-Failing 1.0): request_added raised RuntimeError: added is broken",
        "proposer 'Failing' (outrider-Failing 1.0): request_finished raised RuntimeError: finished is broken",
    ]


def test_raise_raises_a_proposer_error_that_names_plugin_and_distribution():
    with pytest.raises(ProposerError) as caught:
        live(manager(proposer=Failing(), policy="raise"))
    assert (caught.value.plugin, caught.value.distribution) == ("Failing", "outrider-Failing 1.0")
    assert str(caught.value).endswith("request_added raised RuntimeError: added is broken")
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_raise_blames_an_extension_as_an_extension():
    with pytest.raises(
        PluginError, match=r"^extension 'Failing' \(outrider-Failing 1.0\): request_added raised"
    ):
        live(manager(Failing(), policy="raise"))


class Wrapper:
    outrider_api = 1

    def __init__(self, fail: str = "") -> None:
        self.fail = fail
        self.heard: list[str] = []

    @hookimpl(wrapper=True)
    def request_added(self, request_id: str) -> Generator[None, Any, Any]:
        self.heard.append(f"before {request_id}")
        if self.fail == "before":
            raise RuntimeError("before")
        if self.fail == "never":
            return None
        result = yield
        self.heard.append(f"after {request_id}")
        if self.fail == "after":
            raise RuntimeError("after")
        if self.fail == "twice":
            yield
        return result


def test_a_wrapper_runs_once_whatever_the_number_of_listeners():
    for listeners in ([], [Listener()], [Listener(), Listener()]):
        wrapper = Wrapper()
        manager(wrapper, *listeners).request_added("a", [], PARAMS)
        assert wrapper.heard == ["before a", "after a"]


@pytest.mark.parametrize("fail", ["before", "after", "never", "twice"])
def test_a_wrapper_that_fails_is_counted_and_the_others_hear(fail):
    listener, wrapper, other = Listener(), Wrapper(fail), Wrapper()
    plugins = manager(wrapper, other, listener)
    plugins.request_added("a", [], PARAMS)
    assert len(listener.heard) == 1
    assert other.heard == ["before a", "after a"]
    assert plugins.num_lifecycle_errors == {"Wrapper": 1}


def test_raise_also_applies_to_wrappers():
    with pytest.raises(PluginError, match="extension 'Wrapper' .*: request_added raised RuntimeError: after"):
        manager(Wrapper("after"), policy="raise").request_added("a", [], PARAMS)
