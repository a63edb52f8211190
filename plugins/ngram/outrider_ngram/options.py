"""Options of the n-gram proposer; the lookup lengths have vLLM's names."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

# By measurement, see the README: for adaptive drafting, which leaves most drafts of one-token matches unverified.
_DEFAULT_MIN, _DEFAULT_MAX = 1, 4


class NgramOptions(BaseModel):
    """How far back the proposer looks, and which of several matches it follows.

    If only one of the two lengths is given, the other equals it, as in vLLM; if none is given they are 1 and 4.

    Attributes:
        prompt_lookup_min: shortest suffix of the context (tokens) that may be looked up.
        prompt_lookup_max: longest suffix that is looked up; the longest one that occurs earlier wins.
        choice: which occurrence of that suffix is continued.

    Raises:
        pydantic.ValidationError (a `ValueError`): a length is below 1, the lengths contradict each other, or a name is
            unknown.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    prompt_lookup_min: Annotated[int, Field(ge=1)] = _DEFAULT_MIN
    prompt_lookup_max: Annotated[int, Field(ge=1)] = _DEFAULT_MAX
    choice: Literal["earliest", "most_recent"] = "most_recent"

    @model_validator(mode="before")
    @classmethod
    def _fill_lengths(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        shortest, longest = values.get("prompt_lookup_min"), values.get("prompt_lookup_max")
        if shortest is None and longest is None:
            shortest, longest = _DEFAULT_MIN, _DEFAULT_MAX
        return {
            **values,
            "prompt_lookup_min": longest if shortest is None else shortest,
            "prompt_lookup_max": shortest if longest is None else longest,
        }

    @model_validator(mode="after")
    def _min_not_above_max(self) -> NgramOptions:
        if self.prompt_lookup_min > self.prompt_lookup_max:
            raise ValueError(
                f"prompt_lookup_min={self.prompt_lookup_min} is greater than "
                f"prompt_lookup_max={self.prompt_lookup_max}: lower the first or raise the second"
            )
        return self
