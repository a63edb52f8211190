"""Loads a target: a transformers model on our attention interface, its tokenizer, and the limits that go with it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import transformers
from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM, PretrainedConfig

from ..api import ConfigError, ModelError
from ..kernels.cpu.weights import WeightFormat
from .attention_interface import ATTENTION_IMPLEMENTATION
from .context_length import longest_context
from .gguf import load_gguf_model
from .packed_layers import pack_layers
from .progress import announce, quiet
from .sources import ACCEPTED, ModelSource, find_source
from .tokenizer import load_tokenizer

if TYPE_CHECKING:
    from ..config import ModelConfig


_AUTO: dict[torch.dtype, WeightFormat] = {torch.float32: "float32", torch.bfloat16: "bfloat16"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A target, ready to be offered to proposers and then routed.

    Attributes:
        name: as the user wrote it.
        model: `...ForCausalLM` in eval mode, its attention implementation `outrider`: it runs once it is routed.
        tokenizer: transformers tokenizer, or None if the model has none.
        config: transformers configuration.
        dtype, device: of the activations.
        weights: how the kernels keep the weights of linear layers; None: torch computes them, in `dtype`.
        max_model_len: most tokens of prompt and output together.
        vocab_size: width of the logits.
        eos_token_ids: tokens that end a text, as transformers' `generate` has it; may be empty.
    """

    name: str
    model: torch.nn.Module
    tokenizer: Any
    config: Any
    dtype: torch.dtype
    device: torch.device
    weights: WeightFormat | None
    max_model_len: int
    vocab_size: int
    eos_token_ids: frozenset[int]


def load_model(settings: ModelConfig) -> LoadedModel:
    """Find and load the model that `settings` names.

    Weights come from safetensors or GGUF; from a pickle only what `torch.load(weights_only=True)` accepts.

    Raises:
        ModelError: the model is unknown, broken, incomplete, no decoder-only language model, or needs code of its own
            without `trust_remote_code`.
        ConfigError: `device` does not exist here, `weights` is set beside another device or dtype than it is for, or
            `max_model_len` is more than the model was made for.
    """
    source = find_source(settings.model)
    device = _device(settings.device)
    packs = device.type == "cpu" and settings.dtype in ("auto", "float32")
    if settings.weights != "auto" and not packs:
        raise ConfigError(
            f"weights={settings.weights!r} is for float32 activations on a CPU; here device is {device.type!r} and"
            f" dtype {settings.dtype!r}: drop `weights`, or set device='cpu' and dtype='float32'"
        )
    with quiet(), _as_model_error(source):
        model, report = _load_weights(source, settings, packs)
        tokenizer = load_tokenizer(source, settings.tokenizer, settings.trust_remote_code)
    missing = sorted(report.get("missing_keys", ()))
    if missing:
        raise ModelError(
            f"model {source.name!r} is incomplete: {len(missing)} weights missing, first {missing[0]!r}"
        )
    text_config = model.config.get_text_config()
    # Attention keeps its keys and values in our blocks.
    model.config.use_cache = text_config.use_cache = False
    model = model.to(device).eval().requires_grad_(False)
    weights: WeightFormat | None = None
    if packs:
        weights = _AUTO[model.dtype] if settings.weights == "auto" else settings.weights
        with _as_model_error(source):
            pack_layers(model, weights)
    head = model.get_output_embeddings()
    weight = getattr(head, "weight", None)
    return LoadedModel(
        name=source.name,
        model=model,
        tokenizer=tokenizer,
        config=model.config,
        dtype=torch.float32 if packs else model.dtype,
        device=device,
        weights=weights,
        max_model_len=longest_context(text_config, settings.max_model_len),
        vocab_size=int(text_config.vocab_size if weight is None else weight.shape[0]),
        eos_token_ids=_eos_token_ids(model, text_config, tokenizer),
    )


