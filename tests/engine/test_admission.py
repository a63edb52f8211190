"""A request that cannot be served is refused with the value and the cure, and nobody else notices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from outrider.api import RequestError, SamplingParams

from .harness import Harness, plain


@pytest.mark.parametrize(
    ("prompt", "params", "message"),
    [
        ([], {}, "prompt has no tokens"),
        ([1, 64], {}, r"prompt_token_ids\[1\] is 64, outside the vocabulary; use ids from 0 to 63"),
        ([-1], {}, r"prompt_token_ids\[0\] is -1, outside the vocabulary"),
        ([1.0], {}, r"prompt_token_ids\[0\] is 1.0, of type float"),
        (["a"], {}, r"prompt_token_ids\[0\] is 'a', of type str"),
        ([True], {}, r"prompt_token_ids\[0\] is True, of type bool"),
        ([1] * 32, {}, "prompt has 32 tokens, but max_model_len=32 leaves room for at most 31"),
        ([1] * 40, {}, "prompt has 40 tokens, but max_model_len=32"),
        ([1], {"min_tokens": 5, "max_tokens": 4}, "min_tokens=5 is above max_tokens=4"),
        ([1], {"stop_token_ids": (64,)}, r"stop_token_ids\[0\] is 64, outside the vocabulary"),
        ([1], {"stop": ("x",)}, r"stop=\['x'\] needs a tokenizer"),
    ],
)
def test_refused(prompt: list[Any], params: dict[str, Any], message: str) -> None:
    harness = Harness(max_model_len=32)
    harness.add("good", [1, 2, 3], max_tokens=5, seed=0)
    harness.step()
    with pytest.raises(RequestError, match=message) as error:
        harness.add("bad", prompt, **params)
    assert "request 'bad'" in str(error.value)
    outputs = harness.run()
    assert list(outputs) == ["good"]
    assert outputs["good"].outputs[0].token_ids == _truth([1, 2, 3], 5)
    harness.assert_clean()


def test_a_prompt_that_can_never_fit_the_cache_names_the_cache() -> None:
    harness = Harness(max_model_len=1000, num_blocks=3, block_size=4)
    with pytest.raises(
        RequestError, match=r"prompt has 12 tokens, but the whole KV cache holds 12 \(num_kv_blocks"
    ):
        harness.add("bad", [1] * 12)
    harness.add("good", [1] * 11, max_tokens=50)
    output = harness.run()["good"].outputs[0]
    assert (len(output.token_ids), output.finish_reason) == (1, "length")
    harness.assert_clean()


def test_an_id_is_taken_as_long_as_its_request_is_unfinished() -> None:
    harness = Harness()
    harness.add("r", [1, 2, 3], max_tokens=2, seed=0)
    for _ in range(2):
        with pytest.raises(RequestError, match="request 'r': an unfinished request has this id"):
            harness.add("r", [4])
        harness.step()
    first = harness.outputs["r"].outputs[0].token_ids
    harness.add("r", [4, 5], max_tokens=2, seed=0)
    assert harness.run()["r"].outputs[0].token_ids == _truth([4, 5], 2)
    assert first == _truth([1, 2, 3], 2)


def test_numpy_integers_are_integers() -> None:
    harness = Harness()
    prompt: Any = np.array([1, 2, 3])
    harness.add("r", prompt, max_tokens=3, seed=0)
    output = harness.run()["r"]
    assert output.outputs[0].token_ids == _truth([1, 2, 3], 3)
    assert all(type(token) is int for token in output.prompt_token_ids)


def _truth(prompt: list[int], max_tokens: int) -> list[int]:
    return plain(prompt, SamplingParams(max_tokens=max_tokens), 0, max_len=64).token_ids
