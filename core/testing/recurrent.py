"""A recurrent model in which one token that is not rolled back changes every later token.

The state after token `x` is `h = (31 * h + x) mod 2**31`, from 0 before the first token; the logits are a
fixed pseudo-random function of `h`. Attention tends to hide a stale entry; this model cannot.

Importing this module registers the model type `outrider_toy_recurrent` with transformers.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

MODULUS = 2**31


def advance(state: int, token_ids: Sequence[int]) -> list[int]:
    """Return the state after each token."""
    states = []
    for token in token_ids:
        state = (31 * state + int(token)) % MODULUS
        states.append(state)
    return states


def logits_of(states: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """Hash int64 states `[...]` and token ids to float32 logits `[..., vocab_size]` in [0, 8)."""
    mixed = states[..., None] * 0x2545F4914F6CDD1D + torch.arange(vocab_size) * 0x5851F42D4C957F2D
    for _ in range(2):
        mixed = (mixed ^ (mixed >> 29)) * 0x369DEA0F31A53F85
    return ((mixed >> 32) & 0xFFFF).float() / 2**13


class ToyRecurrentConfig(PretrainedConfig):
    """Configuration of the toy: nothing but its vocabulary."""

    model_type = "outrider_toy_recurrent"
    vocab_size: int = 64
    hidden_size: int = 2
    num_hidden_layers: int = 1
    max_position_embeddings: int = 512


class ToyMixer(torch.nn.Module):
    """Maps hidden states `[1, T, 2]` that spell token ids to ones that spell the states, starting from 0."""

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Return the state after each row."""
        return encode(torch.tensor([advance(0, row) for row in decode(hidden_states).tolist()]))


class _ToyLayer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mixer = ToyMixer()

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.mixer(hidden_states)
        return output


class _ToyDecoder(torch.nn.Module):
    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.embed_tokens = torch.nn.Embedding(vocab_size, 2)
        self.layers = torch.nn.ModuleList([_ToyLayer()])
        self.norm = torch.nn.Identity()

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        hidden_states: torch.Tensor = self.embed_tokens(input_ids)
        for layer in self.layers:
            hidden_states = layer(hidden_states)
        normed: torch.Tensor = self.norm(hidden_states)
        return normed


class _ToyHead(torch.nn.Module):
    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.vocab_size = vocab_size

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return logits_of(decode(hidden_states), self.vocab_size)


class ToyRecurrentForCausalLM(PreTrainedModel, GenerationMixin):
    """The toy as a transformers model. It keeps no cache of its own: a forward is the whole sequence."""

    config_class = ToyRecurrentConfig
    config: ToyRecurrentConfig
    base_model_prefix = "model"
    _supports_attention_backend = True

    def __init__(self, config: ToyRecurrentConfig) -> None:
        super().__init__(config)
        self.model = _ToyDecoder(config.vocab_size)
        self.lm_head = _ToyHead(config.vocab_size)
        self.post_init()

    def _init_weights(self, module: torch.nn.Module) -> None:
        if isinstance(module, torch.nn.Embedding):
            with torch.no_grad():
                module.weight.copy_(encode(torch.arange(module.num_embeddings)))

    def get_input_embeddings(self) -> torch.nn.Module:
        """The embedding writes a token's id into its hidden state."""
        embedding: torch.nn.Module = self.model.embed_tokens
        return embedding

    def get_output_embeddings(self) -> torch.nn.Module:
        """The head hashes the state that the hidden state spells."""
        head: torch.nn.Module = self.lm_head
        return head

    def forward(
        self,
        input_ids: torch.Tensor,
        position_ids: torch.Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | torch.Tensor = 0,
        **_: Any,
    ) -> CausalLMOutputWithPast:
        """Run `[1, T]` token ids; positions do not matter, only the order does."""
        hidden_states = self.model(input_ids)
        keep = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        return CausalLMOutputWithPast(logits=self.lm_head(hidden_states[:, keep]))


def encode(values: torch.Tensor) -> torch.Tensor:
    """Spell int64 values `[...]` below 2**31 as exact float32 `[..., 2]`: the high 15 and the low 16 bits."""
    return torch.stack((values >> 16, values & 0xFFFF), dim=-1).float()


def decode(hidden_states: torch.Tensor) -> torch.Tensor:
    """Undo `encode`."""
    high, low = hidden_states.long().unbind(-1)
    return (high << 16) | low


def toy_recurrent(folder: str | Path, *, vocab_size: int = 64, eos_token_id: int | None = None) -> Path:
    """Write the toy model as a folder that `LLM(model=...)` loads, and return `folder`."""
    shape: dict[str, Any] = {"vocab_size": vocab_size, "eos_token_id": eos_token_id}
    ToyRecurrentForCausalLM(ToyRecurrentConfig(**shape)).save_pretrained(folder)
    return Path(folder)


AutoConfig.register(ToyRecurrentConfig.model_type, ToyRecurrentConfig, exist_ok=True)
AutoModelForCausalLM.register(ToyRecurrentConfig, ToyRecurrentForCausalLM, exist_ok=True)
