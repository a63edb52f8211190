"""Run one made-up request through the runner, so that everything is compiled before the first real one."""

from __future__ import annotations

from ..api import SamplingParams
from ..engine.outputs import CachedRequestData, NewRequestData, SchedulerOutput
from .input_batch import InputBatch
from .model_runner import ModelRunner

_REQUEST_ID = "warm-up"


def warm_up(runner: ModelRunner, batch: InputBatch, *, num_drafts: int) -> None:
    """Compute one token, then verify `num_drafts` drafts; leave nothing but garbage in free blocks.

    The proposer is not asked; it has `dummy_run`. No request may be running.
    """
    num_blocks = -(-(2 + num_drafts) // batch.block_size)
    new = NewRequestData(
        request_id=_REQUEST_ID,
        token_ids=[0],
        num_prompt_tokens=1,
        sampling_params=SamplingParams(top_k=2, top_p=0.9),
        seed=0,
        stop_token_ids=frozenset(),
        block_ids=range(num_blocks),
        state_index=0,
        num_computed_tokens=0,
    )
    runner.execute(
        SchedulerOutput(
            scheduled_new_reqs=[new],
            scheduled_cached_reqs=[],
            num_scheduled_tokens={_REQUEST_ID: 1},
            scheduled_spec_decode_tokens={},
        )
    )
    if num_drafts > 0:
        runner.execute(
            SchedulerOutput(
                scheduled_new_reqs=[],
                scheduled_cached_reqs=[
                    CachedRequestData(request_id=_REQUEST_ID, new_block_ids=[], num_computed_tokens=1)
                ],
                num_scheduled_tokens={_REQUEST_ID: 1 + num_drafts},
                scheduled_spec_decode_tokens={_REQUEST_ID: [0] * num_drafts},
            )
        )
    runner.take_draft_token_ids({})
    batch.remove(_REQUEST_ID)
