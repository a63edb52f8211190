"""transformers: `generate`, plain or with prompt lookup."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from ..protocol import Decode, Emit, serve


class _Stream:
    """A streamer for `generate`, which hands it the prompt first."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._prompt_seen = False

    def put(self, token_ids: torch.Tensor) -> None:
        if self._prompt_seen:
            self._emit(token_ids.reshape(-1).tolist())
        self._prompt_seen = True

    def end(self) -> None: ...


def load(options: Mapping[str, Any]) -> Decode:
    """`model`: folder; `dtype`; `prompt_lookup_num_tokens`: None for plain decoding."""
    model = AutoModelForCausalLM.from_pretrained(
        options["model"], dtype=getattr(torch, options["dtype"])
    ).eval()
    model.generation_config.eos_token_id = None  # never stop early
    lookup = options.get("prompt_lookup_num_tokens")
    arguments = {} if lookup is None else {"prompt_lookup_num_tokens": lookup}

    def decode(prompt_token_ids: Sequence[int], max_tokens: int, emit: Emit) -> None:
        ids = torch.tensor([prompt_token_ids])
        model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=max_tokens,
            do_sample=False,
            pad_token_id=0,
            streamer=_Stream(emit),
            **arguments,
        )

    return decode


if __name__ == "__main__":
    serve(load, ["transformers", "torch"])
