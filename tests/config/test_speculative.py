"""`SpeculativeConfig` in vLLM's flat form."""

from __future__ import annotations

from typing import Any

import pytest

from outrider.api import ConfigError
from outrider.config import SpeculativeConfig


def test_keys_that_the_core_does_not_know_go_to_the_options():
    config = SpeculativeConfig(method="any", num_speculative_tokens=5, lookup_max=4, deep={"a": 1})
    assert (config.num_speculative_tokens, config.options) == (5, {"lookup_max": 4, "deep": {"a": 1}})


def test_options_may_also_be_nested_and_both_are_merged():
    config = SpeculativeConfig(method="any", options={"a": 1}, b=2)
    assert config.options == {"a": 1, "b": 2}


def test_an_option_given_twice_is_refused():
    with pytest.raises(ConfigError, match="a, b given both beside `options` and in it"):
        SpeculativeConfig(method="any", options={"a": 1, "b": 1, "c": 1}, b=1, a=1)


def test_the_method_may_be_a_class():
    class Drafter:
        pass

    assert SpeculativeConfig(method=Drafter).method is Drafter


@pytest.mark.parametrize("method", [3, "", ["a"], object()])
def test_a_method_that_names_no_plugin_is_refused(method):
    with pytest.raises(ConfigError, match=r"^SpeculativeConfig\.method: .* does not name a plugin: expected"):
        SpeculativeConfig(method=method)


def test_method_or_model_is_needed():
    assert SpeculativeConfig(model="some/checkpoint").method is None
    with pytest.raises(ConfigError, match="names neither `method` nor `model`"):
        SpeculativeConfig(num_speculative_tokens=3)


BASE = SpeculativeConfig(
    method="one", model="its/own", num_speculative_tokens=7, verification="rejection", lookup_max=4, other=1
)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, {}),
        ({"num_speculative_tokens": 2}, {"num_speculative_tokens": 2}),
        ({"num_speculative_tokens": None}, {}),
        ({"lookup_max": 9}, {"options": {"lookup_max": 9, "other": 1}}),
        ({"options": {"lookup_max": 9}}, {"options": {"lookup_max": 9, "other": 1}}),
        ({"method": "one"}, {}),
        ({"method": "two"}, {"method": "two", "model": None, "options": {}}),
        ({"method": "two", "lookup_max": 9}, {"method": "two", "model": None, "options": {"lookup_max": 9}}),
        ({"model": "some/checkpoint"}, {"model": "some/checkpoint"}),
    ],
)
def test_overriding_keeps_what_still_applies(change: dict[str, Any], expected: dict[str, Any]):
    assert BASE.overridden_by(change).model_dump() == {**BASE.model_dump(), **expected}


def test_overriding_options_with_something_else_is_refused():
    with pytest.raises(ConfigError, match=r"SpeculativeConfig\.options=3"):
        BASE.overridden_by({"options": 3})
