"""SelfProposer without an engine: a stand-in for its draft model keeps, per request, the token at each position."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from outrider import SamplingParams
from outrider.api import DraftRequest, ProposeContext
from outrider.testing.proposers import SelfProposer
from outrider.testing.tiny_models import tiny_transformer

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return AutoModelForCausalLM.from_pretrained(tiny_transformer(tmp_path_factory.mktemp("tiny"))).eval()


class RecordedDraftModel:
    """Instead of a KV cache it remembers the tokens written, and recomputes: a hole or a stale entry shows."""

    def __init__(self, module):
        self.module = module
        self.written = {}
        self.shapes = []

    def forward(self, context, rows, *, draft_index, **inputs):
        assert inputs["use_cache"] is False
        self.shapes.append((draft_index, [len(tokens) for tokens in rows.token_ids]))
        logits = []
        for index, tokens, start in zip(
            rows.request_indices, rows.token_ids, rows.start_positions, strict=True
        ):
            cache = self.written.setdefault(context.requests[index].request_id, {})
            for offset, token in enumerate(tokens):
                cache[start + offset] = int(token)
            sequence = [cache[p] for p in range(start + len(tokens))]  # KeyError: a hole
            logits.append(self.module(torch.tensor([sequence])).logits[0, -1])
        return SimpleNamespace(logits=torch.stack(logits)[None])

    def logits_rows(self, rows):
        return torch.tensor([len(tokens) for tokens in rows.token_ids]).cumsum(0) - 1


def load(model, **options):
    proposer = SelfProposer(SelfProposer.Options(**options))
    handles = []

    def add_draft_model(name, module):
        handles.append(RecordedDraftModel(module))
        return handles[0]

    proposer.load_model(SimpleNamespace(model=model, add_draft_model=add_draft_model))
    return proposer, handles[0]


def context(*requests):
    return ProposeContext(
        requests=[
            DraftRequest(
                request_id=request_id,
                token_ids=np.array(tokens, np.int32),
                num_prompt_tokens=3,
                num_new_tokens=1,
                num_computed_tokens=computed,
                num_rows=rows,
                draft_budget=budget,
                sampling_params=SamplingParams(temperature=0),
                seed=0,
            )
            for request_id, tokens, computed, rows, budget in requests
        ],
        row_start_loc=np.zeros(len(requests) + 1, np.int32),
        hidden_states=None,
        aux_hidden_states=(),
        attention=None,
        sample=lambda logits, requests, positions: logits.argmax(-1).tolist(),
    )


def greedy(model, tokens, num_tokens):
    for _ in range(num_tokens):
        tokens = [*tokens, int(model(torch.tensor([tokens])).logits[0, -1].argmax())]
    return tokens


def test_drafts_what_the_target_would_say_within_ragged_budgets(model):
    proposer, draft = load(model)
    a, b = greedy(model, [1, 2, 3], 9), greedy(model, [7, 8], 9)
    answer = proposer.propose(context(("a", a[:4], 0, 3, 4), ("b", b[:3], 0, 2, 1), ("c", [5, 6], 0, 1, 0)))
    assert answer.token_ids == [a[4:8], b[3:4], []]
    assert draft.shapes == [(0, [4, 3, 1]), (1, [1]), (2, [1]), (3, [1])]


@pytest.mark.parametrize("accepted", [0, 1, 2, 3])
def test_overwrites_rejected_drafts_and_fills_the_hole_behind_accepted_ones(model, accepted):
    proposer, _ = load(model)
    first = greedy(model, [1, 2, 3], 1)
    drafted = proposer.propose(context(("a", first, 0, 3, 3))).token_ids[0]
    decided = [*first, *drafted[:accepted], (drafted[accepted] + 1) % 64 if accepted < 3 else 17]
    answer = proposer.propose(context(("a", decided, 3, accepted + 1, 3)))
    assert answer.token_ids == [greedy(model, decided, 3)[len(decided) :]]


def test_follows_an_unfinished_prompt_and_an_empty_budget(model):
    proposer, _ = load(model)
    prompt = [4, 9, 2, 33, 60]
    assert proposer.propose(context(("a", prompt, 0, 2, 0))).token_ids == [[]]
    assert proposer.propose(context(("a", prompt, 2, 2, 0))).token_ids == [[]]
    tokens = greedy(model, prompt, 1)
    assert proposer.propose(context(("a", tokens, 4, 1, 0))).token_ids == [[]]
    tokens = greedy(model, tokens, 1)
    answer = proposer.propose(context(("a", tokens, 5, 1, 2)))
    assert answer.token_ids == [greedy(model, tokens, 2)[len(tokens) :]]


def test_the_copy_shares_every_weight_and_is_cut_to_the_first_layers(model):
    _, whole = load(model)
    assert {p.data_ptr() for p in whole.module.parameters()} == {p.data_ptr() for p in model.parameters()}
    assert whole.module.model.layers[0] is not model.model.layers[0]
    _, cut = load(model, num_layers=1)
    assert len(cut.module.model.layers) == 1
    assert len(model.model.layers) == 2
    assert model.config.num_hidden_layers == 2
    ids = torch.tensor([[1, 2, 3]])
    hidden = model(ids, output_hidden_states=True).hidden_states[1]
    assert torch.equal(cut.module(ids).logits, model.lm_head(model.model.norm(hidden)))
