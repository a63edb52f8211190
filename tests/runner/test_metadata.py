"""The layout of a step's flat batch."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from outrider.runner.metadata import FlatRows, LogitsRows, build_common_metadata

CPU = torch.device("cpu")


def test_worked_example_of_the_verification_layout():
    lengths = np.array([4, 100, 3, 100, 2])
    rows = FlatRows.build(range(5), np.zeros(5, np.int64), lengths)
    input_ids = np.arange(209) + 1000
    drafts = [[1001, 1002, 1003], [], [1105, 1106], [], [1208]]

    spec = LogitsRows.find(drafts, rows, CPU).spec

    assert spec.logits_indices.tolist() == [0, 1, 2, 3, 103, 104, 105, 106, 206, 207, 208]
    assert spec.target_logits_indices.tolist() == [0, 1, 2, 5, 6, 9]
    assert spec.bonus_logits_indices.tolist() == [3, 4, 7, 8, 10]
    assert spec.num_draft_tokens == (3, 0, 2, 0, 1)
    assert spec.cu_num_draft_tokens.tolist() == [3, 3, 5, 5, 6]
    assert spec.max_spec_len == 3
    # A draft stands one row behind the row that judges it.
    judged = spec.logits_indices[spec.target_logits_indices] + 1
    assert judged.tolist() == [1, 2, 3, 105, 106, 208]
    assert spec.draft_token_ids.tolist() == input_ids[judged.numpy()].tolist()


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 9), st.integers(0, 8)), min_size=1, max_size=8))
def test_rows_follow_each_request(requests):
    starts = np.array([start for start, _, _ in requests])
    lengths = np.array([length for _, length, _ in requests])
    drafts = [[7] * min(num_drafts, length - 1) for _, length, num_drafts in requests]

    rows = FlatRows.build(range(len(requests)), starts, lengths)
    judges = LogitsRows.find(drafts, rows, CPU)

    expected = [start + i for start, length, _ in requests for i in range(length)]
    assert rows.positions.tolist() == expected
    at = 0
    logits_rows: list[int] = []
    for length, draft in zip(lengths, drafts, strict=True):
        at += int(length)
        logits_rows += range(at - len(draft) - 1, at)
    assert judges.spec.logits_indices.tolist() == logits_rows
    assert judges.positions.tolist() == [expected[row] for row in logits_rows]
    assert judges.batch_rows.tolist() == [i for i, draft in enumerate(drafts) for _ in range(len(draft) + 1)]


def test_slots_follow_the_block_table():
    block_table = np.array([[5, 2, 9], [7, 1, 0]], np.int32)
    rows = FlatRows.build([0, 1], np.array([3, 0]), np.array([6, 2]))
    one = np.ones(2, np.int32)

    common = build_common_metadata(rows, block_table, 4, np.zeros((2, 1), np.int32), one, CPU)

    assert common.slot_mapping.tolist() == [23, 8, 9, 10, 11, 36, 28, 29]
    assert common.seq_lens.tolist() == [9, 2]
    assert (common.max_query_len, common.max_seq_len, common.num_tokens) == (6, 9, 8)


@pytest.mark.parametrize(
    ("start", "limit"), [(7, "position 8 is beyond the KV blocks"), (11, "position 12 is beyond the longest")]
)
def test_a_row_without_a_block_is_refused(start, limit):
    block_table = np.array([[5, 2, -1 if start == 7 else 9]], np.int32)
    rows = FlatRows.build([0], np.array([start]), np.array([2]))
    one = np.ones(1, np.int32)
    with pytest.raises(ValueError, match=limit):
        build_common_metadata(rows, block_table, 4, one[:, None], one, CPU)
