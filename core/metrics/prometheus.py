"""Counters for Prometheus, read from the engines' stats whenever somebody scrapes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from weakref import WeakKeyDictionary

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry

from .stats import EngineStats

_Read = Callable[[EngineStats], float]
_ReadLabelled = Callable[[EngineStats], Mapping[str, float]]

_COUNTERS: Mapping[str, tuple[str, _Read]] = {
    "spec_decode_num_drafts": ("Request-steps in which drafts were verified.", lambda s: s.spec.num_drafts),
    "spec_decode_num_draft_tokens": ("Drafts verified.", lambda s: s.spec.num_draft_tokens),
    "spec_decode_num_accepted_tokens": ("Drafts that became output.", lambda s: s.spec.num_accepted_tokens),
    "spec_decode_num_verified_tokens": (
        "Output tokens of the request-steps that num_drafts counts, bonus included.",
        lambda s: s.spec.num_verified_tokens,
    ),
    "spec_decode_num_trimmed_draft_tokens": (
        "Tokens drafted and then not verified, because it would not have paid.",
        lambda s: s.num_trimmed_draft_tokens,
    ),
    "spec_decode_num_shadow_drafts": (
        "Request-steps whose whole draft was not verified for that reason.",
        lambda s: s.num_shadow_drafts,
    ),
    "generation_tokens": ("Output tokens.", lambda s: s.spec.num_emitted_tokens),
    "prompt_tokens": ("Prompt tokens of admitted requests.", lambda s: s.num_prompt_tokens),
    "prompt_tokens_cached": ("Prompt tokens found in the prefix cache.", lambda s: s.num_cached_tokens),
    "num_preemptions": ("Times a request lost its KV blocks.", lambda s: s.num_preemptions),
    "num_steps": ("Forwards of the target.", lambda s: s.num_steps),
    "plugin_errors": ("Times a plugin broke its contract or raised.", lambda s: s.num_plugin_errors),
    "model_seconds": ("Seconds inside the target; a part of verify_seconds.", lambda s: s.model_seconds),
    "verify_seconds": ("Seconds in the runner's steps.", lambda s: s.verify_seconds),
    "draft_seconds": ("Seconds in the proposer.", lambda s: s.draft_seconds),
    "other_seconds": ("Seconds in the engine around both.", lambda s: s.other_seconds),
}

_LABELLED_COUNTERS: Mapping[str, tuple[str, str, _ReadLabelled]] = {
    "spec_decode_num_draft_tokens_per_pos": (
        "Request-steps whose draft reached the position.",
        "position",
        lambda s: _by_position(s.spec.num_draft_tokens_per_pos),
    ),
    "spec_decode_num_accepted_tokens_per_pos": (
        "Drafts that became output, by position in the draft.",
        "position",
        lambda s: _by_position(s.spec.num_accepted_tokens_per_pos),
    ),
    "spec_decode_skipped_drafts": (
        "Request-steps without a draft budget, by the limit that cut it.",
        "reason",
        lambda s: dict(s.num_skipped_drafts),
    ),
    "requests_finished": ("Requests that ended, by reason.", "reason", lambda s: dict(s.num_finished)),
}

_GAUGES: Mapping[str, tuple[str, _Read]] = {
    "num_requests_running": ("Requests in the batch.", lambda s: s.num_running),
    "num_requests_waiting": ("Requests in the queue.", lambda s: s.num_waiting),
}

_collectors: WeakKeyDictionary[CollectorRegistry, _EngineCollector] = WeakKeyDictionary()
_lock = threading.Lock()


def export_stats(stats: EngineStats, method: str, registry: CollectorRegistry) -> None:
    """Show an engine's counts in `registry` from now on, as `outrider:...{method="..."}`.

    Several engines may share a registry; those with the same method are added up. Counts stay when an engine is gone,
    as counters must never fall.
    """
    with _lock:
        collector = _collectors.get(registry)
        if collector is None:
            collector = _EngineCollector()
            registry.register(collector)
            _collectors[registry] = collector
        collector.engines.append((method, stats))


class _EngineCollector(Collector):
    """All engines of one registry. A registry takes each metric name only once, so they share this object."""

    def __init__(self) -> None:
        self.engines: list[tuple[str, EngineStats]] = []

    def collect(self) -> Iterator[Metric]:
        """Yield every metric; called at each scrape."""
        for name, (text, read) in _COUNTERS.items():
            counter = CounterMetricFamily(f"outrider:{name}", text, labels=["method"])
            for method, value in self._sum_by_method(read).items():
                counter.add_metric([method], value)
            yield counter
        for name, (text, label, read_labelled) in _LABELLED_COUNTERS.items():
            counter = CounterMetricFamily(f"outrider:{name}", text, labels=["method", label])
            sums: dict[tuple[str, str], float] = {}
            for method, stats in list(self.engines):
                for label_value, value in read_labelled(stats).items():
                    sums[method, label_value] = sums.get((method, label_value), 0.0) + value
            for labels, value in sums.items():
                counter.add_metric(labels, value)
            yield counter
        for name, (text, read) in _GAUGES.items():
            gauge = GaugeMetricFamily(f"outrider:{name}", text, labels=["method"])
            for method, value in self._sum_by_method(read).items():
                gauge.add_metric([method], value)
            yield gauge

    def _sum_by_method(self, read: _Read) -> dict[str, float]:
        sums: dict[str, float] = {}
        for method, stats in list(self.engines):
            sums[method] = sums.get(method, 0.0) + read(stats)
        return sums


def _by_position(counts: list[int]) -> dict[str, float]:
    return {str(position): count for position, count in enumerate(counts)}
