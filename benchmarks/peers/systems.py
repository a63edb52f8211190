"""Which engines, in which precision, with and without their own drafting."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MAX_MODEL_LEN = 2048
"""Prompt and output together, in every engine that asks for it."""

REFERENCE = "transformers-float32"
"""Whose tokens the others' are compared with."""

OURS = "outrider"
"""The environment that runs the driver too."""


@dataclass(frozen=True, slots=True)
class System:
    """One way of decoding: an engine with its settings, one process.

    Attributes:
        environment: key of `environments.RECIPES`, or `OURS`; `workers/<environment>_worker.py` runs in it.
        options: for the worker's `load`.
        variables: environment variables of its process; `{environment}` in them is the environment's folder.
    """

    name: str
    environment: str
    options: Mapping[str, Any]
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_ours(self) -> bool:
        """Whether it is Outrider."""
        return self.environment == OURS


_NUM_CPUS = os.cpu_count() or 1

THREADS = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), str(_NUM_CPUS))
"""For every worker: a limit in the caller's shell would slow some engines and not others."""

_VLLM_VARIABLES = {
    "VLLM_CPU_OMP_THREADS_BIND": f"0-{_NUM_CPUS - 1}",
    "LD_PRELOAD": "{environment}/lib/libiomp5.so",  # vLLM asks for it, and installs it on x86
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB; more than one request needs, and it leaves room for the others
    "VLLM_LOGGING_LEVEL": "WARNING",
}


def all_systems(checkpoint: Path) -> list[System]:
    """Every system, in the order of the report.

    Args:
        checkpoint: folder with `config.json` and safetensors, for all but llama.cpp. That one reads the GGUF file from
            which smollm2 was converted.
    """
    model = {"model": str(checkpoint)}
    vllm = {**model, "dtype": "bfloat16", "max_model_len": MAX_MODEL_LEN}
    ngram = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4, "prompt_lookup_min": 2}
    llama_cpp = {"max_model_len": MAX_MODEL_LEN}
    ours = {**model, "max_model_len": MAX_MODEL_LEN, "max_num_seqs": 1}
    systems = []
    for dtype in ("float32", "bfloat16"):
        plain = {**model, "dtype": dtype}
        systems.append(System(f"transformers-{dtype}", "transformers", plain))
        lookup = {**plain, "prompt_lookup_num_tokens": 5}
        systems.append(System(f"transformers-{dtype}-lookup", "transformers", lookup))
    systems.append(System("vllm-bfloat16", "vllm", vllm, _VLLM_VARIABLES))
    systems.append(
        System("vllm-bfloat16-ngram", "vllm", {**vllm, "speculative_config": ngram}, _VLLM_VARIABLES)
    )
    systems.append(System("llama.cpp-q4_1", "llama_cpp", llama_cpp))
    systems.append(System("llama.cpp-q4_1-lookup", "llama_cpp", {**llama_cpp, "num_pred_tokens": 4}))
    for weights in ("float32", "bfloat16", "int8"):
        systems.append(System(f"outrider-{weights}", OURS, {**ours, "weights": weights}))
    return systems


def select(systems: Sequence[System], names: Sequence[str]) -> list[System]:
    """Those named, in the order of `systems`; no names: all. A name may be the beginning of several.

    Raises:
        ValueError: nothing is called so.
    """
    for name in names:
        if not any(system.name.startswith(name) for system in systems):
            known = ", ".join(system.name for system in systems)
            raise ValueError(f"no system is called {name!r}; there are: {known}")
    return [one for one in systems if not names or any(one.name.startswith(name) for name in names)]
