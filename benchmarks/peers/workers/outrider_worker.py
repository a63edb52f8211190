"""Outrider itself, in the environment that runs the driver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from outrider import LLM, SamplingParams

from ..protocol import Decode, Emit, serve


def load(options: Mapping[str, Any]) -> Decode:
    """`options` are `LLM`'s arguments."""
    llm = LLM(**options, enable_prefix_caching=False)  # a repetition shall do the same work again

    def decode(prompt_token_ids: Sequence[int], max_tokens: int, emit: Emit) -> None:
        params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
        for output in llm.stream({"prompt_token_ids": list(prompt_token_ids)}, params):
            emit(output.outputs[0].new_token_ids)

    return decode


if __name__ == "__main__":
    serve(load, ["outrider", "torch", "numba"])
