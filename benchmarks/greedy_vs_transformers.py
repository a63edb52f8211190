"""Compare Outrider's greedy tokens with those of transformers' `generate`, prompt by prompt.

    python benchmarks/greedy_vs_transformers.py prompts.jsonl --limit 20

Both decode SmolLM2 in float32. Outrider runs once for every combination of chunked prefill and prefix caching, all
prompts in batches of 8. The kernels of the two sum in different orders, so where two tokens are nearly equally likely
they may part ways: for each first difference the script prints the margin between the two tokens' logits in
transformers.
"""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from outrider import LLM, SamplingParams
from outrider.entrypoints.prompt_files import read_prompts
from outrider.models.smollm2 import smollm2_folder

MARGIN = 1e-3
"""Largest difference of two logits that counts as a near tie."""


def reference_tokens(model: torch.nn.Module, prompt: list[int], max_tokens: int) -> list[int]:
    """Greedy continuation by `generate`."""
    ids = torch.tensor([prompt])
    output = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=max_tokens, do_sample=False
    )
    return output[0, len(prompt) :].tolist()


def margin(model: torch.nn.Module, prompt: list[int], before: list[int], first: int, second: int) -> float:
    """How much more transformers likes `first` than `second` behind `prompt + before`, in logits."""
    with torch.no_grad():
        logits = model(torch.tensor([prompt + before]), logits_to_keep=1).logits[0, -1]
    return float(logits[first] - logits[second])


def main() -> None:
    """Run the comparison and print one line per configuration and difference."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("prompts", type=Path, help="JSONL in Spec-Bench's format, or one prompt per line")
    parser.add_argument("--limit", type=int, default=20)
    parser.add_argument("--max-tokens", type=int, default=64)
    arguments = parser.parse_args()

    every = read_prompts(arguments.prompts)
    prompts = [prompt.text for prompt in every[:: max(1, len(every) // arguments.limit)][: arguments.limit]]
    model = AutoModelForCausalLM.from_pretrained(smollm2_folder(), dtype=torch.float32).eval()
    references: list[list[int]] = []
    params = SamplingParams(temperature=0, max_tokens=arguments.max_tokens)
    for chunked, caching in itertools.product((True, False), (True, False)):
        llm = LLM(
            "smollm2",
            max_model_len=2048,
            max_num_seqs=8,
            max_num_batched_tokens=64 if chunked else 2048,
            enable_chunked_prefill=chunked,
            enable_prefix_caching=caching,
        )
        outputs = llm.chat([[{"role": "user", "content": prompt}] for prompt in prompts], params)
        if not references:
            references = [reference_tokens(model, o.prompt_token_ids, arguments.max_tokens) for o in outputs]
        differing = 0
        for index, (output, reference) in enumerate(zip(outputs, references, strict=True)):
            tokens = list(output.outputs[0].token_ids)
            if tokens == reference:
                continue
            differing += 1
            at = next(i for i, (a, b) in enumerate(itertools.zip_longest(tokens, reference)) if a != b)
            gap = margin(model, output.prompt_token_ids, reference[:at], reference[at], tokens[at])
            verdict = "near tie" if gap <= MARGIN else "WRONG"
            print(f"  prompt {index}: differs from token {at} on, margin {gap:.2e}: {verdict}")
        equal = f"{len(prompts) - differing} of {len(prompts)} equal"
        print(f"chunked prefill {chunked}, prefix caching {caching}: {equal}")
        llm.shutdown()


if __name__ == "__main__":
    main()
