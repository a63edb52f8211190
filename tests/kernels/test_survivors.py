"""The cuts against an obvious implementation that sorts the whole row."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.kernels.cpu.survivors import find_peak, find_survivors, keep_prefix

INF, NAN = math.inf, math.nan
SLACK = 1.0 - 1e-6

values = st.one_of(
    st.sampled_from([0.0, -0.0, 1.0, 1.5, -2.0, 3.0, -INF]),  # many ties
    st.floats(-30.0, 30.0, width=32),
)
rows = st.lists(values, min_size=1, max_size=300).filter(lambda row: max(row) > -INF)


def row_of(logits):
    logits = np.array(logits, np.float32)
    return logits, logits.view(np.int32)


def survivors(logits, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0):
    logits, bits = row_of(logits)
    peak = float(logits[find_peak(bits)])
    return find_survivors(logits, bits, peak, temperature, top_k, top_p, min_p).tolist()


def sorted_reference(logits, temperature, top_k, top_p, min_p):
    logits = np.array(logits, np.float32).astype(np.float64)
    ranked = sorted((i for i in range(len(logits)) if logits[i] > -INF), key=lambda i: (-logits[i], i))
    weight = {i: math.exp((logits[i] - logits[ranked[0]]) / temperature) for i in ranked}
    kept = [i for i in ranked if weight[i] >= min_p * SLACK and weight[i] >= math.exp(-40)]
    if top_k > 0:
        kept = kept[:top_k]
    if top_p < 1.0:
        total, before, prefix = sum(weight[i] for i in kept), 0.0, []
        for i in kept:
            if before >= top_p * total * SLACK:
                break
            prefix.append(i)
            before += weight[i]
        kept = prefix
    return sorted(kept)


@settings(max_examples=400, deadline=None)
@given(
    logits=rows,
    temperature=st.sampled_from([0.1, 0.7, 1.0, 1.3, 50.0]),
    top_k=st.sampled_from([-1, 0, 1, 2, 3, 7, 50, 1000]),
    top_p=st.sampled_from([1e-9, 0.1, 0.5, 0.75, 0.9, 0.999, 1.0]),
    min_p=st.sampled_from([0.0, 1e-3, 0.1, 0.5, 1.0]),
)
def test_survivors_are_those_of_a_full_sort(logits, temperature, top_k, top_p, min_p):
    assert survivors(logits, temperature, top_k, top_p, min_p) == sorted_reference(
        logits, temperature, top_k, top_p, min_p
    )


@pytest.mark.parametrize("seed", range(3))
def test_survivors_of_a_large_vocabulary_are_those_of_a_full_sort(seed):
    logits = np.random.default_rng(seed).normal(0, [0.01, 1.0, 5.0][seed], 5000).astype(np.float32)
    for cut in ((1.0, 40, 1.0, 0.0), (0.8, 0, 0.95, 0.0), (1.0, 700, 0.5, 1e-4)):
        assert survivors(logits, *cut) == sorted_reference(logits, *cut)


@pytest.mark.parametrize("seed", range(30))
def test_sums_that_round_differently_from_one_level_to_the_next_keep_no_more(seed):
    generator = np.random.default_rng(seed)
    # All but the last share the upper digit of the key and differ in the middle one.
    keys = np.append(generator.integers(0, 8, 40) << 10, -(1 << 28))
    weights = generator.random(41)
    limit = 0.0
    for weight in weights[:-1]:
        limit += weight
    ids = np.arange(41, dtype=np.int32)
    assert keep_prefix(keys, weights, limit, ids) <= 40
    assert 40 not in ids[:40]


def test_among_equals_the_lower_ids_survive_and_no_more_than_k():
    assert survivors([1, 3, 2, 3, 3], top_k=2) == [1, 3]
    assert survivors([0] * 8, top_p=0.5) == [0, 1, 2, 3]
    assert survivors([0.0, -0.0, 0.0], top_k=2) == [0, 1]


def test_a_mass_that_reaches_top_p_or_min_p_exactly_is_enough():
    logits = np.log([0.5, 0.3, 0.15, 0.05])
    assert survivors(logits, top_p=0.5) == [0]
    assert survivors(logits, top_p=0.8) == [0, 1]
    assert survivors(logits, top_p=0.81) == [0, 1, 2]
    assert survivors(logits, min_p=0.3) == [0, 1, 2]
    assert survivors(logits, min_p=0.31) == [0, 1]


def test_cuts_act_in_the_order_temperature_min_p_top_k_top_p():
    logits = np.log([0.4, 0.3, 0.2, 0.1])
    # Half of what top-k left is token 0 (0.4 of 0.7); half of the whole row would be tokens 0 and 1.
    assert survivors(logits, top_k=2, top_p=0.55) == [0]
    # At temperature 2 the ratios are square roots: 0.1 / 0.4 becomes 0.5.
    assert survivors(logits, temperature=2.0, min_p=0.5) == [0, 1, 2, 3]
    assert survivors(logits, temperature=1.0, min_p=0.5) == [0, 1, 2]


def test_masked_tokens_never_survive_even_when_there_are_fewer_than_k():
    assert survivors([-INF, 2, -INF, 1], top_k=3) == [1, 3]
    assert survivors([-INF, 2, -INF, 1], temperature=1e308) == [1, 3]


@pytest.mark.parametrize("temperature", [5e-324, 1e-30, 1e30, 1.7e308])
def test_extreme_temperatures_keep_the_peak(temperature):
    kept = survivors([1.0, 2.0, -3.0], temperature, top_p=0.9)
    assert 1 in kept
    assert (kept == [1]) == (temperature < 1)


@pytest.mark.parametrize(
    ("logits", "peak"),
    [
        ([1, 2, 2], 1),
        ([-0.0, 0.0], 0),
        ([-INF, -5, -INF], 1),
        ([1, INF, INF], 1),
        ([-1e30, -2e-45], 1),
        ([NAN, 1], -1),
        ([1, -NAN], -1),
        ([-INF, -INF], -1),
    ],
)
def test_the_peak_is_the_lowest_id_of_the_highest_logit_and_nan_spoils_a_row(logits, peak):
    assert find_peak(row_of(logits)[1]) == peak
