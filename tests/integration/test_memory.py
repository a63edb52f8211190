"""A loaded model takes little more memory than its weights, while it is loaded too."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from outrider.testing.tiny_models import tiny_transformer

# The tiny model comes first: imports are done and kernels compiled before anything is measured.
SCRIPT = """
import sys
from outrider import LLM

def status(name):
    with open("/proc/self/status") as file:
        return next(1024 * int(line.split()[1]) for line in file if line.startswith(name))

tiny, model, weights = sys.argv[1:]
settings = dict(max_model_len=64, max_num_batched_tokens=64, max_num_seqs=4, num_kv_blocks=16)
llms = [LLM(tiny, weights="bfloat16", **settings)]
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")  # the peak so far is forgotten
before = status("VmRSS")
llms.append(LLM(model, weights=weights, **settings))
llms[-1].generate([{"prompt_token_ids": [1, 2, 3]}], use_tqdm=False)
print(status("VmHWM") - before)
"""


@pytest.fixture(scope="module")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_transformer(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A llama of 190 MB in bfloat16."""
    folder = tmp_path_factory.mktemp("large")
    config = LlamaConfig(
        vocab_size=4000, hidden_size=1024, intermediate_size=2816, num_hidden_layers=7, num_attention_heads=8,
        num_key_value_heads=8, max_position_embeddings=64, dtype="bfloat16",
    )  # fmt: skip
    with torch.device("meta"):
        model = LlamaForCausalLM(config).to(torch.bfloat16)
    numbers = torch.randn(4000 * 1024, generator=torch.Generator().manual_seed(0)).bfloat16() / 32
    weights = {name: numbers[: p.numel()].view(p.shape).clone() for name, p in model.named_parameters()}
    model.save_pretrained(folder, state_dict=weights)
    return folder


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("weights", ["auto", "bfloat16"])
def test_a_bfloat16_model_peaks_below_five_quarters_of_its_weights(
    tiny_folder: Path, folder: Path, weights: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tiny_folder), str(folder), weights],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    assert size > 150e6
    assert 0.7 * size < int(done.stdout) < 1.25 * size  # in 12 bits, or in 16
