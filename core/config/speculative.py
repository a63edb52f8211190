"""Who drafts, how far ahead, and by which rule drafts are verified."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from ..api import ConfigError
from .hints import listed
from .reference import PluginReference
from .settings import Settings

BatchSize = Annotated[int, Field(ge=1)]
NumTokens = Annotated[int, Field(ge=0)]

_MOST_ADAPTIVE, _FIXED = 8, 4


def _is_adaptive(before: Mapping[str, Any]) -> bool:
    return before.get("num_speculative_tokens_per_batch_size") is None


def _most_tokens(before: Mapping[str, Any]) -> int:
    table = before.get("num_speculative_tokens_per_batch_size")
    if table is not None:
        return max(1, *(number for _, _, number in table))
    return _MOST_ADAPTIVE if before.get("adaptive", True) else _FIXED


class SpeculativeConfig(Settings):
    """Speculative decoding, in vLLM's flat form: keys that are not listed here are the proposer's own `options`.

    Attributes:
        method: name of an installed proposer, `package.module:Class` (or with a dot), `./file.py:Class`, or a class.
            None: inferred from `model` when plugins are loaded.
        model: checkpoint of the drafter. Handed to the proposer as its option `model`, unless it only served to
            infer the method.
        num_speculative_tokens_per_batch_size: a number of drafts for each range of batch sizes, as in vLLM: entries
            `(first batch size, last batch size, drafts)`, rising, the first from 1. What lies between two ranges or
            behind the last has the number of the range before it.
        adaptive: draft as long as pays, up to `num_speculative_tokens`, by what the engine measures as it runs; not
            at all if nothing does. False: always draft `num_speculative_tokens`. Lengths then depend on measured
            times. Under `coupled` verification they never change the output; under `rejection` they keep its
            distribution, but a seed no longer fixes the text. Default: True, unless there is a table.
        num_speculative_tokens: most tokens drafted for one request in one step. Default: the table's largest number,
            8 if adaptive, else 4.
        verification: `coupled`: the draft is compared with the target's own sample; `rejection`: Leviathan et al. 2023.
        on_proposer_error: `skip`: the request goes on undrafted and an error is counted; `raise`: stop.
        options: what the proposer's own `Options` model is filled from.
    """

    method: PluginReference | None = None
    model: Annotated[str, Field(min_length=1)] | None = None
    num_speculative_tokens_per_batch_size: tuple[tuple[BatchSize, BatchSize, NumTokens], ...] | None = Field(
        default=None, min_length=1
    )
    adaptive: bool = Field(default_factory=_is_adaptive)
    num_speculative_tokens: Annotated[int, Field(ge=1)] = Field(default_factory=_most_tokens)
    verification: Literal["coupled", "rejection"] = "coupled"
    on_proposer_error: Literal["skip", "raise"] = "skip"
    options: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _gather_options(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        core = {key: value for key, value in values.items() if key in cls.model_fields}
        flat = {key: value for key, value in values.items() if key not in cls.model_fields}
        nested = core.get("options", {})
        if not flat or not isinstance(nested, dict):
            return core
        twice = flat.keys() & nested.keys()
        if twice:
            raise ConfigError(
                f"SpeculativeConfig: {listed(twice)} given both beside `options` and in it; keep one of them"
            )
        return {**core, "options": {**nested, **flat}}

    @model_validator(mode="after")
    def _method_or_model(self) -> Self:
        if self.method is None and self.model is None:
            raise ConfigError(
                "SpeculativeConfig names neither `method` nor `model`; "
                'name an installed proposer, for example {"method": "<name>"} (`outrider plugins` lists them)'
            )
        return self

    @model_validator(mode="after")
    def _table_agrees(self) -> Self:
        table = self.num_speculative_tokens_per_batch_size
        if table is None:
            return self
        name = "SpeculativeConfig.num_speculative_tokens_per_batch_size"
        if self.adaptive:
            raise ConfigError(f"{name} and adaptive=True contradict each other; remove one of them")
        last = 0
        for start, end, number in table:
            if last == 0 and start != 1:
                raise ConfigError(f"{name}: the first range starts at {start}; it must start at 1")
            if start > end:
                raise ConfigError(f"{name}: the range {start} to {end} is empty; swap its ends")
            if start <= last:
                raise ConfigError(
                    f"{name}: the range {start} to {end} does not lie behind the one that ends at {last}; "
                    "sort the ranges, and let none overlap"
                )
            if number > self.num_speculative_tokens:
                raise ConfigError(
                    f"{name} asks for {number} drafts at batch size {start}, but num_speculative_tokens is "
                    f"{self.num_speculative_tokens}; raise the second or lower the first"
                )
            last = end
        return self

    def overridden_by(self, values: Mapping[str, Any]) -> SpeculativeConfig:
        """This configuration with single keys replaced, as a command line does with a file's; None: not given.

        Another `method` comes with a model and options of its own: those here are dropped then.
        """
        given = {key: value for key, value in values.items() if value is not None}
        mine = self.model_dump(exclude_unset=True)
        if given.get("method", self.method) != self.method:
            mine = {key: value for key, value in mine.items() if key not in ("method", "model", "options")}
        core = {key: value for key, value in given.items() if key in SpeculativeConfig.model_fields}
        flat = {key: value for key, value in given.items() if key not in SpeculativeConfig.model_fields}
        if isinstance(given.get("options", {}), Mapping):  # else the constructor refuses it
            core["options"] = {**mine.get("options", {}), **given.get("options", {}), **flat}
        return SpeculativeConfig(**{**mine, **core})
