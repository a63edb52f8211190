"""One line in the log, now and then, that says how well drafting goes."""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Callable

from .stats import EngineStats

logger = logging.getLogger(__name__)


class PeriodicLogLine:
    """Logs what happened since the line before.

    Args:
        stats: of the engine.
        method: name of the proposer; None for plain decoding.
        interval_seconds: least time between two lines.
        clock: seconds that only go up.
    """

    def __init__(
        self,
        stats: EngineStats,
        method: str | None,
        *,
        interval_seconds: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stats = stats
        self._method = method
        self._interval_seconds = interval_seconds
        self._clock = clock
        self._before = copy.deepcopy(stats)
        self._time_before = clock()

    def poll(self) -> str | None:
        """Log a line and return it, if one is due and a step has run since the last; else return None."""
        now = self._clock()
        seconds = now - self._time_before
        if seconds < self._interval_seconds or self._stats.num_steps == self._before.num_steps:
            return None
        line = self._format(self._stats.since(self._before), seconds)
        self._before = copy.deepcopy(self._stats)
        self._time_before = now
        logger.info(line)
        return line

    def _format(self, recent: EngineStats, seconds: float) -> str:
        spec = recent.spec
        parts = [
            f"generation {spec.num_emitted_tokens / seconds:.1f} tokens/s",
            f"running {recent.num_running}, waiting {recent.num_waiting}",
            f"verify {recent.verify_seconds:.2f} s, draft {recent.draft_seconds:.2f} s, "
            f"other {recent.other_seconds:.2f} s",
        ]
        if spec.num_drafts:
            reached = zip(spec.acceptance_rate_per_pos, spec.num_draft_tokens_per_pos, strict=True)
            rates = " ".join(f"{rate:.2f}" for rate, drafted in reached if drafted)
            parts += [
                f"method {self._method}",
                f"mean acceptance length {spec.mean_acceptance_length:.2f}",
                f"accepted {spec.num_accepted_tokens / seconds:.1f} tokens/s, "
                f"drafted {spec.num_draft_tokens / seconds:.1f} tokens/s",
                f"acceptance {spec.acceptance_rate:.0%}, per position {rates}",
            ]
        if recent.num_trimmed_draft_tokens:
            parts.append(
                f"trimmed {recent.num_trimmed_draft_tokens / seconds:.1f} tokens/s "
                f"({recent.num_shadow_drafts} whole drafts)"
            )
        if recent.num_skipped_drafts:
            skipped = ", ".join(f"{n} by {reason}" for reason, n in sorted(recent.num_skipped_drafts.items()))
            parts.append(f"drafts skipped: {skipped}")
        if recent.num_preemptions:
            parts.append(f"preemptions {recent.num_preemptions}")
        if recent.num_plugin_errors:
            parts.append(f"plugin errors {recent.num_plugin_errors}")
        return "; ".join(parts)
