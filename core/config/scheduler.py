"""How many requests and tokens one step may take."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from ..api import ConfigError
from .settings import Settings


class SchedulerConfig(Settings):
    """Limits of one step.

    Attributes:
        max_num_seqs: requests that run at the same time.
        max_num_batched_tokens: rows of one forward, all requests together.
        enable_chunked_prefill: split a prompt that does not fit into a step.
    """

    max_num_seqs: Annotated[int, Field(ge=1)] = 64
    max_num_batched_tokens: Annotated[int, Field(ge=1)] = 2048
    enable_chunked_prefill: bool = True

    @model_validator(mode="after")
    def _every_sequence_gets_a_row(self) -> Self:
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ConfigError(
                f"max_num_batched_tokens={self.max_num_batched_tokens} is less than max_num_seqs={self.max_num_seqs}: "
                "each running request needs at least one row per step; raise the first or lower the second"
            )
        return self

    def check_max_model_len(self, max_model_len: int) -> None:
        """Check the limits against the model's length, once that is known.

        Raises:
            ConfigError: chunked prefill is off and the longest prompt would not fit into one step.
        """
        if not self.enable_chunked_prefill and self.max_num_batched_tokens < max_model_len:
            raise ConfigError(
                f"max_num_batched_tokens={self.max_num_batched_tokens} is less than max_model_len={max_model_len} with "
                "enable_chunked_prefill=False: a prompt could never be computed in one step; raise the first, lower "
                "the second, or enable chunked prefill"
            )
