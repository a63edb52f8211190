"""Processors act at every row, with the history that the row has."""

import numpy as np
import pytest
import torch

from outrider.api import SamplingParams
from outrider.sampling.processors import PROCESSORS
from outrider.sampling.rejection_sampler import verify
from outrider.sampling.sampler import NO_TOKEN, SamplingRows, sample

VOCAB = 12
STOP = 3
PROMPT = [5, 1]


class OncePerText:
    """Forbids tokens that the text already has; needs the history of each row."""

    def applies(self, rows):
        return np.arange(len(rows))

    def apply(self, logits, rows, indices):
        for r in indices:
            logits[r, rows.history(r)] = -np.inf


def logits_after(token):
    return np.random.default_rng(token).normal(0, 1, VOCAB).astype(np.float32)


def rows_after(text, size, params):
    """Rows that sample the tokens at `len(text) - size + 1 .. len(text)`."""
    positions = [len(text) - size + 1 + i for i in range(size)]
    return SamplingRows.from_params(
        [params] * size,
        [11] * size,
        positions,
        num_prompt_tokens=len(PROMPT),
        stop_token_ids=frozenset({STOP, 99, -1}),
        history=lambda r: np.array(text[: positions[r]], np.int32),
    )


def plain(steps, params, processors):
    text = list(PROMPT)
    for _ in range(steps):
        logits = torch.from_numpy(logits_after(text[-1])[None])
        text.append(sample(logits, rows_after(text, 1, params), processors).item())
    return text[len(PROMPT) :]


@pytest.mark.parametrize("rule", ["coupled", "rejection"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("wrong_at", [0, 1, 3, 6])
def test_a_processor_sees_the_drafts_before_its_row(rule, temperature, wrong_at):
    params = SamplingParams(temperature=temperature)
    processors = (*PROCESSORS, OncePerText())
    truth = plain(7, params, processors)
    assert len(set(truth + PROMPT)) == 9
    drafts = truth[:6]
    if wrong_at < 6:
        drafts[wrong_at] = PROMPT[0]  # forbidden, whatever the model likes
    text = PROMPT + drafts
    logits = torch.from_numpy(np.stack([logits_after(token) for token in text[1:]]))
    (emitted,) = verify(logits, rows_after(text, 7, params), [drafts], None, rule, processors)
    if rule == "coupled" or temperature == 0.0:
        assert emitted == truth[: wrong_at + 1]
    assert PROMPT[0] not in emitted
    assert len(set(emitted)) == len(emitted)


@pytest.mark.parametrize("rule", ["coupled", "rejection"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_min_tokens_forbids_stop_tokens_at_each_row_that_is_too_early(rule, temperature):
    # The model wants the stop token everywhere, and the drafter guesses so.
    params = SamplingParams(temperature=temperature, min_tokens=4)
    logits = torch.zeros(6, VOCAB)
    logits[:, STOP] = 60.0
    logits[:, 7] = 30.0
    text = [*PROMPT, 7, 7, 7, 7, STOP]
    assert verify(logits, rows_after(text, 6, params), [text[2:]], None, rule) == [[7, 7, 7, 7, STOP, STOP]]
    text = [*PROMPT, 7, STOP, 7]
    assert verify(logits[:4], rows_after(text, 4, params), [text[2:]], None, rule) == [[7, 7]]


def test_min_tokens_forbids_nothing_but_the_stop_tokens():
    logits = torch.zeros(1, VOCAB)
    logits[0, VOCAB - 1] = 9.0
    params = SamplingParams(temperature=0.0, min_tokens=4)
    assert sample(logits, rows_after([*PROMPT], 1, params)).item() == VOCAB - 1


def test_min_tokens_that_leaves_nothing_to_sample_yields_no_token():
    rows = SamplingRows.from_params(
        [SamplingParams(min_tokens=1)], [0], [1], num_prompt_tokens=1, stop_token_ids=frozenset({0, 1})
    )
    assert sample(torch.zeros(1, 2), rows).item() == NO_TOKEN


def test_the_caller_keeps_its_logits():
    logits = torch.zeros(1, VOCAB)
    sample(logits, rows_after(PROMPT, 1, SamplingParams(min_tokens=4)), (*PROCESSORS, OncePerText()))
    assert torch.equal(logits, torch.zeros(1, VOCAB))


def test_a_history_that_no_processor_asks_for_is_never_built():
    def history(row):
        raise AssertionError("asked for")

    rows = SamplingRows.from_params([SamplingParams(min_tokens=2)], [0], [1], history=history)
    sample(torch.zeros(1, VOCAB), rows)
