"""The spy sees every hook of an engine's plugins and changes none of their answers."""

import numpy as np
import pytest
import torch

from outrider import SamplingParams, hookimpl
from outrider.api import (
    CommonAttentionMetadata,
    DraftRequest,
    DraftTokens,
    LayerInfo,
    ProposeContext,
    SpecDecodeMetadata,
)
from outrider.config import EngineConfig
from outrider.plugins import PluginManager
from outrider.testing.recurrent import ToyMixer
from outrider.testing.recurrent_backend import ToyRecurrentBackend
from outrider.testing.spy import Spy


class Drafter:
    outrider_api = 1
    answer = DraftTokens(token_ids=[[7, 8]])

    @hookimpl
    def propose(self, context):
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def load(answer):
    class Proposer(Drafter):
        pass

    Proposer.answer = answer
    config = EngineConfig.from_flat(
        model="unused",
        attention_backend=[ToyRecurrentBackend],
        extensions=[Spy],
        speculative_config={"method": Proposer},
    )
    manager = PluginManager.load(config)
    return manager, manager.extensions[0].plugin


def tensor(*values, dtype=torch.int32):
    return torch.tensor(values, dtype=dtype)


COMMON = CommonAttentionMetadata(
    num_reqs=1,
    num_tokens=2,
    max_query_len=2,
    max_seq_len=5,
    block_size=4,
    query_start_loc=tensor(0, 2),
    seq_lens=tensor(5),
    positions=tensor(3, 4, dtype=torch.int64),
    block_table=tensor(9, 4)[None],
    slot_mapping=tensor(39, 16, dtype=torch.int64),
    state_slots=tensor(0, 1)[None],
    num_accepted_tokens=tensor(2),
)
SPEC = SpecDecodeMetadata(
    draft_token_ids=tensor(21),
    num_draft_tokens=(1,),
    cu_num_draft_tokens=tensor(1),
    logits_indices=tensor(0, 1),
    target_logits_indices=tensor(0),
    bonus_logits_indices=tensor(1),
)


def test_records_claims_forwards_and_life_cycle():
    manager, spy = load(None)
    (backend,) = manager.backends
    info = LayerInfo(
        name="layers.0.mixer",
        module=ToyMixer(),
        attention=None,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )
    assert type(backend.claim_layer(info)).__name__ == "ToyRecurrentLayer"
    assert backend.build_attention_metadata(COMMON, SPEC)[0].read_slot == 1
    assert backend.build_for_drafting(COMMON, 2) is None
    manager.request_added("r", [1, 2], SamplingParams())
    manager.tokens_committed("r", [3])
    manager.request_preempted("r")
    manager.request_finished("r")

    assert spy.claims == {"layers.0.mixer": "ToyRecurrentLayer"}
    target, draft = spy.forwards
    assert (target.draft_index, draft.draft_index) == (None, 2)
    assert (target.positions, target.slot_mapping, target.num_accepted_tokens) == ([3, 4], [39, 16], [2])
    assert (target.num_draft_tokens, target.draft_token_ids) == ((1,), (21,))
    assert spy.events == [
        ("request_added", "r", (1, 2)),
        ("tokens_committed", "r", (3,)),
        ("request_preempted", "r", ()),
        ("request_finished", "r", ()),
    ]


def context():
    request = DraftRequest(
        request_id="r",
        token_ids=np.array([1, 2, 3], np.int32),
        num_prompt_tokens=2,
        num_new_tokens=1,
        num_computed_tokens=0,
        num_rows=2,
        draft_budget=2,
        sampling_params=SamplingParams(),
        seed=0,
    )
    return ProposeContext(
        requests=[request],
        row_start_loc=np.array([0, 2], np.int32),
        hidden_states=torch.arange(6.0).view(2, 3),
        aux_hidden_states=(),
        attention=None,
        sample=lambda *_: [],
    )


def test_records_what_a_proposer_is_shown_and_what_it_answers():
    answer = DraftTokens(token_ids=[[7, 8]])
    manager, spy = load(answer)
    assert manager.proposer.propose(context()) is answer
    (record,) = spy.proposals
    assert (record.call, record.request_id, record.token_ids, record.drafts) == (0, "r", [1, 2, 3], [7, 8])
    assert torch.equal(record.hidden_states, torch.arange(6.0).view(2, 3))


@pytest.mark.parametrize(
    "answer", [RuntimeError("broken"), None, DraftTokens(token_ids=[]), DraftTokens(token_ids=3)]
)
def test_lets_a_broken_answer_through(answer):
    manager, spy = load(answer)
    if isinstance(answer, Exception):
        with pytest.raises(RuntimeError, match="broken"):
            manager.proposer.propose(context())
    else:
        assert manager.proposer.propose(context()) is answer
    assert [record.drafts for record in spy.proposals] == [None]
