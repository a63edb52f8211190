"""Which target model, in which precision, where."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from .settings import Settings


class ModelConfig(Settings):
    """The target model.

    Attributes:
        model: local folder, hub id, path of a GGUF file, or `smollm2`.
        tokenizer: folder or hub id of the tokenizer; None: the model's own.
        dtype: of the activations; `auto` is float32 on CPU and the checkpoint's own type elsewhere.
        weights: how the CPU kernels keep the weights of linear layers: `float32`, `bfloat16` (half the memory, exact
            for a bfloat16 checkpoint), `int8` (a quarter, rounded, one scale per output channel); `auto` is bfloat16
            for a bfloat16 checkpoint, else float32. Anything but `auto` needs float32 activations on a CPU.
        device: `auto`, or a torch device such as `cpu` or `cuda:0`.
        max_model_len: most tokens of prompt and output together; None: what the model was trained for.
        trust_remote_code: run Python code that comes with the checkpoint.
        seed: from which the seeds of requests without one are drawn.
    """

    model: Annotated[str, Field(min_length=1)]
    tokenizer: Annotated[str, Field(min_length=1)] | None = None
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    weights: Literal["auto", "float32", "bfloat16", "int8"] = "auto"
    device: Annotated[str, Field(pattern=r"^[a-z]+(:\d+)?$")] = "auto"
    max_model_len: Annotated[int, Field(ge=1)] | None = None
    trust_remote_code: bool = False
    seed: Annotated[int, Field(ge=0, lt=2**64)] = 0
