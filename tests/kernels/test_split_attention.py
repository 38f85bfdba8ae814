"""Mixed batches split between two backends equal the formula; nothing is planned in vain."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rtlang.kernels.attention.base import AttentionLayer, AttentionRows, DeviceRows
from rtlang.kernels.attention.reference import ReferenceAttention
from rtlang.kernels.attention.split import SplitAttention
from rtlang.kernels.attention.triton_backend import TritonAttention

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HEADS, KV_HEADS, DIM = 4, 2, 16


def make_rows(seq_lens: list[int], extend_lens: list[int]) -> AttentionRows:
    rng = np.random.default_rng(0)
    slots = rng.permutation(np.arange(1, sum(seq_lens) + 1)).astype(np.int32)
    table = np.zeros((len(seq_lens), max(seq_lens)), np.int32)
    for row, length in enumerate(seq_lens):
        table[row, :length], slots = slots[:length], slots[length:]
    starts = np.concatenate([[0], np.cumsum(extend_lens)]).astype(np.int32)
    lens, lines = np.array(seq_lens, np.int32), np.arange(len(seq_lens), dtype=np.int32)
    seqs, q_starts, rows, slot_table = (
        torch.from_numpy(x).to(DEVICE) for x in (lens, starts, lines, table)
    )
    device = DeviceRows(seqs, q_starts, rows, slot_table, decode=False)
    return AttentionRows(lens, np.array(extend_lens, np.int32), table, device)


def backend() -> TritonAttention:
    return TritonAttention(
        HEADS, KV_HEADS, DIM, max_rows=8, max_tokens=64, device=DEVICE, num_sms=2
    )


@pytest.mark.parametrize(
    ("seq_lens", "extend_lens"),
    [
        ([9, 30, 12, 20], [1, 1, 5, 20]),
        ([9, 30], [1, 1]),
        ([12, 20], [5, 20]),
        ([9, 12, 7], [1, 5, 1]),  # a chunk of one token behind a longer one
    ],
)
def test_split_batches_equal_the_formula(seq_lens: list[int], extend_lens: list[int]) -> None:
    torch.manual_seed(0)
    rows, layer = make_rows(seq_lens, extend_lens), AttentionLayer(0.3)
    q = torch.randn(sum(extend_lens), HEADS, DIM)
    keys, values = torch.randn(2, sum(seq_lens) + 1, KV_HEADS, DIM).unbind(0)
    reference = ReferenceAttention()
    reference.plan(rows)
    want = reference.run(q, keys, values, layer)
    split = SplitAttention(backend(), backend())
    for _ in range(2):  # planned again, as every step does
        split.plan(rows)
        got = split.run(q.to(DEVICE), keys.to(DEVICE), values.to(DEVICE), layer)
        torch.testing.assert_close(got.cpu(), want, rtol=1e-4, atol=1e-5)


def test_only_the_sides_that_have_rows_are_planned() -> None:
    planned: list[str] = []

    class Spy(TritonAttention):
        def plan(self, rows: AttentionRows) -> None:
            planned.append("decode" if rows.extend_lens.max() == 1 else "extend")

    options = {"max_rows": 8, "max_tokens": 64, "device": DEVICE}
    sides = [Spy(HEADS, KV_HEADS, DIM, **options) for _ in range(2)]  # type: ignore[arg-type]
    split = SplitAttention(*sides)
    for lens, wanted in (
        ([1, 1], ["decode"]),
        ([3, 4], ["extend"]),
        ([1, 4], ["decode", "extend"]),
    ):
        planned.clear()
        split.plan(make_rows([9, 9], lens))
        assert planned == wanted
