"""Counters that a scrape finds, whoever shares the registry."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest

from outrider.metrics.prometheus import export_stats
from outrider.metrics.stats import EngineStats


def engine_stats() -> EngineStats:
    stats = EngineStats(
        num_steps=2,
        num_plugin_errors=1,
        num_trimmed_draft_tokens=4,
        num_shadow_drafts=3,
        draft_seconds=0.5,
        num_running=3,
    )
    stats.spec.observe(num_draft_tokens=3, num_accepted_tokens=1, num_emitted_tokens=2)
    stats.spec.observe(num_draft_tokens=1, num_accepted_tokens=1, num_emitted_tokens=2)
    stats.num_skipped_drafts["max_tokens"] += 4
    stats.num_finished["stop"] += 1
    return stats


def value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    return registry.get_sample_value(f"outrider:{name}", labels)


def test_counters_carry_the_method_and_follow_the_stats() -> None:
    registry, stats = CollectorRegistry(auto_describe=True), engine_stats()
    export_stats(stats, "oracle", registry)
    assert value(registry, "spec_decode_num_drafts_total", method="oracle") == 2
    assert value(registry, "spec_decode_num_draft_tokens_total", method="oracle") == 4
    assert value(registry, "spec_decode_num_accepted_tokens_total", method="oracle") == 2
    per_position = "spec_decode_num_accepted_tokens_per_pos_total"
    assert [value(registry, per_position, method="oracle", position=p) for p in "0123"] == [2, 0, 0, None]
    drafted = "spec_decode_num_draft_tokens_per_pos_total"
    assert [value(registry, drafted, method="oracle", position=p) for p in "012"] == [2, 1, 1]
    assert value(registry, "spec_decode_num_verified_tokens_total", method="oracle") == 4
    assert value(registry, "generation_tokens_total", method="oracle") == 4
    assert value(registry, "spec_decode_skipped_drafts_total", method="oracle", reason="max_tokens") == 4
    assert value(registry, "requests_finished_total", method="oracle", reason="stop") == 1
    assert value(registry, "plugin_errors_total", method="oracle") == 1
    assert value(registry, "spec_decode_num_trimmed_draft_tokens_total", method="oracle") == 4
    assert value(registry, "spec_decode_num_shadow_drafts_total", method="oracle") == 3
    assert value(registry, "draft_seconds_total", method="oracle") == 0.5
    assert value(registry, "num_requests_running", method="oracle") == 3
    stats.spec.observe(num_draft_tokens=1, num_accepted_tokens=0, num_emitted_tokens=1)
    assert value(registry, "spec_decode_num_drafts_total", method="oracle") == 3


def test_engines_share_a_registry_and_those_of_one_method_add_up() -> None:
    registry = CollectorRegistry(auto_describe=True)
    for method in ("oracle", "oracle", "self"):
        export_stats(engine_stats(), method, registry)
    assert value(registry, "spec_decode_num_drafts_total", method="oracle") == 4
    assert value(registry, "spec_decode_num_drafts_total", method="self") == 2
    assert value(registry, "requests_finished_total", method="oracle", reason="stop") == 2


def test_registries_do_not_see_each_other() -> None:
    first, second = CollectorRegistry(), CollectorRegistry()
    export_stats(engine_stats(), "oracle", first)
    export_stats(engine_stats(), "self", second)
    assert value(first, "num_steps_total", method="self") is None
    assert value(second, "num_steps_total", method="self") == 2


def test_the_text_format_has_every_metric_once() -> None:
    registry = CollectorRegistry()
    export_stats(engine_stats(), "oracle", registry)
    lines = generate_latest(registry).decode().splitlines()
    helps = [line.split()[2] for line in lines if line.startswith("# HELP")]
    assert len(helps) == len(set(helps)) == 22
    assert 'outrider:spec_decode_num_drafts_total{method="oracle"} 2.0' in lines
