"""Whatever is asked, in whatever engine: the tokens are those of plain decoding, and nothing leaks."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.api import ProposerCapabilities, SamplingParams
from outrider.engine.draft_adaptive import AdaptiveDrafts
from outrider.engine.draft_cost import VerifyCost
from outrider.engine.draft_fixed import FixedDrafts
from outrider.engine.draft_policy import DraftPolicy

from .fake_runner import mix
from .harness import TEXTS, Harness, LetterTokenizer, plain

SMALL_VOCAB = 6


def small(history: Sequence[int], seed: int) -> int:
    """A model with few tokens, so that stops, repeated prompts and lucky drafts are common."""
    return mix(history, seed) % SMALL_VOCAB


class PatternDrafter:
    """Drafts the truth up to the planned mistake, with the planned length, in turn."""

    def __init__(self, pattern: list[tuple[int, int]]) -> None:
        self.pattern = pattern
        self.num_calls = 0

    def __call__(self, history: Sequence[int], seed: int, budget: int) -> list[int]:
        length, wrong_at = self.pattern[self.num_calls % len(self.pattern)]
        self.num_calls += 1
        tokens = list(history)
        for index in range(min(length, budget)):
            tokens.append((small(tokens, seed) + (index == wrong_at)) % SMALL_VOCAB)
        return tokens[len(history) :]


tokens = st.integers(0, SMALL_VOCAB - 1)
letters = st.text(TEXTS[:SMALL_VOCAB], min_size=1, max_size=3)


@st.composite
def sampling_params(draw: st.DrawFn) -> SamplingParams:
    max_tokens = draw(st.integers(1, 20))
    return SamplingParams(
        max_tokens=max_tokens,
        min_tokens=draw(st.integers(0, max_tokens) | st.just(0)),
        seed=draw(st.none() | st.integers(0, 3)),
        stop=tuple(draw(st.lists(letters, max_size=2))),
        stop_token_ids=tuple(draw(st.lists(tokens, max_size=1))),
        ignore_eos=draw(st.booleans()),
        include_stop_str_in_output=draw(st.booleans()),
    )


@st.composite
def policies(draw: st.DrawFn, num_speculative_tokens: int) -> DraftPolicy | None:
    if num_speculative_tokens == 0 or draw(st.booleans()):
        return None
    if draw(st.booleans()):
        return FixedDrafts([(1, 1, draw(st.integers(0, 5))), (3, 9, draw(st.integers(0, 5)))])
    return AdaptiveDrafts(
        num_speculative_tokens,
        VerifyCost(draw(st.dictionaries(st.integers(1, 9), durations, min_size=1))),
        always_asked=draw(st.booleans()),
        sampled_drafts=draw(st.booleans()),
    )


class HostileClock:
    """Time stands still, creeps or leaps, as planned."""

    def __init__(self, leaps: list[float]) -> None:
        self.leaps = leaps
        self.num_calls = 0
        self.now = 0.0

    def __call__(self) -> float:
        self.now += self.leaps[self.num_calls % len(self.leaps)]
        self.num_calls += 1
        return self.now


durations = st.sampled_from([1e-9, 1e-5, 0.001, 0.01, 1.0, 1e6])


@st.composite
def engines(draw: st.DrawFn) -> Harness:
    block_size = draw(st.integers(1, 5))
    max_model_len = draw(st.integers(4, 30))
    num_blocks = draw(st.integers(-(-4 // block_size), 12))
    chunked = draw(st.booleans())
    max_len = min(max_model_len, num_blocks * block_size)
    pattern = draw(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=5))
    num_speculative_tokens = draw(st.integers(0, 5))
    return Harness(
        num_blocks=num_blocks,
        block_size=block_size,
        max_model_len=max_model_len,
        max_num_seqs=draw(st.integers(1, 4)),
        max_num_batched_tokens=draw(st.integers(1 if chunked else max_len, max_len + 10)),
        enable_chunked_prefill=chunked,
        enable_prefix_caching=draw(st.booleans()),
        num_speculative_tokens=num_speculative_tokens,
        draft_policy=draw(policies(num_speculative_tokens)),
        clock=HostileClock(draw(st.lists(st.just(0.0) | durations, min_size=1, max_size=7))),
        capabilities=ProposerCapabilities(
            own_kv=draw(st.booleans()),
            max_positions=draw(st.none() | st.integers(1, 30)),
            max_draft_tokens=draw(st.none() | st.integers(1, 5)),
        ),
        next_token=small,
        drafter=PatternDrafter(pattern),
        tokenizer=LetterTokenizer(),
    )


@settings(max_examples=400, deadline=None)
@given(
    harness=engines(),
    asked=st.lists(
        st.tuples(st.lists(tokens, min_size=1, max_size=20), sampling_params(), st.integers(0, 10)),
        min_size=1,
        max_size=6,
    ),
    aborts=st.dictionaries(st.integers(0, 5), st.integers(0, 15), max_size=2),
    late_aborts=st.dictionaries(st.integers(0, 5), st.integers(0, 15), max_size=1),
)
def test_equals_plain_decoding(
    harness: Harness,
    asked: list[tuple[list[int], SamplingParams, int]],
    aborts: dict[int, int],
    late_aborts: dict[int, int],
) -> None:
    max_len = harness.scheduler.max_len
    asked = [(prompt[: max_len - 1], params, arrival) for prompt, params, arrival in asked]
    eos = [5]
    for step in range(16):
        for index, (prompt, params, arrival) in enumerate(asked):
            if arrival == step:
                harness.add(f"r{index}", prompt, eos, **params.model_dump())
            if aborts.get(index) == step:
                harness.abort(f"r{index}")
        harness.step([f"r{index}" for index, when in late_aborts.items() if when == step])
    outputs = harness.run()
    harness.assert_clean()
    assert set(outputs) == {f"r{index}" for index in range(len(asked))}
    for index, (prompt, params, _) in enumerate(asked):
        output = outputs[f"r{index}"]
        completion = output.outputs[0]
        assert output.seed is not None
        assert params.seed in (None, output.seed)
        truth = plain(prompt, params, output.seed, max_len=max_len, eos=eos, next_token=small)
        assert harness.streamed_text[f"r{index}"] == completion.text
        if completion.finish_reason == "abort":
            assert index in {*aborts, *late_aborts}
            assert completion.token_ids == truth.token_ids[: len(completion.token_ids)]
            continue
        assert completion.token_ids == truth.token_ids
        assert completion.text == truth.text
        assert (completion.finish_reason, completion.stop_reason) == (truth.finish_reason, truth.stop_reason)
