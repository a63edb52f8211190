"""Run made-up requests through the runner: to have everything compiled, and to know what a step costs."""

from __future__ import annotations

import time
from collections.abc import Callable

from ..api import SamplingParams
from ..engine.outputs import NewRequestData, SchedulerOutput
from .input_batch import InputBatch
from .model_runner import ModelRunner

_MOST_ROWS = 64
_NUM_ROUNDS = 3


def warm_up(runner: ModelRunner, batch: InputBatch, *, num_drafts: int) -> None:
    """Compute one token, then verify `num_drafts` drafts; leave nothing but garbage in free blocks.

    The proposer is not asked; it has `dummy_run`. No request may be running.
    """
    for num_rows in dict.fromkeys((1, 1 + num_drafts)):
        _execute(runner, batch, num_rows, num_drafts, SamplingParams(top_k=2, top_p=0.9))


def measure_verify_cost(
    runner: ModelRunner,
    batch: InputBatch,
    *,
    num_drafts: int,
    num_blocks: int,
    seconds: float = 0.5,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[int, float]:
    """Return what a forward takes by its number of rows, all of which decide a token; call it after `warm_up`.

    The least time of several rounds, since whatever else the machine does can only add to it. If the model is slow
    there are fewer rounds, and fewer row counts.

    Args:
        num_drafts: most drafts of a request, so that `1 + num_drafts` of the rows may be one request's.
        num_blocks: KV blocks that there are.
        seconds: after this time no further measurement begins, but for the first of the most important row counts.
    """
    blocks_per_request = _num_blocks(batch, 1 + num_drafts)
    num_requests = max(1, min(batch.token_ids.shape[0], num_blocks // blocks_per_request))
    most = min(num_requests * (1 + num_drafts), _MOST_ROWS)
    first = [n for n in dict.fromkeys((1, 1 + num_drafts, 2, 4, 16)) if n <= most]
    others = [n for n in (6, 32, 3, 64, 12, 24, 48) if n <= most and n not in first]
    begin = clock()
    least: dict[int, float] = {}
    for num_rows in _NUM_ROUNDS * first + _NUM_ROUNDS * others:
        if len(least) >= len(first) and clock() - begin > seconds:
            break
        before = clock()
        _execute(runner, batch, num_rows, num_drafts, SamplingParams(temperature=0.0))
        least[num_rows] = min(clock() - before, least.get(num_rows, float("inf")))
    return least


def _num_blocks(batch: InputBatch, num_tokens: int) -> int:
    return -(-(1 + num_tokens) // batch.block_size)


def _execute(
    runner: ModelRunner, batch: InputBatch, num_rows: int, num_drafts: int, sampling_params: SamplingParams
) -> None:
    """Run requests of one token and up to `num_drafts` drafts, `num_rows` rows in all, and remove them."""
    rows_of: dict[str, int] = {}
    while num_rows > 0:
        rows_of[f"warm-up-{len(rows_of)}"] = min(1 + num_drafts, num_rows)
        num_rows -= 1 + num_drafts
    blocks_per_request = _num_blocks(batch, 1 + num_drafts)
    runner.execute(
        SchedulerOutput(
            scheduled_new_reqs=[
                NewRequestData(
                    request_id=request_id,
                    token_ids=[0],
                    num_prompt_tokens=1,
                    sampling_params=sampling_params,
                    seed=0,
                    stop_token_ids=frozenset(),
                    block_ids=range(index * blocks_per_request, (index + 1) * blocks_per_request),
                    state_index=index,
                    num_computed_tokens=0,
                )
                for index, request_id in enumerate(rows_of)
            ],
            scheduled_cached_reqs=[],
            num_scheduled_tokens=rows_of,
            scheduled_spec_decode_tokens={
                request_id: [0] * (num_rows - 1) for request_id, num_rows in rows_of.items() if num_rows > 1
            },
        )
    )
    runner.take_draft_token_ids({})
    for request_id in rows_of:
        batch.remove(request_id)
