"""The tiny transformer is deterministic, loads as any model does, and says something worth testing with."""

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from outrider.testing.tiny_models import ALPHABET, VOCAB_SIZE, tiny_transformer


def greedy(folder, prompt, num_tokens):
    model = AutoModelForCausalLM.from_pretrained(folder)
    output = model.generate(torch.tensor([prompt]), max_new_tokens=num_tokens, do_sample=False)
    return output[0].tolist()[len(prompt) :]


@pytest.mark.parametrize("prompt", [[1, 2, 3], [5, 9, 9, 40, 2, 60, 12], [0]])
def test_greedy_text_wanders(tmp_path, prompt):
    tokens = greedy(tiny_transformer(tmp_path), prompt, 48)
    assert len(set(tokens)) >= 20
    assert not any(tokens[-2 * period : -period] == tokens[-period:] for period in range(1, 16))


def test_weights_depend_on_the_seed_only(tmp_path):
    first = AutoModelForCausalLM.from_pretrained(tiny_transformer(tmp_path / "a"))
    again = AutoModelForCausalLM.from_pretrained(
        tiny_transformer(tmp_path / "b", eos_token_id=7, tokenizer=True)
    )
    other = AutoModelForCausalLM.from_pretrained(tiny_transformer(tmp_path / "c", seed=1))
    assert first.lm_head.weight.dtype == torch.float32
    assert torch.equal(first.lm_head.weight, again.lm_head.weight)
    assert not torch.equal(first.lm_head.weight, other.lm_head.weight)


def test_generation_stops_at_the_declared_end_token(tmp_path):
    tokens = greedy(tiny_transformer(tmp_path / "plain"), [1, 2, 3], 12)
    end = tokens[5]
    assert end not in tokens[:5]
    assert greedy(tiny_transformer(tmp_path / "eos", eos_token_id=end), [1, 2, 3], 12) == tokens[:6]


def test_a_sliding_window_hides_what_is_older(tmp_path):
    model = AutoModelForCausalLM.from_pretrained(tiny_transformer(tmp_path, sliding_window=3, num_layers=1))
    near, far = torch.tensor([[1, 5, 6, 7]]), torch.tensor([[2, 5, 6, 7]])
    assert torch.equal(model(near).logits[:, -1], model(far).logits[:, -1])
    assert not torch.equal(model(near).logits[:, -2], model(far).logits[:, -2])


def test_every_token_of_the_tokenizer_is_one_character(tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(tiny_transformer(tmp_path, eos_token_id=3, tokenizer=True))
    assert len(ALPHABET) == VOCAB_SIZE == len(tokenizer)
    assert tokenizer.encode(ALPHABET, add_special_tokens=False) == list(range(VOCAB_SIZE))
    assert tokenizer.decode([0, 1, 62, 28, 63, 25]) == "ab C.z"
    assert tokenizer.eos_token_id == 3
