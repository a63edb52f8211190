"""A plugin's own options, from the flat configuration."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, Field

from outrider import hookimpl
from outrider.api import ConfigError, PluginError
from outrider.config import SpeculativeConfig
from outrider.plugins.loading import FoundPlugin
from outrider.plugins.options import instantiate, proposer_options


class Base:
    outrider_api = 1

    @hookimpl
    def propose(self) -> None: ...


class Plain(Base):
    pass


class Tuned(Base):
    class Options(BaseModel):
        lookup_min: int = Field(default=1, ge=1)
        lookup_max: int = 4
        model: str | None = None
        num_speculative_tokens: int | None = None

    def __init__(self, options: Options) -> None:
        self.options = options


def found(plugin_class: type[Any]) -> FoundPlugin:
    return FoundPlugin(
        kind="proposer", name="tuned", shipped_by="outrider-tuned 1.0", plugin_class=plugin_class
    )


def load(plugin_class: type[Any], **speculative: Any) -> Any:
    config = SpeculativeConfig(method="tuned", **speculative)
    plugin = found(plugin_class)
    return instantiate(plugin, proposer_options(plugin, config, config.model), SpeculativeConfig.model_fields)


def refusal(plugin_class: type[Any], **speculative: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        load(plugin_class, **speculative)
    return str(caught.value)


def test_flat_keys_reach_the_plugin():
    options = load(Tuned, lookup_max=7).options
    assert (options.lookup_min, options.lookup_max) == (1, 7)


def test_without_options_the_constructor_gets_nothing():
    assert isinstance(load(Plain), Plain)


def test_model_and_num_speculative_tokens_are_handed_down_to_fields_of_that_name():
    options = load(Tuned, model="some/checkpoint", num_speculative_tokens=6).options
    assert (options.model, options.num_speculative_tokens) == ("some/checkpoint", 6)
    assert load(Tuned).options.model is None


def test_a_model_that_the_proposer_does_not_take_is_refused():
    assert "takes no model, but model='some/checkpoint' is given" in refusal(Plain, model="some/checkpoint")


def test_unknown_option_tells_the_nearest_of_the_plugins_own():
    message = refusal(Tuned, lookup_mx=7)
    assert message.startswith(
        "proposer 'tuned' (outrider-tuned 1.0) has no option 'lookup_mx'; did you mean 'lookup_max'? "
        "its options are: lookup_max, lookup_min, model, num_speculative_tokens"
    )


def test_unknown_option_tells_the_nearest_of_the_cores_settings():
    message = refusal(Plain, num_speculativ_tokens=7)
    assert "has no option 'num_speculativ_tokens'; did you mean 'num_speculative_tokens'?" in message
    assert (
        "its options are: none; settings beside them: adaptive, method, model, num_speculative_tokens"
        in message
    )


def test_every_unknown_option_is_told():
    message = refusal(Tuned, aaaa=1, bbbb=2)
    assert "'aaaa'" in message
    assert "'bbbb'" in message


def test_unknown_options_are_refused_whatever_the_model_says_about_extras_except_allow():
    class Ignoring(Tuned):
        class Options(BaseModel):
            model_config = ConfigDict(extra="ignore")

    class Allowing(Tuned):
        class Options(BaseModel):
            model_config = ConfigDict(extra="allow")

    assert "has no option 'anything'" in refusal(Ignoring, anything=1)
    assert load(Allowing, anything=1).options.anything == 1


def test_an_option_may_be_given_by_its_alias():
    class Aliased(Tuned):
        class Options(BaseModel):
            size: int = Field(alias="lookup-size")

    assert load(Aliased, **{"lookup-size": 3}).options.size == 3


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"lookup_min": 0}, "tuned.lookup_min=0: input should be greater than or equal to 1"),
        ({"lookup_max": "many"}, "tuned.lookup_max='many': input should be a valid integer"),
    ],
)
def test_a_refused_value_names_option_and_value(values, expected):
    message = refusal(Tuned, **values)
    assert message.startswith("proposer 'tuned' (outrider-tuned 1.0): ")
    assert expected in message


def test_a_required_option_is_missing():
    class Needy(Tuned):
        class Options(BaseModel):
            path: str

    assert refusal(Needy).endswith("tuned.path is required")


def test_a_constructor_that_raises_names_the_plugin():
    class Failing(Base):
        def __init__(self) -> None:
            raise FileNotFoundError("no weights")

    with pytest.raises(PluginError) as caught:
        load(Failing)
    assert str(caught.value) == (
        "proposer 'tuned' (outrider-tuned 1.0): its constructor raised FileNotFoundError: no weights"
    )
    assert isinstance(caught.value.__cause__, FileNotFoundError)
