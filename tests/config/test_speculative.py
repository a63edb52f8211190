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


TABLE = "num_speculative_tokens_per_batch_size"


def test_drafting_is_adaptive_unless_something_else_is_asked_for():
    default = SpeculativeConfig(method="m")
    assert (default.adaptive, default.num_speculative_tokens) == (True, 8)
    fixed = SpeculativeConfig(method="m", adaptive=False)
    assert (fixed.adaptive, fixed.num_speculative_tokens) == (False, 4)
    table = SpeculativeConfig(method="m", num_speculative_tokens_per_batch_size=[[1, 8, 5], [9, 64, 0]])
    assert (table.adaptive, table.num_speculative_tokens) == (False, 5)
    assert table.num_speculative_tokens_per_batch_size == ((1, 8, 5), (9, 64, 0))


def test_a_table_may_have_gaps_and_a_larger_maximum_beside_it():
    config = SpeculativeConfig(method="m", num_speculative_tokens=7, **{TABLE: [(1, 2, 5), (8, 9, 1)]})
    assert config.num_speculative_tokens == 7


def test_a_table_that_never_drafts_is_a_table():
    assert SpeculativeConfig(method="m", **{TABLE: [(1, 64, 0)]}).num_speculative_tokens == 1


def test_a_table_and_adaptive_drafting_contradict_each_other():
    with pytest.raises(ConfigError, match=f"{TABLE} and adaptive=True contradict each other"):
        SpeculativeConfig(method="m", adaptive=True, **{TABLE: [(1, 64, 3)]})
    from_file = SpeculativeConfig(method="m", **{TABLE: [(1, 64, 3)]})
    with pytest.raises(ConfigError, match="contradict"):
        from_file.overridden_by({"adaptive": True})


def test_what_a_table_implies_does_not_bind_who_overrides_it():
    from_file = SpeculativeConfig(method="m", **{TABLE: [(1, 64, 3)]})
    assert from_file.overridden_by({TABLE: [(1, 64, 6)]}).num_speculative_tokens == 6


@pytest.mark.parametrize(
    ("table", "cause"),
    [
        ([(2, 8, 1)], "the first range starts at 2; it must start at 1"),
        ([(1, 8, 3), (8, 9, 1)], "the range 8 to 9 does not lie behind the one that ends at 8"),
        ([(1, 1, 3), (9, 12, 1), (4, 6, 2)], "the range 4 to 6 does not lie behind the one that ends at 12"),
        ([(1, 2, 3), (9, 4, 1)], "the range 9 to 4 is empty"),
        ([(1, 2, 3), (3, 4, 9)], "asks for 9 drafts at batch size 3, but num_speculative_tokens is 8"),
    ],
)
def test_a_table_that_cannot_be_right_is_refused(table: list[tuple[int, int, int]], cause: str):
    with pytest.raises(ConfigError, match=cause):
        SpeculativeConfig(method="m", num_speculative_tokens=8, **{TABLE: table})


@pytest.mark.parametrize("table", [[], [(0, 4, 1)], [(1, 4, -1)], [(1, 4)], 3])
def test_something_else_than_a_table_is_refused(table: Any):
    with pytest.raises(ConfigError, match=rf"SpeculativeConfig\.{TABLE}"):
        SpeculativeConfig(method="m", **{TABLE: table})
