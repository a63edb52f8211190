from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from outrider.api import ModelError
from outrider.config import ModelConfig
from outrider.models.load import load_model
from outrider.testing.tiny_models import tiny_transformer

TEXTS = ["<|end|>", *"abcdefghijklmnopqrstuvwxyz", *"ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789", "ab"]
NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "model.layers.": "blk.",
}


def interleaved(weight: torch.Tensor, num_heads: int) -> torch.Tensor:
    """GGUF pairs neighbouring rotary dimensions where transformers pairs halves."""
    return weight.reshape(num_heads, 2, -1, weight.shape[-1]).transpose(1, 2).reshape(weight.shape)


def deinterleaved(weight: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Undo `interleaved`."""
    return weight.reshape(num_heads, -1, 2, weight.shape[-1]).transpose(1, 2).reshape(weight.shape)


def write_gguf(
    path: Path, weights: dict[str, torch.Tensor], quantized: bool = False
) -> dict[str, torch.Tensor]:
    """Write the tiny llama of the test kit as a GGUF file, and return the weights that it then has."""
    gguf: Any = pytest.importorskip("gguf")
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_block_count(2)
    writer.add_context_length(512)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(64)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_key_length(16)
    writer.add_value_length(16)
    writer.add_rope_dimension_count(16)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(64)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(TEXTS)
    writer.add_token_types([3] + [1] * 63)
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(0)
    kept = {}
    for name, tensor in weights.items():
        heads = 4 if "q_proj" in name else 2 if "k_proj" in name else 0
        stored = interleaved(tensor, heads).contiguous().numpy() if heads else tensor.numpy()
        gguf_name = name
        for ours, theirs in NAMES.items():
            gguf_name = gguf_name.replace(ours, theirs)
        if quantized and tensor.dim() == 2:
            kind = gguf.GGMLQuantizationType.Q4_1
            blocks = gguf.quantize(stored, kind)
            writer.add_tensor(gguf_name, blocks, raw_dtype=kind)
            stored = gguf.dequantize(blocks, kind)
        else:
            writer.add_tensor(gguf_name, stored)
        kept[name] = deinterleaved(torch.from_numpy(stored), heads) if heads else torch.from_numpy(stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return kept


@pytest.mark.parametrize("quantized", [False, True])
def test_a_gguf_file_is_a_model_with_its_weights_and_tokenizer(tmp_path: Path, quantized: bool) -> None:
    original = load_file(tiny_transformer(tmp_path) / "model.safetensors")
    weights = write_gguf(tmp_path / "tiny.gguf", original, quantized)
    name = "model.layers.0.self_attn.q_proj.weight"
    assert torch.equal(weights[name], original[name]) != quantized
    loaded = load_model(ModelConfig(model=str(tmp_path / "tiny.gguf")))
    actual = loaded.model.state_dict()
    assert actual.keys() == weights.keys()
    assert all(torch.equal(actual[name], tensor) for name, tensor in weights.items())
    assert loaded.config._attn_implementation == "outrider"
    assert (loaded.max_model_len, loaded.vocab_size, loaded.eos_token_ids) == (512, 64, {0})
    assert loaded.tokenizer.convert_ids_to_tokens([0, 1, 2]) == TEXTS[:3]


def test_without_the_packages_that_read_gguf_the_error_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "gguf" else found(name, *a)
    )
    (tmp_path / "tiny.gguf").touch()
    with pytest.raises(ModelError, match=r"needs gguf, not installed here: pip install 'outrider\[gguf\]'"):
        load_model(ModelConfig(model=str(tmp_path / "tiny.gguf")))


def test_a_file_that_only_is_called_gguf_is_an_error(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    (tmp_path / "tiny.gguf").write_bytes(b"no such thing")
    with pytest.raises(ModelError, match=r"cannot load model '.*tiny.gguf'"):
        load_model(ModelConfig(model=str(tmp_path / "tiny.gguf")))
