import math

import numba
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.api import SamplingParams
from outrider.kernels.cpu.survivors import find_survivors
from outrider.sampling.sampler import NO_TOKEN, SamplingRows, sample
from outrider.testing.distribution import assert_distribution

from ..noise import gumbel_noise

INF, NAN = math.inf, math.nan
GREEDY = SamplingParams(temperature=0.0)


def rows_of(params, seeds=None, positions=None, size=1):
    size = len(params) if isinstance(params, list) else size
    params = params if isinstance(params, list) else [params] * size
    return SamplingRows.from_params(params, seeds or [0] * size, positions or [5] * size)


def sample_one(logits, params, seed=0, position=5):
    return sample(torch.tensor([logits], dtype=torch.float32), rows_of(params, [seed], [position])).item()


# What a token is ---------------------------------------------------------------------------------------------


params_strategy = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.3, 1.0, 2.0]),
    top_k=st.sampled_from([0, 1, 3, 20]),
    top_p=st.sampled_from([0.3, 0.9, 1.0]),
    min_p=st.sampled_from([0.0, 0.05]),
)


@settings(max_examples=200, deadline=None)
@given(
    logits=st.lists(st.floats(-40, 40, width=32), min_size=1, max_size=200),
    params=params_strategy,
    seed=st.integers(0, 2**64 - 1),
    position=st.integers(0, 2**40),
)
def test_the_token_is_the_survivor_with_the_highest_noisy_logit(logits, params, seed, position):
    row = np.array(logits, np.float32)
    ids = find_survivors(
        row,
        row.view(np.int32),
        float(row.max()),
        params.temperature,
        params.top_k,
        params.top_p,
        params.min_p,
    )
    noisy = row[ids].astype(np.float64) / params.temperature + gumbel_noise(seed, position, len(row))[ids]
    token = sample_one(logits, params, seed, position)
    assert token in ids
    assert noisy[list(ids).index(token)] >= noisy.max() - 1e-9


@pytest.mark.parametrize("spread", [0.0, 0.5, 4.0])
def test_no_token_of_a_large_vocabulary_is_ruled_out_that_would_have_won(spread):
    logits = np.random.default_rng(0).normal(0, spread, 3000).astype(np.float32)
    seeds = list(range(300))
    tokens = sample(
        torch.from_numpy(logits).repeat(len(seeds), 1), rows_of(SamplingParams(), seeds, size=len(seeds))
    )
    assert tokens.tolist() == [int(np.argmax(logits + gumbel_noise(seed, 5, 3000))) for seed in seeds]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from([-1.0, -0.0, 0.0, 0.5, 2.0, -INF]), min_size=1, max_size=40))
def test_greedy_is_the_lowest_id_of_the_highest_logit(logits):
    expected = NO_TOKEN if max(logits) == -INF else logits.index(max(logits))
    assert sample_one(logits, GREEDY, seed=9) == expected


def test_top_k_of_one_is_greedy_also_among_equals():
    logits = [1.0, 4.0, 4.0, 4.0]
    assert {sample_one(logits, SamplingParams(top_k=1), seed) for seed in range(100)} == {1}


@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.6])
def test_samples_over_seeds_follow_the_softmax(temperature):
    logits = np.random.default_rng(3).normal(0, 1.5, 64)
    size = 20_000
    rows = rows_of(SamplingParams(temperature=temperature), list(range(size)), size=size)
    probs = np.exp(np.float32(logits).astype(np.float64) / temperature)
    assert_distribution(
        sample(torch.tensor(logits).float().repeat(size, 1), rows).numpy(), probs / probs.sum()
    )


def test_samples_over_positions_follow_the_softmax_of_the_survivors():
    logits = np.log([0.4, 0.05, 0.3, 0.25])
    size = 20_000
    rows = rows_of(SamplingParams(top_k=3), [7] * size, list(range(size)), size=size)
    tokens = sample(torch.tensor(logits).float().repeat(size, 1), rows).numpy()
    assert_distribution(tokens, np.array([0.4, 0.0, 0.3, 0.25]) / 0.95)


def test_neighbouring_positions_are_independent():
    size = 20_000
    rows = rows_of(SamplingParams(), [7] * size, list(range(size)), size=size)
    tokens = sample(torch.zeros(size, 3), rows).numpy()
    assert_distribution(tokens[:-1] * 3 + tokens[1:], [1 / 9] * 9)


# What it does not depend on ----------------------------------------------------------------------------------


