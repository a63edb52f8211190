"""Kinds 1, 2 and 3: where a request ends, when a step commits several tokens."""

import pytest

from outrider import SamplingParams
from outrider.testing.harness import Harness
from outrider.testing.proposers import OracleProposer
from outrider.testing.tiny_models import ALPHABET

pytestmark = pytest.mark.usefixtures("one_thread")

PROMPT = [3, 11, 6]
K = 8


def greedy(max_tokens, **others):
    return SamplingParams(temperature=0, max_tokens=max_tokens, **others)


@pytest.fixture(scope="module")
def ids(tiny):
    """What the model says; the first K + 2 tokens are all different, so each can be made the end token."""
    tokens = Harness(tiny).tokens([PROMPT], greedy(24))[0]
    assert len(set(tokens[: K + 2])) == K + 2
    return tokens


def oracle(model, ids, k=K, **options):
    return Harness(
        model, OracleProposer, num_speculative_tokens=k, options={"truth": [PROMPT + ids], **options}
    )


@pytest.mark.parametrize("end", range(1, K + 2))
def test_an_end_token_at_any_offset_of_a_block_is_the_last_token(tiny_with_eos, ids, end):
    harness = oracle(tiny_with_eos(ids[end]), ids)
    shown, text = [], ""
    for output in harness.llm.stream({"prompt_token_ids": PROMPT}, greedy(24)):
        shown += output.outputs[0].new_token_ids
        text += output.outputs[0].new_text
        assert ids[end + 1] not in output.outputs[0].new_token_ids
    final = output.outputs[0]
    assert shown == final.token_ids == ids[: end + 1]
    assert text == final.text == "".join(ALPHABET[token] for token in ids[:end])
    assert (final.finish_reason, final.stop_reason) == ("stop", None)
    assert output.metrics.num_emitted_tokens == harness.llm.stats.spec.num_emitted_tokens == end + 1
    assert output.metrics.num_accepted_tokens == min(end, K)
    assert harness.llm.stats.num_steps == 2
    assert harness.spy.events[-2:] == [
        ("tokens_committed", output.request_id, tuple(ids[1 : end + 1])),
        ("request_finished", output.request_id, ()),
    ]


def test_a_stop_token_is_reported_and_ignore_eos_is_honoured(tiny_with_eos, ids):
    harness = oracle(tiny_with_eos(ids[3]), ids)
    params = greedy(24, stop_token_ids=(ids[5],))
    assert harness.tokens([PROMPT], params) == [ids[:4]]
    output = harness.generate([PROMPT], params.model_copy(update={"ignore_eos": True}))[0].outputs[0]
    assert (output.token_ids, output.finish_reason, output.stop_reason) == (ids[:6], "stop", ids[5])


def test_nothing_behind_the_end_is_found_in_the_prefix_cache(tiny_with_eos, ids):
    """The discarded drafts' KV must not serve a prompt that continues differently."""
    harness = oracle(tiny_with_eos(ids[4]), ids)
    harness.generate([PROMPT], greedy(24))
    follow_up = PROMPT + ids[:5] + [7, 8, 9, 10, 11]
    params = greedy(8, ignore_eos=True)
    plain = Harness(tiny_with_eos(ids[4]), enable_prefix_caching=False).tokens([follow_up], params)
    output = harness.generate([follow_up], params)[0]
    assert [output.outputs[0].token_ids] == plain
    assert output.num_cached_tokens <= len(PROMPT) + 5


@pytest.mark.parametrize("k", [1, 2, 4, 8])
@pytest.mark.parametrize(
    ("end", "num_tokens", "reason"), [(4, 5, "stop"), (5, 6, "stop"), (6, 6, "length"), (7, 6, "length")]
)
def test_the_first_of_end_and_length_decides(tiny_with_eos, ids, k, end, num_tokens, reason):
    output = oracle(tiny_with_eos(ids[end]), ids, k).generate([PROMPT], greedy(6))[0].outputs[0]
    assert (output.token_ids, output.finish_reason) == (ids[:num_tokens], reason)


@pytest.mark.parametrize("k", [1, 3, 8])
@pytest.mark.parametrize("drafts", ["the_answer", "the_end_too_early"])
def test_min_tokens_forbids_the_end_at_every_draft_position(tiny_with_eos, ids, k, drafts):
    params = greedy(12, min_tokens=4)
    model = tiny_with_eos(ids[2])
    plain = Harness(model).tokens([PROMPT], params)[0]
    assert ids[2] not in plain[:4]
    assert plain[:2] == ids[:2]
    truth = plain if drafts == "the_answer" else ids
    assert oracle(model, truth, k).tokens([PROMPT], params) == [plain]


@pytest.mark.parametrize("end", [2, 4])
def test_the_end_is_allowed_as_soon_as_min_tokens_are_out(tiny_with_eos, ids, end):
    model = tiny_with_eos(ids[end])
    params = [
        SamplingParams(temperature=temperature, seed=11, max_tokens=12, min_tokens=min_tokens)
        for temperature in (0.0, 1.0)
        for min_tokens in range(end + 3)
    ]
    batch = [PROMPT] * len(params)
    plain = Harness(model).tokens(batch, params)
    assert [tokens == ids[: end + 1] for tokens in plain[: end + 3]] == [True] * (end + 1) + [False] * 2
    truth = [PROMPT + tokens for tokens in plain]
    assert Harness(model, OracleProposer, options={"truth": truth}).tokens(batch, params) == plain


@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize("start", range(1, K))
def test_a_stop_string_inside_the_accepted_span(tiny_text, ids, start, include):
    stop = "".join(ALPHABET[token] for token in ids[start : start + 2])
    params = greedy(24, stop=(stop,), include_stop_str_in_output=include)
    plain = Harness(tiny_text).generate([PROMPT], params)[0].outputs[0]
    harness = oracle(tiny_text, ids)
    output = harness.generate([PROMPT], params)[0].outputs[0]
    assert plain.token_ids == ids[: start + 2]
    assert (output.token_ids, output.text) == (plain.token_ids, plain.text)
    assert (output.finish_reason, output.stop_reason) == ("stop", stop)
    assert output.text.endswith(stop) is include
    assert harness.llm.stats.spec.num_emitted_tokens == start + 2
    follow_up = PROMPT + ids[: start + 2] + [7, 8, 9, 10]
    assert harness.tokens([follow_up], greedy(6)) == Harness(tiny_text).tokens([follow_up], greedy(6))


def test_min_tokens_delays_a_stop_string_too(tiny_text, ids):
    """The string at tokens 2 and 3 comes too early, so the text goes on to the one at tokens 6 and 7."""
    early, late = ("".join(ALPHABET[token] for token in ids[i : i + 2]) for i in (2, 6))
    params = greedy(24, stop=(early, late), min_tokens=5)
    plain = Harness(tiny_text).generate([PROMPT], params)[0].outputs[0]
    output = oracle(tiny_text, ids).generate([PROMPT], params)[0].outputs[0]
    assert output.token_ids == plain.token_ids == ids[:8]
    assert output.text == plain.text
