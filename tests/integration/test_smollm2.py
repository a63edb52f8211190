"""The real thing: SmolLM2, the installed plugins, and transformers as the judge."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from transformers import AutoModelForCausalLM

from outrider import LLM, SamplingParams
from outrider.models.smollm2 import smollm2_folder

pytestmark = pytest.mark.smollm2

QUESTIONS = [
    "Repeat this line three times: one two three four five six seven.",
    "What is the capital of France?",
    "Write a Python function that adds two numbers.",
]
CONVERSATIONS = [[{"role": "user", "content": question}] for question in QUESTIONS]
MAX_TOKENS = 24


@pytest.fixture(scope="module")
def plain() -> Iterator[LLM]:
    with LLM("smollm2", max_model_len=512, max_num_batched_tokens=64, max_num_seqs=8) as llm:
        yield llm


@pytest.fixture(scope="module")
def drafting() -> Iterator[LLM]:
    speculative = {"method": "ngram", "num_speculative_tokens": 4, "adaptive": False, "prompt_lookup_max": 3}
    with LLM("smollm2", max_model_len=512, speculative_config=speculative) as llm:
        yield llm


def tokens_of(llm: LLM, params: SamplingParams) -> list[list[int]]:
    return [list(output.outputs[0].token_ids) for output in llm.chat(CONVERSATIONS, params, use_tqdm=False)]


def test_greedy_tokens_are_those_of_transformers(plain: LLM) -> None:
    ours = plain.chat(CONVERSATIONS, SamplingParams(temperature=0, max_tokens=MAX_TOKENS), use_tqdm=False)

    model = AutoModelForCausalLM.from_pretrained(smollm2_folder(), dtype=torch.float32)
    for output in ours:
        prompt = torch.tensor([output.prompt_token_ids])
        expected = model.generate(
            prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=MAX_TOKENS, do_sample=False
        )
        assert list(output.outputs[0].token_ids) == expected[0, prompt.shape[1] :].tolist()


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_drafting_changes_no_token(plain: LLM, drafting: LLM, temperature: float) -> None:
    params = SamplingParams(temperature=temperature, seed=11, max_tokens=MAX_TOKENS)

    assert tokens_of(drafting, params) == tokens_of(plain, params)
    assert drafting.stats.spec.num_accepted_tokens > 0


@pytest.mark.parametrize("weights", ["bfloat16", "int8"])
def test_drafting_changes_no_token_with_smaller_weights(weights: str) -> None:
    speculative = {"method": "ngram", "num_speculative_tokens": 4, "adaptive": False}
    texts = []
    for drafting in (None, speculative):
        with LLM("smollm2", weights=weights, max_model_len=512, speculative_config=drafting) as llm:
            params = [SamplingParams(temperature=t, seed=11, max_tokens=MAX_TOKENS) for t in (0.0, 0.8)]
            texts.append([tokens_of(llm, one) for one in params])
            assert (llm.stats.spec.num_accepted_tokens > 0) == (drafting is not None)

    assert texts[0] == texts[1]
