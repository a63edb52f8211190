"""One page from the files of `outrider bench --json`: `python benchmarks/report.py report.html a.json b.json`.

The page needs nothing beside itself: its plots are inside. Its tables are also written as Markdown, beside it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader

FLOOR = 0.97
"""A speed-up below this is marked: drafting costs time there, beyond what one repeat differs from the next."""

Document = Mapping[str, Any]
"""What `outrider bench --json` writes."""


@dataclass(frozen=True, slots=True)
class SpeedUp:
    """A speed-up over plain decoding: pooled, of the lowest and highest repeat, of each batch's fastest repeats."""

    pooled: float
    low: float
    high: float
    best: float

    @classmethod
    def of(cls, category: Mapping[str, Any]) -> SpeedUp | None:
        """Read a category's summary; None if plain decoding was not measured."""
        if category["speed_up"] is None:
            return None
        repeats = category["speed_up_per_repeat"]
        return cls(category["speed_up"], min(repeats), max(repeats), category["speed_up_of_best"])

    def __str__(self) -> str:
        return f"{self.pooled:.2f} ({self.low:.2f} to {self.high:.2f})"

    @property
    def is_low(self) -> bool:
        """Whether drafting made it slower."""
        return self.pooled < FLOOR


@dataclass(frozen=True, slots=True)
class Worst:
    """The category in which a method gains least."""

    category: str
    speed_up: SpeedUp


@dataclass(frozen=True, slots=True)
class Run:
    """One file: all methods at one temperature and batch size."""

    document: Document

    @property
    def title(self) -> str:
        """What tells it from the others."""
        settings = self.document["settings"]
        temperature = settings["sampling_params"]["temperature"]
        return f"temperature {temperature:g}, batch size {settings['batch_size']}"

    @property
    def methods(self) -> list[Mapping[str, Any]]:
        """The summaries, in the order of the call."""
        return list(self.document["methods"])

    @property
    def drafting(self) -> list[Mapping[str, Any]]:
        """The summaries of the methods that draft."""
        plain = [
            name for name, one in self.document["settings"]["speculative_configs"].items() if one is None
        ]
        return [one for one in self.methods if one["method"] not in plain]

    @property
    def num_prompts(self) -> int:
        """Of all categories, in one repeat."""
        return sum(one["num_prompts"] for one in self.methods[0]["categories"])

    @property
    def categories(self) -> list[str]:
        """In the order of the prompts."""
        return [one["category"] for one in self.methods[0]["categories"]]

    def speed_ups(self, method: Mapping[str, Any]) -> dict[str, SpeedUp]:
        """By category; empty without plain decoding."""
        found = {one["category"]: SpeedUp.of(one) for one in method["categories"]}
        return {category: one for category, one in found.items() if one is not None}

    def worst(self, method: Mapping[str, Any]) -> Worst | None:
        """The category with the lowest speed-up."""
        by_category = self.speed_ups(method)
        if not by_category:
            return None
        category = min(by_category, key=lambda name: by_category[name].pooled)
        return Worst(category, by_category[category])

    def category_rows(self) -> list[tuple[str, int, list[tuple[Mapping[str, Any], SpeedUp | None]]]]:
        """Per category: its name, its prompts, and for each method the summary and the speed-up."""
        rows = []
        for i, category in enumerate(self.categories):
            cells = [method["categories"][i] for method in self.methods]
            rows.append((category, cells[0]["num_prompts"], [(cell, SpeedUp.of(cell)) for cell in cells]))
        return rows

    def milliseconds(self, method: Mapping[str, Any], per: str) -> list[float]:
        """Model, runner, draft, other; per `num_steps` or per `num_tokens`."""
        parts = (method[f"{part}_seconds"] for part in ("model", "runner", "draft", "other"))
        return [1e3 * seconds / max(1, method[per]) for seconds in parts]


def draw(run: Run) -> dict[str, str]:
    """The plots of a run as SVG; those for which there are no figures are missing."""
    import plots

    drawn = {
        "times": plots.times({one["method"]: run.milliseconds(one, "num_tokens") for one in run.methods})
    }
    bars = {one["method"]: list(run.speed_ups(one).values()) for one in run.drafting if run.speed_ups(one)}
    if bars:
        drawn["speed_ups"] = plots.speed_ups(
            run.categories,
            {name: [(one.pooled, one.low, one.high) for one in values] for name, values in bars.items()},
            FLOOR,
        )
    rates = {
        one["method"]: one["acceptance_rate_per_pos"] for one in run.methods if one["acceptance_rate_per_pos"]
    }
    if rates:
        drawn["acceptance"] = plots.acceptance(rates)
    return drawn


def render(
    documents: Sequence[Document],
    plots: Sequence[Mapping[str, str]],
    command: str | None,
    template: str = "report.html.jinja",
) -> str:
    """The page.

    Args:
        plots: of each document, as `draw` gives them.
        command: what made the files, if it was one command.
        template: file beside this one; the other is `report.md.jinja`.
    """
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=".html" in template,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    runs = [Run(document) for document in documents]
    return environment.get_template(template).render(
        runs=list(zip(runs, plots, strict=True)),
        first=documents[0],
        machines=list(
            {json.dumps(one["machine"] | {"date": ""}): one["machine"] for one in documents}.values()
        ),
        command=command,
        floor=FLOOR,
    )


def write_report(target: Path, sources: Sequence[Path], command: str | None = None) -> None:
    """Read `sources`, write the page to `target` and its tables to the same name with `.md`."""
    documents = [json.loads(source.read_text(encoding="utf-8")) for source in sources]
    plots = [draw(Run(document)) for document in documents]
    target.write_text(render(documents, plots, command), encoding="utf-8")
    tables = render(documents, plots, command, "report.md.jinja")
    target.with_suffix(".md").write_text(tables, encoding="utf-8")


def main() -> None:
    """Write a report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("target", type=Path, help="the page")
    parser.add_argument("sources", type=Path, nargs="+", help="files of `outrider bench --json`")
    args = parser.parse_args()
    write_report(args.target, args.sources)


if __name__ == "__main__":
    main()
