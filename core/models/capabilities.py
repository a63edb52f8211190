"""Compares what a proposer declares with the target and the configuration, before anything runs."""

from __future__ import annotations

from collections.abc import Iterator

from ..api import PluginError, ProposerCapabilities, TargetModel


def check_capabilities(
    capabilities: ProposerCapabilities,
    target: TargetModel,
    *,
    proposer: str,
    distribution: str,
    num_speculative_tokens: int,
) -> None:
    """Refuse a proposer that cannot work with this target and configuration.

    A proposer with `max_positions` below `max_model_len` is fine: a longer request just goes on undrafted. So is one
    without `probs` under any verification rule: its drafts count as one-hot.

    Args:
        proposer, distribution: for messages.

    Raises:
        PluginError: names the proposer and, for every mismatch, both sides' numbers.
    """
    problems = list(_problems(capabilities, target, num_speculative_tokens))
    if problems:
        raise PluginError(
            f"proposer {proposer!r} ({distribution}) cannot draft for this engine: {'; '.join(problems)}"
        )


def _problems(
    capabilities: ProposerCapabilities, target: TargetModel, num_speculative_tokens: int
) -> Iterator[str]:
    for name in ("max_draft_tokens", "max_positions"):
        limit = getattr(capabilities, name)
        if limit is not None and limit < 1:
            yield f"it declares {name}={limit}, which allows no draft at all"
    most = capabilities.max_draft_tokens
    if most is not None and num_speculative_tokens > most >= 1:
        yield (
            f"it drafts at most {most} tokens per request and step, but num_speculative_tokens is"
            f" {num_speculative_tokens}; set it to {most} or less"
        )
    if capabilities.trees:
        yield "it drafts trees, and this engine verifies chains only"
    if capabilities.draft_slots < 0:
        yield f"it declares draft_slots={capabilities.draft_slots}; it must be 0 or more"
    for layer in capabilities.aux_hidden_layers:
        if not 0 <= layer <= target.num_layers:
            yield (
                f"it wants the hidden states that enter layer {layer}, but the target has layers"
                f" 0..{target.num_layers - 1} ({target.num_layers} means the last one's output)"
            )
    if capabilities.vocab is not None:
        yield from _vocabulary_problems(capabilities, target)


def _vocabulary_problems(capabilities: ProposerCapabilities, target: TargetModel) -> Iterator[str]:
    """Compare token by token as far as both go: what is behind the shorter vocabulary is padding, or never drafted."""
    assert capabilities.vocab is not None
    if target.tokenizer is None:
        yield "it was trained with a vocabulary of its own, and the target has no tokenizer to compare it with"
        return
    num_tokens = min(len(capabilities.vocab), len(target.tokenizer))
    texts = target.tokenizer.convert_ids_to_tokens(list(range(num_tokens)))
    for token_id, (theirs, ours) in enumerate(zip(capabilities.vocab, texts, strict=False)):
        if theirs != ours:
            yield (
                f"its vocabulary is not the target's: token {token_id} is {theirs!r} for the proposer and {ours!r} for"
                " the target"
            )
            return
