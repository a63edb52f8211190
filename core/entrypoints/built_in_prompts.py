"""Prompts that are always there: one of each category that Spec-Bench has."""

from __future__ import annotations

from collections.abc import Sequence

from .prompt_files import FilePrompt

BUILT_IN_PROMPTS: Sequence[FilePrompt] = (
    FilePrompt(
        "lighthouse",
        "writing",
        "Write a story of about 100 words about a lighthouse keeper and a fox.",
    ),
    FilePrompt(
        "ferryman",
        "roleplay",
        "You are a ferryman who has crossed the same river for forty years and is proud of it. A traveller asks you "
        "why nobody has ever built a bridge here. Answer in your own words.",
    ),
    FilePrompt(
        "races",
        "reasoning",
        "Anna finished before Ben. Clara finished after Ben but before Dora. Who came last, and who came second? "
        "Go through it step by step.",
    ),
    FilePrompt(
        "squares",
        "math",
        "List the whole numbers from 1 to 20, each with its square, and say which of the squares are even.",
    ),
    FilePrompt(
        "linked-list",
        "coding",
        "Write a short Python function that reverses a linked list, and explain it.",
    ),
    FilePrompt(
        "orders",
        "extraction",
        "From the text, make a list of the orders with customer, item, number and price. Text: On Monday the bakery "
        "Miller ordered 12 sacks of flour at 19.50 each. On Tuesday the café Sonne ordered 4 boxes of tea at 7.25 "
        "each, and the bakery Miller another 3 sacks of flour at 20.00 each. On Friday the school ordered 30 bottles "
        "of apple juice at 1.80 each.",
    ),
    FilePrompt(
        "sky",
        "stem",
        "Why is the sky blue during the day and red at sunset? Explain the physics to a student.",
    ),
    FilePrompt(
        "printing",
        "humanities",
        "How did the printing press change who could take part in public debate? Name three effects, each with an "
        "example.",
    ),
    FilePrompt(
        "letter",
        "translation",
        "Translate into English: Der Brief kam erst am Abend. Sie las ihn zweimal, legte ihn auf den Tisch und ging "
        "hinaus in den Garten, wo es schon dunkel war.",
    ),
    FilePrompt(
        "caches",
        "summarization",
        "Summarize in three sentences: A cache keeps copies of data that is expensive to fetch or to compute. A hit "
        "costs little; a miss costs as much as having no cache, and a little more. Whether a cache pays therefore "
        "depends on how often it hits, and on how much a hit saves. Every cache must also decide what to throw away "
        "when it is full. Throwing away what was not used for the longest time is a good rule as long as the work "
        "repeats itself, and a bad one for a program that reads a large file once from beginning to end. And every "
        "cache must notice when a copy is out of date. Some caches ask the source each time, which costs a part of "
        "what they save; others trust a copy for a fixed time and are sometimes wrong.",
    ),
    FilePrompt("tides", "qa", "Why are there two high tides a day although the moon passes only once?"),
    FilePrompt(
        "tickets",
        "math_reasoning",
        "A theatre sells 240 tickets for one evening. A third of them cost 18 euros, a quarter cost 25 euros, and the "
        "others cost 40 euros. How much does the theatre take in? Show each step.",
    ),
    FilePrompt(
        "bridge",
        "rag",
        "Answer the question from the passages alone.\n"
        "Passage 1: The old bridge of Harsk was built of oak in 1412 and burnt down in 1587. For sixty years people "
        "crossed the river by ferry.\n"
        "Passage 2: The stone bridge of Harsk was paid for by a toll on salt. Its builder, Ilse Tarn, asked for no "
        "wage, but for the right to fish from its middle arch.\n"
        "Passage 3: In Harsk, the market is held on the eastern bank on Thursdays.\n"
        "Question: Who built the stone bridge, how was it paid for, and what stood there before?",
    ),
)
"""Used when no file is given."""
