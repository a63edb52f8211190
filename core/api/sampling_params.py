"""How one request wants its tokens chosen, and when it wants to stop."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, field_validator


class SamplingParams(BaseModel):
    """Sampling and stopping parameters of one request; names and defaults are vLLM's.

    `temperature=0` is greedy decoding. `top_k=0` and `top_k=-1` both keep the whole vocabulary.
    `seed=None` lets the engine draw one at admission; the response reports it.

    Raises:
        pydantic.ValidationError (a `ValueError`): a value is out of range or a name is unknown.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    temperature: Annotated[float, Field(ge=0.0, allow_inf_nan=False)] = 1.0
    top_k: Annotated[int, Field(ge=-1)] = 0
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    min_p: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0
    seed: Annotated[int, Field(ge=0, lt=2**64)] | None = None
    max_tokens: Annotated[int, Field(ge=1)] = 16
    min_tokens: Annotated[int, Field(ge=0)] = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True

    @field_validator("stop", mode="before")
    @classmethod
    def _one_stop_string(cls, value: object) -> object:
        return (value,) if isinstance(value, str) else () if value is None else value

    @field_validator("stop")
    @classmethod
    def _no_empty_stop_string(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if "" in value:
            raise ValueError("a stop string must not be empty: it would match before the first token")
        return value
