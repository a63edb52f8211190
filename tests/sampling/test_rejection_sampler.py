import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.api import SamplingParams
from outrider.kernels.cpu.sampling import judge_rows, sample_rows
from outrider.sampling.rejection_sampler import verify
from outrider.sampling.sampler import SamplingRows, sample
from outrider.testing.distribution import assert_distribution, draw

NAN = math.nan
VOCAB = 16
GREEDY = SamplingParams(temperature=0.0)
MIXED = [GREEDY, SamplingParams(), SamplingParams(temperature=0.6, top_k=3), SamplingParams(top_p=0.7)]
RULES = ["coupled", "rejection"]


def rows_for(drafts, params, first_positions=None):
    """Rows of a batch; request `i` has `params[i]` and seed `i`."""
    params_of, seeds, positions = [], [], []
    for i, draft in enumerate(drafts):
        first = 10 * i if first_positions is None else first_positions[i]
        for j in range(len(draft) + 1):
            params_of.append(params[i])
            seeds.append(i)
            positions.append(first + j)
    return SamplingRows.from_params(params_of, seeds, positions)


def random_logits(size, seed=0, spread=2.0):
    return torch.from_numpy(np.random.default_rng(seed).normal(0, spread, (size, VOCAB)).astype(np.float32))


def verified(logits, drafts, params, rule, probs=None):
    return verify(logits, rows_for(drafts, params), drafts, probs, rule)


# The form of the result --------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES)
def test_each_request_emits_as_many_tokens_as_it_accepted_and_one_more(rule):
    # Greedy tokens by row: requests with 3, 0, 2, 0 and 1 drafts.
    best = [4, 5, 6, 7, 1, 2, 9, 3, 8, 0, 11]
    logits = torch.zeros(len(best), VOCAB)
    logits[range(len(best)), best] = 1.0
    drafts = [[4, 5, 6], [], [2, 8], [], [1]]
    assert verified(logits, drafts, [GREEDY] * 5, rule) == [[4, 5, 6, 7], [1], [2, 9], [8], [0]]


@pytest.mark.parametrize("rule", RULES)
def test_a_step_without_drafts_is_plain_sampling(rule):
    logits, drafts = random_logits(4), [[], [], [], []]
    assert verified(logits, drafts, MIXED, rule) == sample(logits, rows_for(drafts, MIXED))[:, None].tolist()


@pytest.mark.parametrize("rule", RULES)
def test_an_empty_batch_gives_an_empty_result(rule):
    assert verify(torch.empty(0, VOCAB), rows_for([], []), [], None, rule) == []


# The rules ---------------------------------------------------------------------------------------------------


@settings(max_examples=150, deadline=None)
@given(data=st.data(), lengths=st.lists(st.integers(0, 5), min_size=1, max_size=6))
def test_coupled_emits_the_targets_own_samples_up_to_the_first_wrong_draft(data, lengths):
    params = [data.draw(st.sampled_from(MIXED)) for _ in lengths]
    logits = random_logits(sum(lengths) + len(lengths), seed=data.draw(st.integers(0, 99)))
    own = sample(logits, rows_for([[0] * n for n in lengths], params)).tolist()
    drafts, expected, start = [], [], 0
    for n in lengths:
        truth = own[start : start + n + 1]
        start += n + 1
        right = data.draw(st.lists(st.booleans(), min_size=n, max_size=n))
        drafts.append([t if ok else (t + 1) % VOCAB for t, ok in zip(truth, right, strict=False)])
        expected.append(truth[: next((i for i, ok in enumerate(right) if not ok), n) + 1])
    assert verified(logits, drafts, params, "coupled") == expected


@pytest.mark.parametrize("params", MIXED, ids=repr)
def test_coupled_accepts_every_draft_that_was_sampled_from_the_same_logits(params):
    logits = random_logits(9)
    own = sample(logits, rows_for([[0] * 8], [params])).tolist()
    assert verified(logits, [own[:8]], [params], "coupled") == [own]


def test_coupled_ignores_what_the_drafter_reports():
    logits, drafts = random_logits(4), [[1, 2, 3]]
    probs = torch.full((3, VOCAB), NAN)
    assert verified(logits, drafts, [SamplingParams()], "coupled", probs) == verified(
        logits, drafts, [SamplingParams()], "coupled"
    )


@settings(max_examples=100, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 4), min_size=1, max_size=5),
    seed=st.integers(0, 99),
    with_probs=st.booleans(),
    rule=st.sampled_from(RULES),
)
def test_a_request_is_verified_alike_alone_and_in_a_batch(lengths, seed, with_probs, rule):
    generator = np.random.default_rng(seed)
    params = [MIXED[(seed + i) % len(MIXED)] for i in range(len(lengths))]
    drafts = [generator.integers(0, VOCAB, n).tolist() for n in lengths]
    logits = random_logits(sum(lengths) + len(lengths), seed, spread=0.5)
    probs = (
        torch.from_numpy(generator.dirichlet(np.ones(VOCAB), sum(lengths))).float() if with_probs else None
    )
    rows = rows_for(drafts, params)
    together = verify(logits, rows, drafts, probs, rule)
    row = draft_row = 0
    for i, draft in enumerate(drafts):
        end, draft_end = row + len(draft) + 1, draft_row + len(draft)
        mine = replace(rows, request_of_row=rows.request_of_row[row:end], positions=rows.positions[row:end])
        own_probs = None if probs is None else probs[draft_row:draft_end]
        assert verify(logits[row:end], mine, [draft], own_probs, rule) == [together[i]]
        assert len(together[i]) <= len(draft) + 1
        assert together[i][:-1] == draft[: len(together[i]) - 1]
        row, draft_row = end, draft_end


