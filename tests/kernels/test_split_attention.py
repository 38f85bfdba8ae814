"""Mixed batches split between two backends equal the formula; nothing is planned in vain."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rtlang.kernels.attention.base import AttentionLayer, AttentionRows, DeviceRows, NewKV
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


class New:
    """A backend for rows without a prefix that reads keys and values from ``new`` alone."""

    def __init__(self) -> None:
        self.num_queries = 0

    def plan(self, rows: AttentionRows) -> None:
        assert np.array_equal(rows.seq_lens, rows.extend_lens)
        count = self.num_queries = int(rows.seq_lens.sum())
        starts = np.concatenate([[0], np.cumsum(rows.seq_lens)])
        table = np.zeros((len(rows.seq_lens), int(rows.seq_lens.max())), np.int32)
        for i, length in enumerate(rows.seq_lens):
            table[i, :length] = np.arange(count)[starts[i] : starts[i] + length]
        self._reference = ReferenceAttention()
        self._reference.plan(AttentionRows(rows.seq_lens, rows.extend_lens, table))

    def run(
        self,
        q: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        layer: AttentionLayer,
        out: torch.Tensor | None = None,
        new: NewKV | None = None,
    ) -> torch.Tensor:
        assert new is not None and out is not None and len(new[0]) == len(q) == self.num_queries
        result = self._reference.run(q.cpu(), new[0].cpu(), new[1].cpu(), layer)
        return out.copy_(result)


@pytest.mark.parametrize(
    ("seq_lens", "extend_lens", "num_new"),
    [
        ([9, 30, 12, 20], [1, 1, 5, 20], 20),
        ([20, 5], [20, 5], 25),
        ([9, 7, 12, 6], [1, 7, 5, 6], 6),  # a row with a prefix behind one without
        ([9, 12], [1, 5], 0),
        ([1, 4], [1, 4], 4),  # the first has one query
    ],
)
def test_rows_without_a_prefix_read_what_the_layer_made(
    seq_lens: list[int], extend_lens: list[int], num_new: int
) -> None:
    torch.manual_seed(0)
    rows, layer = make_rows(seq_lens, extend_lens), AttentionLayer(0.3)
    total = sum(extend_lens)
    q = torch.randn(total, HEADS, DIM)
    keys, values = torch.randn(2, sum(seq_lens) + 1, KV_HEADS, DIM).unbind(0)
    places = [
        int(rows.slot_table[i, t])
        for i, (seq, extend) in enumerate(zip(seq_lens, extend_lens, strict=True))
        for t in range(seq - extend, seq)
    ]
    new = keys[places].to(DEVICE), values[places].to(DEVICE)
    reference = ReferenceAttention()
    reference.plan(rows)
    want = reference.run(q, keys, values, layer)
    fresh = New()
    split = SplitAttention(backend(), backend(), fresh)
    split.plan(rows)
    got = split.run(q.to(DEVICE), keys.to(DEVICE), values.to(DEVICE), layer, new=new)
    torch.testing.assert_close(got.cpu(), want, rtol=1e-4, atol=1e-5)
    assert fresh.num_queries == num_new
