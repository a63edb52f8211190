"""What the engine and a proposer say to each other.

Shapes: `B` requests of the step, in an order that is fixed for the step; `R` target rows whose tokens were
committed in the step, all requests together; `H` hidden size; `V` vocabulary size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from .sampling_params import SamplingParams

if TYPE_CHECKING:
    # numpy too: it would double the time of `import outrider`.
    import numpy as np
    import numpy.typing as npt
    import torch

    from .attention import CommonAttentionMetadata


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposerCapabilities:
    """What a proposer needs and can do; checked at load against the model and the configuration.

    Attributes:
        max_draft_tokens: most tokens it can draft for one request in one step; None: any number.
        max_positions: longest context (tokens) it can draft from; None: any. A longer request goes on undrafted.
        hidden_states: wants the target's last hidden states of the committed rows.
        aux_hidden_layers: wants the hidden states that enter these decoder layers (0 is the embedding's output;
            `num_layers` is the last layer's output, before the final norm).
        own_kv: has attention layers of its own in the engine's block tables (see `TargetModel.add_draft_model`).
            The engine then reserves room for `num_speculative_tokens` more tokens per request and calls `propose`
            for every scheduled request, also while its prompt is still being computed (with a draft budget of 0).
            With a budget of `b` above 0 it may compute positions up to `num_tokens + b - 2`, with 0 only the step's
            rows.
        draft_slots: extra rows per request that its first forward of a step has beyond the target's rows;
            sizes the warm-up.
        trees: drafts are trees (`DraftTokens.parents`).
        probs: every draft comes with the distribution it was drawn from (`DraftTokens.probs`).
        confidence: every drafted token comes with an estimate that it will be accepted (`DraftTokens.confidence`).
        vocab: token texts by id if the drafter was trained with a tokenizer of its own; compared with the target's
            tokenizer entry by entry (padding at the end is ignored). None: the target's vocabulary.
    """

    max_draft_tokens: int | None = None
    max_positions: int | None = None
    hidden_states: bool = False
    aux_hidden_layers: tuple[int, ...] = ()
    own_kv: bool = False
    draft_slots: int = 0
    trees: bool = False
    probs: bool = False
    confidence: bool = False
    vocab: Sequence[str] | None = None


@dataclass(frozen=True, slots=True)
class DraftRequest:
    """One request as a proposer sees it.

    Attributes:
        request_id: stable for the life of the request.
        token_ids: read-only view `[num_tokens]` (int32) of prompt and output, up to the newest committed token.
            While the prompt is still being computed it is the whole prompt.
        num_prompt_tokens: how many of them are the prompt.
        num_new_tokens: how many were committed since the last `propose` that included this request;
            all of them at the first one and after a preemption.
        num_computed_tokens: position of the first target row of this step. The rows of the step that count are
            the positions `num_computed_tokens + [0, num_rows)`.
        num_rows: target rows of this step whose input token is committed. The row at the last of these positions
            produced the newest token, unless the prompt is unfinished.
        draft_budget: most tokens it may get drafted now; 0 is normal.
        sampling_params: as the user gave them.
        seed: the request's seed; never None here.
    """

    request_id: str
    token_ids: npt.NDArray[np.int32]
    num_prompt_tokens: int
    num_new_tokens: int
    num_computed_tokens: int
    num_rows: int
    draft_budget: int
    sampling_params: SamplingParams
    seed: int


class SampleFn(Protocol):
    """Sample with the engine's own noise, so that a drafter's sample agrees with the target's as often as possible."""

    def __call__(
        self, logits: torch.Tensor, request_indices: Sequence[int], positions: Sequence[int]
    ) -> list[int]:
        """Return one token id per row of `logits`.

        Args:
            logits: `[N, V]`, float.
            request_indices: `[N]`, index into `ProposeContext.requests` whose parameters and seed apply.
            positions: `[N]`, absolute position (0 = first prompt token) of the token to be sampled.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposeContext:
    """Everything a proposer may use in one step.

    Attributes:
        requests: the `B` requests of the step.
        row_start_loc: `[B + 1]`; the rows of request `i` in the tensors below are
            `row_start_loc[i]:row_start_loc[i + 1]`, that is `requests[i].num_rows` many.
        hidden_states: `[R, H]` if `ProposerCapabilities.hidden_states`, after the model's final norm; else None.
        aux_hidden_states: a tensor `[R, H]` per entry of `ProposerCapabilities.aux_hidden_layers`.
        attention: where the `R` rows stand, if `ProposerCapabilities.own_kv`; else None. Its block table also serves a
            drafter's layers.
        sample: the engine's sampler.
    """

    requests: Sequence[DraftRequest]
    row_start_loc: npt.NDArray[np.int32]
    hidden_states: torch.Tensor | None
    aux_hidden_states: Sequence[torch.Tensor]
    attention: CommonAttentionMetadata | None
    sample: SampleFn


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftTokens:
    """What `propose` returns. Everything in it is checked before it is used.

    Attributes:
        token_ids: `B` sequences of token ids, in the order of `ProposeContext.requests`; sequence `i` has at most
            `requests[i].draft_budget` entries, and may be empty.
        parents: for trees: per token the index of its parent within the same request's sequence, -1 for a child of
            the newest committed token; parents come before their children.
        probs: per request a tensor `[len(token_ids[i]), V]`: row `j` is the distribution token `j` was drawn from.
        confidence: per request and token an estimate in [0, 1] that it will be accepted if those before it are. It
            need not be calibrated: the engine learns what each value means.
    """

    token_ids: Sequence[Sequence[int] | npt.NDArray[np.integer[Any]]]
    parents: Sequence[Sequence[int]] | None = None
    probs: Sequence[torch.Tensor] | None = None
    confidence: Sequence[Sequence[float]] | None = None


@dataclass(frozen=True, slots=True)
class DraftRows:
    """The tokens of one forward of a drafter's own model: `N` requests of the step, `T` rows in all.

    Attributes:
        request_indices: `[N]` indices into `ProposeContext.requests`.
        token_ids: `N` sequences of input token ids.
        start_positions: `[N]` absolute position of the first token of each sequence; the others follow it.
    """

    request_indices: Sequence[int]
    token_ids: Sequence[Sequence[int] | npt.NDArray[np.integer[Any]]]
    start_positions: Sequence[int]


class DraftModel(Protocol):
    """A drafter's own network, whose attention layers keep their state in the engine's block tables."""

    def forward(self, context: ProposeContext, rows: DraftRows, *, draft_index: int, **inputs: Any) -> Any:
        """Run the module on `rows` and return what it returns.

        The module is called with `input_ids [1, T]`, `position_ids [1, T]` and `inputs`. Attention sees every earlier
        position of the same request. Rows may overwrite positions that an earlier forward wrote.

        Args:
            draft_index: which forward of this step it is, from 0.
        """
        ...

    def logits_rows(self, rows: DraftRows) -> torch.Tensor:
        """Index of each request's last row in the flat batch, `[N]`; what `logits_to_keep` of transformers takes."""
        ...


class TargetModel(Protocol):
    """The target as a proposer sees it at load.

    Attributes:
        model: the transformers model (`...ForCausalLM`), before its attention is routed to the backends.
        config: its transformers configuration.
        embedding: input embedding module.
        lm_head: output projection module.
        tokenizer: transformers tokenizer, or None.
    """

    model: torch.nn.Module
    config: Any
    embedding: torch.nn.Module
    lm_head: torch.nn.Module
    tokenizer: Any
    device: torch.device
    dtype: torch.dtype
    vocab_size: int
    hidden_size: int
    num_layers: int
    max_model_len: int

    def add_draft_model(
        self, name: str, module: torch.nn.Module, *, dummy_inputs: Mapping[str, Any] = {}
    ) -> DraftModel:
        """Register a network whose attention layers shall keep their own state in the engine's block tables.

        The module's attention must go through the transformers attention interface
        (`config._attn_implementation = "outrider"`), or be claimed as a whole by a backend. Parameters may be shared
        with the target. Call it in `load_model`; the returned handle works once loading is complete.

        Args:
            name: prefix of its layers' names.
            module: called as `module(input_ids=[1, T], position_ids=[1, T], **inputs)`.
            dummy_inputs: further keyword inputs that it needs, for the one forward of `NUM_DISCOVERY_TOKENS` rows
                in which its layers are discovered.
        """
        ...


NUM_DISCOVERY_TOKENS = 4
"""Rows of the dummy forward in which a model's attention layers are discovered."""
