"""Is a class a plugin? A wrong one is refused with the cure."""

from __future__ import annotations

from collections.abc import Generator
from functools import lru_cache
from typing import Any

import pluggy
import pytest
from pydantic import BaseModel

from outrider import hookimpl, hookspecs
from outrider.api import PluginError
from outrider.plugins.discovery import Kind
from outrider.plugins.validation import BACKEND_HOOKS, LIFECYCLE_HOOKS, PROPOSER_HOOKS, check_class

WHO = "proposer 'x' (outrider-x 1.0)"


class Good:
    outrider_api = 1

    @hookimpl
    def propose(self, context: Any) -> Any:
        return None


class GoodBackend:
    outrider_api = 1

    @hookimpl
    def claim_layer(self) -> None:
        return None


def refusal(candidate: object, kind: Kind = "proposer") -> str:
    with pytest.raises(PluginError) as caught:
        check_class(candidate, kind, WHO)
    message = str(caught.value)
    assert message.startswith(WHO)
    return message.removeprefix(WHO).lstrip(": ")


def test_every_hook_of_the_specs_belongs_to_a_kind():
    manager = pluggy.PluginManager(hookspecs.PROJECT_NAME)
    specs = {name for name in dir(hookspecs) if manager.parse_hookspec_opts(hookspecs, name)}
    assert sorted(specs) == sorted((*PROPOSER_HOOKS, *BACKEND_HOOKS, *LIFECYCLE_HOOKS))


def test_good_classes_pass():
    assert check_class(Good, "proposer", WHO) is Good
    assert check_class(GoodBackend, "attention_backend", WHO) is GoodBackend


def test_everything_optional_passes():
    class Full(Good):
        class Options(BaseModel):
            pass

        @staticmethod
        @hookimpl
        def capabilities() -> None:
            return None

        @classmethod
        @hookimpl
        def load_model(cls, device: Any) -> None: ...

        @hookimpl(tryfirst=True)
        def request_added(self, sampling_params: Any, request_id: str) -> None: ...

        @hookimpl(specname="request_finished")
        def forget(self) -> None: ...

    assert check_class(Full, "proposer", WHO) is Full


@pytest.mark.parametrize("candidate", [Good(), Good.propose, 3, pytest])
def test_not_a_class(candidate):
    assert refusal(candidate).startswith(f"is not a class but {type(candidate).__name__}")


def test_no_api_version():
    class Silent:
        @hookimpl
        def propose(self) -> None: ...

    assert "add `outrider_api = 1` to the class" in refusal(Silent)


@pytest.mark.parametrize(
    ("version", "cure"),
    [(2, "upgrade outrider"), (0, "upgrade it"), ("1", "upgrade it"), (True, "upgrade it")],
)
def test_wrong_api_version(version, cure):
    class Other(Good):
        outrider_api = version

    assert refusal(Other) == f"is written for plugin API {version!r}, this core speaks 1; {cure}"


def test_misspelt_hook():
    class Typo(Good):
        @hookimpl
        def request_finnished(self) -> None: ...

    message = refusal(Typo)
    assert message.startswith(
        "implements an unknown hook 'request_finnished'; did you mean 'request_finished'?"
    )
    assert "the hooks are: capabilities, dummy_run," in message


def test_misspelt_hook_behind_a_specname():
    class Typo(Good):
        @hookimpl(specname="capabilties")
        def anything(self) -> None: ...

    assert "unknown hook 'capabilties'; did you mean 'capabilities'?" in refusal(Typo)


def test_misspelt_argument():
    class Typo:
        outrider_api = 1

        @hookimpl
        def propose(self, contxt: Any) -> None: ...

    assert refusal(Typo) == (
        "hook 'propose' has no argument 'contxt'; did you mean 'context'? its arguments are: context"
    )


def test_argument_of_a_hook_without_arguments():
    class Typo(Good):
        @hookimpl
        def capabilities(self, model: Any) -> None: ...

    assert refusal(Typo) == "hook 'capabilities' has no argument 'model'; its arguments are: none"


def test_arguments_that_pluggy_would_never_fill():
    class Default:
        outrider_api = 1

        @hookimpl
        def propose(self, context: Any = None) -> None: ...

    class KeywordOnly:
        outrider_api = 1

        @hookimpl
        def propose(self, *, context: Any) -> None: ...

    class Variadic:
        outrider_api = 1

        @hookimpl
        def propose(self, **arguments: Any) -> None: ...

    for candidate in (Default, KeywordOnly, Variadic):
        assert "of hook 'propose' would never be filled" in refusal(candidate)


def test_a_private_argument_with_a_default_is_allowed():
    class Tunable(Good):
        @hookimpl
        def dummy_run(self, num_tokens: int, repeats: int = 2) -> None: ...

    assert check_class(Tunable, "proposer", WHO) is Tunable


def test_a_hook_without_its_decorator():
    class Unmarked(Good):
        def capabilities(self) -> None: ...

    class Overriding(Good):
        def propose(self, context: Any) -> None: ...

    assert refusal(Unmarked).startswith("has a method 'capabilities' that is not marked")
    assert refusal(Overriding).startswith("has a method 'propose' that is not marked")


def test_a_decorator_that_hides_the_hook():
    class Cached(Good):
        @hookimpl
        @lru_cache  # noqa: B019
        def capabilities(self) -> None: ...

    assert refusal(Cached).startswith("has a method 'capabilities' that is not marked")


@pytest.mark.parametrize(("kind", "hook"), [("proposer", "propose"), ("attention_backend", "claim_layer")])
def test_a_required_hook_is_missing(kind, hook):
    class Empty:
        outrider_api = 1

    plain = kind.replace("_", " ")
    assert refusal(Empty, kind) == f"does not implement the hook {hook!r}, which every {plain} needs"
    assert check_class(Empty, "extension", WHO) is Empty


def test_the_hook_of_another_kind():
    class Both(Good):
        @hookimpl
        def claim_layer(self) -> None: ...

    class Reverse(GoodBackend):
        @hookimpl
        def propose(self) -> None: ...

    assert "implements 'claim_layer', which is only asked of every attention backend" in refusal(Both)
    assert "'outrider.attention_backends'" in refusal(Both)
    assert "'outrider.proposers'" in refusal(Reverse, "attention_backend")
    assert check_class(Both, "extension", WHO) is Both


def test_wrappers():
    class NoYield:
        outrider_api = 1

        @hookimpl(wrapper=True)
        def propose(self) -> None: ...

    class OldStyle:
        outrider_api = 1

        @hookimpl(hookwrapper=True)
        def propose(self) -> Generator[None, Any, None]:
            yield

    assert refusal(NoYield, "extension") == "marks 'propose' with wrapper=True, but it has no yield"
    assert "use @hookimpl(wrapper=True)" in refusal(OldStyle, "extension")


@pytest.mark.parametrize("options", [dict, 3, "Options"])
def test_options_must_be_a_pydantic_model(options):
    class Odd(Good):
        Options = options

    assert "it must be a subclass of pydantic.BaseModel" in refusal(Odd)
