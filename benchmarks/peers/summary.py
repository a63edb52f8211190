"""Turns, boiled down to figures per system and per pair of systems."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from .measure import QUIET, Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemSummary:
    """One system over all its turns.

    Attributes:
        tokens_per_second: of decoding, pooled: all tokens behind the first ones, over the seconds they took.
        repeats_tokens_per_second: the same of each repeat alone.
        best_tokens_per_second: the same of each prompt's fastest repeat; what disturbed the others is left out.
        prefill_seconds: median time to the first token of the long prompt.
        num_identical, num_compared: prompts whose tokens, in every repeat, are the reference's; 0 of 0 without one.
        num_disturbed, num_turns: turns in which others computed too, of all.
    """

    name: str
    tokens_per_second: float
    repeats_tokens_per_second: Sequence[float]
    best_tokens_per_second: float
    prefill_seconds: float | None
    num_identical: int
    num_compared: int
    num_disturbed: int
    num_turns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """How much faster one system of ours is than another system.

    Attributes:
        decode: pooled tokens per second, ours over the peer's.
        lowest, highest: the same of the single repeats.
        best: the same of each prompt's fastest repeat on either side.
        prefill: the peer's seconds over ours; None: not measured.
    """

    ours: str
    peer: str
    decode: float
    lowest: float
    highest: float
    best: float
    prefill: float | None


def pooled_rate(turns: Sequence[Turn]) -> float:
    """Tokens per second of decoding: what came behind the first tokens, over the time behind the first tokens."""
    tokens = sum(len(turn.reply.token_ids) - turn.reply.num_first for turn in turns)
    seconds = sum(turn.reply.seconds - turn.reply.first_seconds for turn in turns)
    return tokens / seconds if seconds > 0 else 0.0


def summarize(turns: Sequence[Turn], reference: str) -> list[SystemSummary]:
    """Per system, in the order in which they first appear; one without a decoding turn is left out."""
    expected: dict[str, Sequence[int]] = {}
    for turn in turns:
        if turn.system == reference and not turn.job.is_prefill:
            expected.setdefault(turn.job.name, turn.reply.token_ids)
    summaries = []
    for name in dict.fromkeys(turn.system for turn in turns):
        own = [turn for turn in turns if turn.system == name]
        decoding = [turn for turn in own if not turn.job.is_prefill]
        if not decoding:
            continue
        prefills = [turn.reply.first_seconds for turn in own if turn.job.is_prefill]
        compared = {turn.job.name for turn in decoding} & set(expected)
        different = {
            turn.job.name for turn in decoding if turn.reply.token_ids != expected.get(turn.job.name)
        }
        repeats = sorted({turn.repeat for turn in decoding})
        summaries.append(
            SystemSummary(
                name=name,
                tokens_per_second=pooled_rate(decoding),
                repeats_tokens_per_second=[
                    pooled_rate([turn for turn in decoding if turn.repeat == repeat]) for repeat in repeats
                ],
                best_tokens_per_second=pooled_rate(_fastest(decoding)),
                prefill_seconds=median(prefills) if prefills else None,
                num_identical=len(compared - different),
                num_compared=len(compared),
                num_disturbed=sum(turn.others is not None and turn.others > QUIET for turn in own),
                num_turns=len(own),
            )
        )
    return summaries


def ratios(ours: Sequence[SystemSummary], peers: Sequence[SystemSummary]) -> list[Ratio]:
    """Each of `ours` against each of `peers`, from the same run."""
    return [_ratio(mine, peer) for peer in peers for mine in ours]


def _fastest(turns: Sequence[Turn]) -> list[Turn]:
    fastest: dict[str, Turn] = {}
    for turn in turns:
        before = fastest.setdefault(turn.job.name, turn)
        if pooled_rate([turn]) > pooled_rate([before]):
            fastest[turn.job.name] = turn
    return list(fastest.values())


def _ratio(mine: SystemSummary, peer: SystemSummary) -> Ratio:
    pairs = zip(mine.repeats_tokens_per_second, peer.repeats_tokens_per_second, strict=False)
    each = [a / b for a, b in pairs]
    prefill = None
    if mine.prefill_seconds is not None and peer.prefill_seconds is not None:
        prefill = peer.prefill_seconds / mine.prefill_seconds
    return Ratio(
        ours=mine.name,
        peer=peer.name,
        decode=mine.tokens_per_second / peer.tokens_per_second,
        lowest=min(each),
        highest=max(each),
        best=mine.best_tokens_per_second / peer.best_tokens_per_second,
        prefill=prefill,
    )