def _load_weights(source: ModelSource, settings: ModelConfig, packs: bool) -> tuple[Any, dict[str, Any]]:
    """Load in the type of the activations; if weights are `packs`-ed, in the type that packing begins with."""
    if source.gguf_file is None:
        config = _config(source, settings.trust_remote_code)
        checkpoint = config.get_text_config().dtype or config.dtype
    else:
        config = checkpoint = None
    dtype: Any = "auto" if settings.dtype == "auto" else getattr(torch, settings.dtype)
    if packs:
        # Only linear layers are rounded, when they are packed.
        half = checkpoint == torch.bfloat16 and settings.weights != "float32"
        dtype = torch.bfloat16 if half else torch.float32
    if source.gguf_file is not None:
        announce(f"Reading {source.gguf_file.name}")
        dtype = torch.float32 if dtype == "auto" else dtype
        return load_gguf_model(source.gguf_file, dtype, ATTENTION_IMPLEMENTATION)
    return AutoModelForCausalLM.from_pretrained(
        source.location,
        config=config,
        dtype=dtype,
        attn_implementation=ATTENTION_IMPLEMENTATION,
        trust_remote_code=settings.trust_remote_code,
        weights_only=True,
        output_loading_info=True,
    )


def _config(source: ModelSource, trust_remote_code: bool) -> Any:
    """Read the configuration; refuse what could not be loaded before a byte of weights is read."""
    if source.folder is not None and not (source.folder / "config.json").is_file():
        raise ModelError(f"model {source.name!r}: the folder has no config.json; a model is {ACCEPTED}")
    values, _ = PretrainedConfig.get_config_dict(source.location)
    model_type = values.get("model_type")
    known = model_type in CONFIG_MAPPING
    if not known and "auto_map" in values and not trust_remote_code:
        raise ModelError(
            f"model {source.name!r} brings Python code of its own ({_shown(values['auto_map'])}), which is not run"
            " unless you say so: set trust_remote_code=True if you trust its author"
        )
    if not known and not trust_remote_code:
        raise ModelError(
            f"model {source.name!r} is of type {model_type!r}, unknown to transformers {transformers.__version__}"
        )
    config = AutoConfig.from_pretrained(source.location, trust_remote_code=trust_remote_code)
    if getattr(config, "is_encoder_decoder", False):
        raise ModelError(
            f"model {source.name!r} has an encoder; only decoder-only language models can be served"
        )
    return config


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(f"device={name!r} cannot be used here: {_first_line(error)}") from None
    return device


def _eos_token_ids(model: Any, text_config: Any, tokenizer: Any) -> frozenset[int]:
    for holder in (getattr(model, "generation_config", None), text_config, tokenizer):
        eos = getattr(holder, "eos_token_id", None)
        if eos is not None:
            return frozenset(eos if isinstance(eos, (list, tuple)) else [eos])
    return frozenset()


@contextmanager
def _as_model_error(source: ModelSource) -> Iterator[None]:
    try:
        yield
    except (ModelError, ConfigError):
        raise
    except Exception as error:
        raise ModelError(_explain(source, error)) from error


def _explain(source: ModelSource, error: Exception) -> str:
    reason = f"{type(error).__name__}: {_first_line(error)}"
    if "trust_remote_code" in str(error):
        return (
            f"model {source.name!r} brings Python code of its own; set trust_remote_code=True if you trust it"
        )
    if source.hub_id is not None:
        return (
            f"cannot load model {source.name!r}: it is no local folder or file, and asking the hub gave {reason};"
            f" a model is {ACCEPTED}"
        )
    folder = source.folder
    if folder is not None and not list(folder.glob("*.safetensors")) and list(folder.glob("*.bin")):
        return (
            f"model {source.name!r} has no safetensors, and its weights are a pickle that cannot be loaded without"
            f" running code from it ({reason}); convert it to safetensors"
        )
    return f"cannot load model {source.name!r}: {reason}"


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]


def _shown(auto_map: Any) -> str:
    return ", ".join(auto_map) if isinstance(auto_map, dict) else json.dumps(auto_map)
