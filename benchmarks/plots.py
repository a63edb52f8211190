"""Plots of a benchmark as SVG, small enough to stand inside a page."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot

# Text stays text, and the same figures give the same file.
matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "outrider", "font.size": 9})
TIMES = ("model", "runner", "draft", "other")


def speed_ups(
    categories: Sequence[str], methods: Mapping[str, Sequence[tuple[float, float, float]]], floor: float
) -> str:
    """Bars per category, one per method: (speed-up, lowest, highest of the repeats), and lines at 1 and at `floor`."""
    figure, axes = pyplot.subplots(figsize=(9, 3.2), layout="constrained")
    width = 0.8 / max(1, len(methods))
    for i, (method, values) in enumerate(methods.items()):
        at = [x + (i - (len(methods) - 1) / 2) * width for x in range(len(categories))]
        means = [mean for mean, _, _ in values]
        errors = [
            [max(0.0, mean - low) for mean, low, _ in values],
            [max(0.0, high - mean) for mean, _, high in values],
        ]
        axes.bar(at, means, width, label=method, yerr=errors, error_kw={"elinewidth": 1})
    axes.axhline(1, color="black", linewidth=0.8)
    axes.axhline(floor, color="black", linewidth=0.8, linestyle=":")
    axes.set_xticks(range(len(categories)), categories, rotation=30, ha="right")
    axes.set_ylabel("speed-up over plain")
    figure.legend(frameon=False, loc="outside upper center", ncols=4)
    return _svg(figure)


def acceptance(methods: Mapping[str, Sequence[float]]) -> str:
    """Acceptance rate against the position in the draft."""
    figure, axes = pyplot.subplots(figsize=(4.4, 2.8), layout="constrained")
    for method, rates in methods.items():
        axes.plot(range(1, len(rates) + 1), rates, marker="o", label=method)
    axes.set(xlabel="position in the draft", ylabel="accepted", ylim=(0, 1))
    axes.set_xticks(range(1, 1 + max(map(len, methods.values()))))
    figure.legend(frameon=False, loc="outside upper center", ncols=4)
    return _svg(figure)


def times(methods: Mapping[str, Sequence[float]]) -> str:
    """Milliseconds per output token, the parts of `TIMES` one upon the other."""
    figure, axes = pyplot.subplots(figsize=(4.4, 2.8), layout="constrained")
    labels = list(methods)
    bottom = [0.0] * len(labels)
    for i, part in enumerate(TIMES):
        values = [methods[label][i] for label in labels]
        axes.bar(range(len(labels)), values, 0.6, bottom=bottom, label=part)
        bottom = [a + b for a, b in zip(bottom, values, strict=True)]
    axes.set_xticks(range(len(labels)), labels, rotation=15, ha="right")
    axes.set_ylabel("ms per output token")
    figure.legend(frameon=False, loc="outside upper center", ncols=4)
    return _svg(figure)


def _svg(figure: Any) -> str:
    buffer = io.StringIO()
    # Without metadata there is no address in the file but those of the SVG name spaces.
    figure.savefig(buffer, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    pyplot.close(figure)
    text = buffer.getvalue()
    return text[text.index("<svg") :]
