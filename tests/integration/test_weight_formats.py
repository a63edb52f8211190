"""However weights are kept: drafting, chunked prompts and cached prefixes change no token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from outrider import SamplingParams
from outrider.testing.harness import Harness
from outrider.testing.proposers import RandomProposer, SelfProposer

PREFIX = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]
PROMPTS = [[*PREFIX, 8, 9], [7], [*PREFIX, 10, 11, 12, 13], [5, 6] * 6, PREFIX]
WAYS: list[dict[str, Any]] = [
    {},
    {"max_num_batched_tokens": 8, "max_num_seqs": 3},  # prompts come in chunks
    {"enable_prefix_caching": False},
]


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("weights", ["float32", "bfloat16", "int8"])
def test_tokens_are_those_of_plain_decoding_with_the_same_weights(
    tiny: Path, weights: str, temperature: float
) -> None:
    params = SamplingParams(temperature=temperature, seed=3, max_tokens=16, ignore_eos=True)

    def harness(proposer: type | str | None = None, **settings: Any) -> Harness:
        built = Harness(tiny, proposer, weights=weights, attention_backend=None, **settings)
        assert built.llm._engine.loaded.weights == weights
        return built

    alone = harness(enable_prefix_caching=False)
    plain = [alone.tokens([prompt], params)[0] for prompt in PROMPTS]
    for proposer in (None, RandomProposer, SelfProposer, "ngram"):
        for settings in WAYS:
            engine = harness(proposer, **settings)
            assert engine.tokens(PROMPTS, params) == plain
            assert engine.tokens(PROMPTS[::-1], params) == plain[::-1]  # their prefixes are cached by now
            assert engine.core.stats.num_plugin_errors == 0
            assert proposer is not SelfProposer or engine.llm.stats.spec.num_accepted_tokens > 0
