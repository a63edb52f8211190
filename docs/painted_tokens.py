"""Draws docs/painted_tokens.svg, the picture of README.md. Needs the demo model and the plugins of this repository."""

from __future__ import annotations

import re
import sys
import time
from io import StringIO
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

from outrider import LLM, SamplingParams
from outrider.entrypoints.generate import stats_line
from outrider.entrypoints.painting import TokenPainter, legend
from outrider.entrypoints.prompts import user_turn

COMMAND = "$ outrider generate --model smollm2 --method ngram --show-drafts"
QUESTION = "Write a Python class Stack with push, pop and peek, then an example that uses it."


def main(question: str = QUESTION) -> None:
    """Generate, record, write."""
    console = Console(record=True, width=96, file=StringIO(), force_terminal=True, highlight=False)
    console.print(Text(f'{COMMAND} \\\n    "{question}"\n'))
    with LLM("smollm2", speculative_config={"method": "ngram"}) as llm:
        painter = TokenPainter(llm.get_tokenizer())
        painted = Text()
        start = time.perf_counter()
        for output in llm.stream(
            user_turn(question, llm.get_tokenizer()), SamplingParams(temperature=0.0, max_tokens=200)
        ):
            painted.append_text(painter.paint(output.outputs[0]))
        console.print(painted, "\n")
        console.print(legend(painter.counts))
        line = stats_line(time.perf_counter() - start, llm.stats.spec)
    console.print(line)
    print(painted.plain, line, dict(painter.counts), sep="\n")
    # A picture must not load fonts from elsewhere.
    plain_format = re.sub(r"@font-face \{\{.*?\}\}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    path = Path(__file__).with_name("painted_tokens.svg")
    path.write_text(console.export_svg(title="outrider", code_format=plain_format), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