@pytest.mark.parametrize("probs", [None, torch.full((1, 3), 1 / 3)])
def test_rejection_at_temperature_zero_compares_with_the_argmax(probs):
    logits = torch.tensor([[0.0, 2.0, 2.0], [3.0, 0.0, 0.0]])
    for seed in range(20):
        rows = SamplingRows.from_params([GREEDY] * 2, [seed] * 2, [4, 5])
        assert verify(logits, rows, [[1]], probs, "rejection") == [[1, 0]]
        assert verify(logits, rows, [[2]], probs, "rejection") == [[1]]


def test_rejection_accepts_always_if_p_equals_q():
    logits = random_logits(2, spread=1.0)
    probs = torch.softmax(logits[:1].double(), -1).float()
    for seed in range(300):
        rows = SamplingRows.from_params([SamplingParams()] * 2, [seed] * 2, [4, 5])
        assert verify(logits, rows, [[seed % VOCAB]], probs, "rejection")[0][0] == seed % VOCAB


def test_rejection_normalises_what_the_drafter_reports():
    logits, probs = random_logits(2, spread=1.0), torch.rand(1, VOCAB, generator=torch.manual_seed(0))
    for seed in range(100):
        rows = SamplingRows.from_params([SamplingParams()] * 2, [seed] * 2, [4, 5])
        scaled = verify(logits, rows, [[3]], probs * 64, "rejection")
        assert scaled == verify(logits, rows, [[3]], probs, "rejection")


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("draft", [2, -1, VOCAB, 10**12])
def test_a_masked_or_impossible_draft_is_never_emitted(rule, draft):
    logits = torch.zeros(2, VOCAB)
    logits[:, 2] = -math.inf
    uniform = torch.full((1, VOCAB), 1e-30)
    # Up to rounding this is the target itself: no token has p > q to be recovered from.
    like_target = torch.ones(1, VOCAB)
    like_target[0, 2] = 1e-30
    for seed in range(100):
        rows = SamplingRows.from_params([SamplingParams()] * 2, [seed] * 2, [4, 5])
        for q in (None, uniform, like_target):
            ((token,),) = verify(logits, rows, [[draft]], q, rule)
            assert token in set(range(VOCAB)) - {2}


@pytest.mark.parametrize("rule", RULES)
def test_a_broken_row_ends_its_request_there_and_no_other(rule):
    logits = torch.zeros(6, VOCAB)
    logits[:, 4] = 5.0
    logits[1] = NAN
    logits[3] = NAN
    drafts = [[4, 4], [], [4]]
    assert verified(logits, drafts, [GREEDY] * 3, rule) == [[4], [], [4, 4]]


def test_each_kernel_is_compiled_once_whatever_it_is_given():
    logits, drafts = random_logits(4), [[1], [2]]
    probs = torch.full((2, VOCAB), 1 / VOCAB)
    for rule in RULES:
        for values in (logits, logits.bfloat16(), logits.double(), logits.t().contiguous().t()):
            for q in (None, probs, probs.half(), probs[:1].expand(2, VOCAB)):
                verify(values, rows_for(drafts, MIXED), drafts, q, rule)
    with torch.inference_mode():
        sample(random_logits(4) * 2, rows_for(drafts, MIXED))
    assert len(sample_rows.signatures) == 1
    assert len(judge_rows.signatures) == 1


@pytest.mark.parametrize("rule", RULES)
def test_a_draft_that_is_no_id_is_not_mistaken_for_a_row_without_a_token(rule):
    logits = torch.zeros(2, VOCAB)
    logits[0] = NAN
    assert verify(logits, rows_for([[-1]], [GREEDY]), [[-1]], None, rule) == [[]]


def test_rejection_decides_independently_at_each_position():
    p, q = np.array([0.5, 0.3, 0.15, 0.05]), np.array([0.1, 0.2, 0.3, 0.4])
    size = 20_000
    drafts = np.stack([draw(q, size, seed=2), draw(q, size, seed=3)], axis=1).tolist()
    logits = torch.log(torch.tensor(p)).float().repeat(3 * size, 1)
    rows = rows_for(drafts, [SamplingParams()] * size, [4] * size)
    probs = torch.tensor(q).expand(2 * size, 4)
    emitted = verify(logits, rows, drafts, probs, "rejection")
    went_on = np.array([tokens[:2] for tokens in emitted if len(tokens) > 1])
    first = np.minimum(p, q) / np.minimum(p, q).sum()
    assert_distribution(went_on[:, 0] * 4 + went_on[:, 1], np.outer(first, p).ravel())


# Refusals ----------------------------------------------------------------------------------------------------


def test_shapes_that_disagree_are_refused():
    rows = rows_for([[1, 2]], [GREEDY])
    with pytest.raises(ValueError, match="one row per sampling row"):
        verify(torch.zeros(4, VOCAB), rows, [[1, 2]])
    with pytest.raises(ValueError, match="3 rows of logits do not fit 1 requests with 1 drafts"):
        verify(torch.zeros(3, VOCAB), rows, [[1]])
    with pytest.raises(ValueError, match=r"draft_probs must be \[2, 16\], not \[2, 15\]"):
        verify(torch.zeros(3, VOCAB), rows, [[1, 2]], torch.zeros(2, 15), "rejection")


def test_an_unknown_rule_is_refused_by_name():
    with pytest.raises(ValueError, match="unknown verification rule 'lossy'"):
        verify(torch.zeros(1, VOCAB), rows_for([[]], [GREEDY]), [[]], rule="lossy")
