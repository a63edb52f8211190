"""The line in the log: when it comes and what it says."""

from __future__ import annotations

import logging

import pytest

from outrider.metrics.log_line import PeriodicLogLine
from outrider.metrics.stats import EngineStats


class Clock:
    """Stands still until told."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_line_comes_when_due_and_tells_what_happened_since_the_last(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock, stats = Clock(), EngineStats()
    stats.spec.observe(num_draft_tokens=9, num_accepted_tokens=0, num_emitted_tokens=1)
    line = PeriodicLogLine(stats, "oracle", interval_seconds=10, clock=clock)
    stats.num_steps += 1
    stats.spec.observe(num_draft_tokens=4, num_accepted_tokens=2, num_emitted_tokens=3)
    stats.spec.observe(num_draft_tokens=0, num_accepted_tokens=0, num_emitted_tokens=1)
    stats.verify_seconds, stats.draft_seconds, stats.other_seconds = 7.0, 2.0, 0.5
    stats.num_running, stats.num_waiting = 3, 1
    clock.now += 9.9
    assert line.poll() is None
    clock.now += 0.1
    with caplog.at_level(logging.INFO, logger="outrider"):
        text = line.poll()
    assert text == (
        "generation 0.4 tokens/s; running 3, waiting 1; verify 7.00 s, draft 2.00 s, other 0.50 s; method oracle; "
        "mean acceptance length 3.00; accepted 0.2 tokens/s, drafted 0.4 tokens/s; "
        "acceptance 50%, per position 1.00 1.00 0.00 0.00"
    )
    assert caplog.messages == [text]
    clock.now += 10
    assert line.poll() is None  # nothing has happened
    stats.num_steps += 1
    stats.spec.num_emitted_tokens += 5
    text = line.poll()
    assert text is not None
    assert text.startswith("generation 0.5 tokens/s; running 3, waiting 1; verify 0.00 s")
    assert "acceptance" not in text


def test_what_goes_wrong_is_said_only_when_it_does() -> None:
    clock, stats = Clock(), EngineStats()
    line = PeriodicLogLine(stats, "oracle", interval_seconds=0, clock=clock)
    stats.num_steps = stats.num_preemptions = 1
    stats.num_plugin_errors = 2
    stats.num_skipped_drafts.update(max_tokens=3, max_positions=4)
    clock.now += 1
    text = line.poll()
    assert text is not None
    assert text.endswith(
        "; drafts skipped: 4 by max_positions, 3 by max_tokens; preemptions 1; plugin errors 2"
    )


def test_drafts_that_were_not_worth_verifying_are_told() -> None:
    clock, stats = Clock(), EngineStats()
    line = PeriodicLogLine(stats, "oracle", interval_seconds=0, clock=clock)
    stats.num_steps = 1
    stats.num_trimmed_draft_tokens, stats.num_shadow_drafts = 8, 3
    clock.now += 2
    text = line.poll()
    assert text is not None
    assert text.endswith("; trimmed 4.0 tokens/s (3 whole drafts)")