def mixed_rows(size):
    kinds = [
        GREEDY,
        SamplingParams(),
        SamplingParams(temperature=0.7, top_k=5),
        SamplingParams(top_p=0.8),
        SamplingParams(min_p=0.1, top_p=0.9, top_k=9),
    ]
    return [kinds[i % len(kinds)] for i in range(size)]


def test_a_row_gives_the_same_token_alone_and_in_any_batch():
    size = 23
    logits = torch.from_numpy(np.random.default_rng(0).normal(0, 2, (size, 1000)).astype(np.float32))
    params, seeds, positions = mixed_rows(size), [i // 2 for i in range(size)], [i * 3 for i in range(size)]
    together = sample(logits, rows_of(params, seeds, positions)).tolist()
    alone = [
        sample(logits[i : i + 1], rows_of([params[i]], [seeds[i]], [positions[i]])).item()
        for i in range(size)
    ]
    reverse = sample(logits.flip(0), rows_of(params[::-1], seeds[::-1], positions[::-1])).tolist()[::-1]
    assert together == alone == reverse


def test_the_number_of_threads_does_not_show():
    logits = torch.from_numpy(np.random.default_rng(0).normal(0, 2, (16, 500)).astype(np.float32))
    rows = rows_of(mixed_rows(16), list(range(16)))
    before = numba.get_num_threads()
    try:
        numba.set_num_threads(1)
        single = sample(logits, rows).tolist()
    finally:
        numba.set_num_threads(before)
    assert sample(logits, rows).tolist() == single


def test_masked_tokens_at_the_end_of_the_vocabulary_change_nothing():
    logits = np.random.default_rng(0).normal(0, 2, 64).tolist()
    for seed in range(50):
        params = mixed_rows(5)[seed % 5]
        assert sample_one(logits, params, seed) == sample_one([*logits, *[-INF] * 8], params, seed)


def test_a_constant_added_to_every_logit_changes_nothing():
    logits = np.random.default_rng(0).integers(-8, 8, 64).astype(float)
    for seed in range(50):
        params = mixed_rows(5)[seed % 5]
        assert sample_one(logits.tolist(), params, seed) == sample_one((logits + 64).tolist(), params, seed)


def test_two_seeds_and_two_positions_differ_somewhere():
    logits = [0.0] * 1000
    assert sample_one(logits, SamplingParams(), 1) != sample_one(logits, SamplingParams(), 2)
    assert sample_one(logits, SamplingParams(), 1, 5) != sample_one(logits, SamplingParams(), 1, 6)


# Odd rows ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("params", mixed_rows(5), ids=repr)
@pytest.mark.parametrize(
    ("logits", "token"),
    [
        ([-INF, -INF, 3.0, -INF], 2),
        ([-INF, -3.4e38, -INF, -INF], 1),
        ([-INF, 1.0, INF, 1e30], 2),
        ([7.0], 0),
        ([1.0, NAN, 2.0], NO_TOKEN),
        ([NAN, NAN], NO_TOKEN),
        ([-INF, -INF], NO_TOKEN),
    ],
)
def test_rows_with_one_possible_token_or_none(logits, token, params):
    assert sample_one(logits, params) == token


def test_a_broken_row_leaves_its_neighbours_alone():
    logits = torch.tensor([[0.0, 5.0], [NAN, 0.0], [5.0, 0.0]])
    assert sample(logits, rows_of(GREEDY, size=3)).tolist() == [1, NO_TOKEN, 0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_logits_of_any_float_type_and_layout_are_read_as_float32(dtype):
    logits = torch.from_numpy(np.random.default_rng(0).normal(0, 2, (300, 4)))[:, 1].to(dtype).repeat(3, 1)
    strided = logits.t().contiguous().t()
    rows = rows_of(mixed_rows(3), [1, 2, 3])
    assert sample(strided, rows).tolist() == sample(logits.float(), rows).tolist()


def test_logits_that_require_grad_and_no_rows_at_all_are_fine():
    assert sample(torch.tensor([[0.0, 1.0]], requires_grad=True), rows_of(GREEDY)).tolist() == [1]
    assert sample(torch.empty(0, 5), rows_of([])).tolist() == []


@pytest.mark.parametrize("shape", [(2, 5), (1, 0), (5,)])
def test_logits_of_another_shape_are_refused(shape):
    with pytest.raises(ValueError, match="one row per sampling row"):
        sample(torch.zeros(shape), rows_of(GREEDY))
