"""What plugins and callers hear of a request, however it ends."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count

import pytest

from outrider.api import ProposerError, SamplingParams
from outrider.engine.outputs import DraftTokenIds, ModelRunnerOutput, SchedulerOutput
from outrider.engine.request_output import RequestOutput

from .fake_runner import FakeRunner, oracle
from .harness import Harness, LetterTokenizer, plain


def truth(prompt: list[int], max_tokens: int) -> list[int]:
    return plain(prompt, SamplingParams(max_tokens=max_tokens), 0, max_len=64).token_ids


def test_a_request_is_added_committed_and_finished_in_this_order() -> None:
    harness = Harness(num_speculative_tokens=3, drafter=oracle())
    harness.add("r", [1, 2], max_tokens=5, seed=0)
    output = harness.run()["r"].outputs[0].token_ids
    assert harness.events.log == [
        ("added", "r", [1, 2]),
        ("committed", "r", output[:1]),
        ("committed", "r", output[1:]),
        ("finished", "r", None),
    ]


def test_abort_while_running_frees_the_blocks_at_once_and_keeps_the_text() -> None:
    harness = Harness(tokenizer=LetterTokenizer())
    harness.add("r", [1, 2], max_tokens=50, seed=0)
    harness.add("s", [1, 2], max_tokens=5, seed=0)
    harness.step()
    harness.step()
    output = harness.engine.abort_request("r")
    assert output is not None
    assert (output.finished, output.outputs[0].finish_reason) == (True, "abort")
    assert output.outputs[0].token_ids == truth([1, 2], 2)
    assert len(output.outputs[0].text) == 2
    assert output.outputs[0].new_token_ids == []
    assert harness.events.names("r") == ["added", "finished"]
    assert harness.scheduler.requests.keys() == {"s"}
    assert harness.engine.abort_request("r") is None
    assert harness.run()["s"].outputs[0].token_ids == truth([1, 2], 5)
    assert harness.runner.plans[2].finished_req_ids == {"r"}
    assert harness.events.names("r") == ["added", "finished"]
    assert harness.kv_cache.num_free_blocks == 64


def test_abort_before_it_ever_ran_tells_nobody() -> None:
    harness = Harness(max_num_seqs=1)
    harness.add("r", [1, 2], max_tokens=5)
    harness.add("s", [1, 2], max_tokens=5)
    harness.step()
    harness.abort("s")
    outputs = harness.run()
    assert outputs["s"].outputs[0].finish_reason == "abort"
    assert harness.events.names("s") == []
    assert all("s" not in plan.finished_req_ids for plan in harness.runner.plans)
    harness.assert_clean()


def test_abort_while_waiting_after_a_preemption() -> None:
    harness = Harness(num_blocks=6, block_size=4, num_speculative_tokens=2, drafter=oracle())
    harness.add("a", [1, 2, 3, 4, 5], max_tokens=14, seed=0)
    harness.add("b", [6, 7, 8, 9], max_tokens=14, seed=0)
    while not harness.events.names("b").count("preempted"):
        harness.step()
    harness.abort("b")
    outputs = harness.run()
    assert (
        outputs["b"].outputs[0].token_ids == truth([6, 7, 8, 9], 14)[: len(outputs["b"].outputs[0].token_ids)]
    )
    assert outputs["a"].outputs[0].token_ids == truth([1, 2, 3, 4, 5], 14)
    assert harness.events.names("b") == ["added", "preempted", "finished"]
    harness.assert_clean()


def test_an_id_may_be_used_again_when_its_request_is_over() -> None:
    harness = Harness()
    harness.add("r", [1, 2], max_tokens=1, seed=0)
    harness.run()
    harness.add("r", [3, 4], max_tokens=2, seed=0)
    assert harness.run()["r"].outputs[0].token_ids == truth([3, 4], 2)
    assert harness.events.names("r") == ["added", "finished", "added", "finished"]
    assert harness.runner.plans[1].finished_req_ids == {"r"}


def test_a_failed_forward_ends_its_requests_and_leaves_a_usable_engine() -> None:
    harness = Harness(max_num_seqs=2)
    for name in ("a", "b", "waits"):
        harness.add(name, [1, 2, 3, 4, 5], max_tokens=4, seed=0)
    harness.step()
    harness.runner.fail_at = 2
    with pytest.raises(RuntimeError, match="the forward failed"):
        harness.engine.step()
    assert harness.scheduler.requests.keys() == {"waits"}
    assert harness.kv_cache.num_free_blocks == 64
    assert harness.events.names("a") == harness.events.names("b") == ["added", "finished"]
    assert harness.stats.num_finished == {"error": 2}
    harness.engine.post_step()
    assert harness.run()["waits"].outputs[0].token_ids == truth([1, 2, 3, 4, 5], 4)
    assert harness.runner.plans[-1].finished_req_ids == set()
    assert harness.kv_cache.num_free_blocks == 64


class OneFails(FakeRunner):
    """Reports that one request cannot go on."""

    def execute(self, plan: SchedulerOutput) -> ModelRunnerOutput:
        result = super().execute(plan)
        if len(self.plans) != 2:
            return result
        sampled = {name: tokens for name, tokens in result.sampled_token_ids.items() if name != "bad"}
        return ModelRunnerOutput(sampled_token_ids=sampled, errors={"bad": "logits are not finite"})


def test_a_request_that_cannot_go_on_ends_alone_and_leaves_nothing_to_find() -> None:
    harness = Harness(block_size=2)
    runner = harness.runner
    harness.engine.runner = OneFails(64, 2, 64, 8, 64)
    harness.add("bad", [1, 2, 3], max_tokens=9, seed=0)
    harness.add("good", [3, 4], max_tokens=4, seed=0)
    outputs = harness.run()
    assert runner.plans == []
    assert (outputs["bad"].finished, outputs["bad"].error) == (True, "logits are not finite")
    assert outputs["bad"].outputs[0].finish_reason == "error"
    assert outputs["bad"].outputs[0].token_ids == truth([1, 2, 3], 1)
    assert outputs["good"].outputs[0].token_ids == truth([3, 4], 4)
    assert outputs["good"].error is None
    harness.assert_clean()
    again = [1, 2, 3, *truth([1, 2, 3], 1), 5]
    harness.add("again", again, max_tokens=1, seed=0)
    assert harness.run()["again"].num_cached_tokens == 2  # the block that the failed step filled is not found


class BrokenProposer(FakeRunner):
    """Breaks its contract, with the policy to raise."""

    def take_draft_token_ids(self, draft_budgets: Mapping[str, int]) -> DraftTokenIds:
        raise ProposerError("no", plugin="p", distribution="d 1")


def test_a_proposer_error_is_counted_and_the_requests_go_on() -> None:
    harness = Harness(num_speculative_tokens=2)
    harness.engine.runner = BrokenProposer(64, 4, 64, 8, 64, 2)
    harness.add("r", [1, 2], max_tokens=3, seed=0)
    tokens: list[int] = []
    while harness.engine.has_unfinished_requests():
        for output in harness.engine.step():
            tokens += output.outputs[0].new_token_ids
        if harness.engine.has_unfinished_requests():
            with pytest.raises(ProposerError):
                harness.engine.post_step()
    assert tokens == truth([1, 2], 3)
    assert harness.stats.num_plugin_errors == 2


class CountsErrors(FakeRunner):
    """Reports contract violations that the policy skipped."""

    def take_draft_token_ids(self, draft_budgets: Mapping[str, int]) -> DraftTokenIds:
        return DraftTokenIds(num_errors=1)


def test_skipped_proposer_errors_are_counted() -> None:
    harness = Harness(num_speculative_tokens=2)
    harness.engine.runner = CountsErrors(64, 4, 64, 8, 64, 2)
    harness.add("r", [1, 2], max_tokens=4)
    harness.run()
    assert harness.stats.num_plugin_errors == 3


class DraftsForAnybody(FakeRunner):
    """Drafts for requests that nobody asked about."""

    def take_draft_token_ids(self, draft_budgets: Mapping[str, int]) -> DraftTokenIds:
        return DraftTokenIds(draft_token_ids={"gone": [1], "waits": [1], "r": [1]})


def test_drafts_for_requests_without_a_budget_are_ignored() -> None:
    harness = Harness(num_speculative_tokens=2, max_num_seqs=1)
    harness.engine.runner = DraftsForAnybody(64, 4, 64, 1, 64, 2)
    harness.add("r", [1, 2], max_tokens=4, seed=0)
    harness.add("waits", [1, 2], max_tokens=4, seed=0)
    harness.step()
    assert harness.scheduler.requests["r"].spec_token_ids == [1]
    assert harness.scheduler.requests["waits"].spec_token_ids == []
    outputs = harness.run()
    assert outputs["r"].outputs[0].token_ids == outputs["waits"].outputs[0].token_ids == truth([1, 2], 4)


def test_seconds_go_to_the_target_the_proposer_and_the_rest() -> None:
    ticks = count()
    harness = Harness(num_speculative_tokens=2, clock=lambda: float(next(ticks)))
    harness.add("r", [1, 2], max_tokens=2)
    harness.step()
    stats = harness.stats
    assert (stats.num_steps, stats.verify_seconds, stats.draft_seconds, stats.other_seconds) == (1, 1, 1, 4)
    assert stats.model_seconds == 0.5


def test_an_output_stays_what_it_was_while_its_request_goes_on() -> None:
    harness = Harness()
    harness.add("r", [1, 2], max_tokens=3, seed=0)
    first = harness.step()[0].outputs[0]
    harness.run()
    assert first.token_ids == first.new_token_ids == truth([1, 2], 1)
    assert first.token_origins == ["sampled"]
    assert first.finish_reason is None


def test_the_output_of_a_refused_request() -> None:
    output = RequestOutput.refused("r", "too long", prompt="hello")
    assert (output.finished, output.error, output.prompt) == (True, "too long", "hello")
    assert output.outputs[0].finish_reason == "error"
    assert output.outputs[0].token_ids == []
    assert output.metrics.num_drafts == 0
