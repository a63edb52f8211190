"""The toy recurrent model and the roll-back of its state by slot."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from outrider.api import CommonAttentionMetadata, LayerInfo, SpecDecodeMetadata
from outrider.testing.recurrent import MODULUS, ToyMixer, advance, decode, encode, logits_of, toy_recurrent
from outrider.testing.recurrent_backend import ForgetfulRecurrentBackend, ToyRecurrentBackend

SLOTS = 4  # per request: K = 3


def test_the_model_is_the_recurrence(tmp_path):
    model = AutoModelForCausalLM.from_pretrained(toy_recurrent(tmp_path))
    prompt = [1, 2, 63]
    generated = model.generate(torch.tensor([prompt]), max_new_tokens=20, do_sample=False, use_cache=False)
    tokens = list(prompt)
    for _ in range(20):
        state = torch.tensor(advance(0, tokens)[-1])
        tokens.append(int(logits_of(state, 64).argmax()))
    assert generated[0].tolist() == tokens
    assert len(set(tokens)) >= 12


def test_the_state_wraps_at_its_modulus_and_is_spelt_exactly():
    assert advance(5, [7, 1]) == [162, 5023]
    assert advance(MODULUS - 1, [40]) == [(31 * (MODULUS - 1) + 40) % MODULUS]
    values = torch.tensor([0, 1, 2**16 - 1, 2**16, 2**24 + 1, MODULUS - 1])
    assert torch.equal(decode(encode(values)), values)


def test_logits_to_keep_selects_rows(tmp_path):
    model = AutoModelForCausalLM.from_pretrained(toy_recurrent(tmp_path))
    ids = torch.tensor([[4, 5, 6]])
    logits = model(ids).logits
    assert torch.equal(model(ids, logits_to_keep=1).logits, logits[:, -1:])
    assert torch.equal(model(ids, logits_to_keep=torch.tensor([0, 2])).logits, logits[:, [0, 2]])


class Host:
    """Drives the claimed mixer by hand, one step per call."""

    def __init__(self, num_requests):
        self.backend = ToyRecurrentBackend()
        self.layer = self.backend.claim_layer(layer_info(ToyMixer()))
        self.layer.bind_cache({"state": torch.randint(MODULUS, (num_requests * SLOTS,))})

    def step(self, *requests):
        """Each request: (index, start position, tokens, number of drafts among them, tokens accepted before)."""
        tokens = [token for request in requests for token in request[2]]
        starts = torch.tensor([0, *(len(request[2]) for request in requests)]).cumsum(0)
        positions = [request[1] + j for request in requests for j in range(len(request[2]))]
        common = CommonAttentionMetadata(
            num_reqs=len(requests),
            num_tokens=len(tokens),
            max_query_len=max(len(request[2]) for request in requests),
            max_seq_len=max(request[1] + len(request[2]) for request in requests),
            block_size=4,
            query_start_loc=starts.int(),
            seq_lens=torch.tensor([request[1] + len(request[2]) for request in requests]).int(),
            positions=torch.tensor(positions),
            block_table=torch.zeros(len(requests), 1, dtype=torch.int32),
            slot_mapping=torch.zeros(len(tokens), dtype=torch.int64),
            state_slots=torch.stack([torch.arange(SLOTS) + SLOTS * request[0] for request in requests]).int(),
            num_accepted_tokens=torch.tensor([request[4] for request in requests]).int(),
        )
        metadata = self.backend.build_attention_metadata(common, spec([request[3] for request in requests]))
        return decode(self.layer.forward(metadata, encode(torch.tensor([tokens]))))[0].tolist()


def layer_info(module):
    return LayerInfo(
        name="mixer", module=module, attention=None, dtype=torch.float32, device=torch.device("cpu")
    )


def spec(num_drafts):
    empty = torch.zeros(0, dtype=torch.int64)
    return SpecDecodeMetadata(
        draft_token_ids=empty,
        num_draft_tokens=tuple(num_drafts),
        cu_num_draft_tokens=empty,
        logits_indices=empty,
        target_logits_indices=empty,
        bonus_logits_indices=empty,
    )


def test_prompt_chunks_continue_from_slot_0():
    host = Host(1)
    assert host.step((0, 0, [3, 4], 0, 1)) == advance(0, [3, 4])
    assert host.step((0, 2, [5, 6], 0, 1)) == advance(0, [3, 4, 5, 6])[2:]


@pytest.mark.parametrize("accepted", [0, 1, 2, 3])
@pytest.mark.parametrize("next_drafts", [[], [20], [20, 21, 22]])
def test_rejected_drafts_leave_no_trace(accepted, next_drafts):
    host = Host(1)
    host.step((0, 0, [3, 4], 0, 1))
    host.step((0, 2, [7, 11, 12, 13], 3, 1))
    committed = [3, 4, 7, *[11, 12, 13][:accepted]]
    rows = [9, *next_drafts]
    states = host.step((0, len(committed), rows, len(next_drafts), accepted + 1))
    assert states == advance(0, committed + rows)[len(committed) :]


def test_a_batch_mixes_a_new_request_a_plain_decode_and_a_verification():
    host = Host(3)
    host.step((0, 0, [1, 2], 0, 1), (1, 0, [3], 0, 1))
    states = host.step((1, 1, [4, 5], 1, 1), (2, 0, [8, 9, 10], 0, 1), (0, 2, [6], 0, 1))
    assert states == advance(0, [3, 4, 5])[1:] + advance(0, [8, 9, 10]) + advance(0, [1, 2, 6])[2:]


def test_claims_mixers_only_and_says_whether_it_can_rewind():
    assert ToyRecurrentBackend().claim_layer(layer_info(torch.nn.Linear(2, 2))) is None
    assert ToyRecurrentBackend().claim_layer(layer_info(ToyMixer())).cache_spec.rewindable is True
    assert ForgetfulRecurrentBackend().claim_layer(layer_info(ToyMixer())).cache_spec.rewindable is False
