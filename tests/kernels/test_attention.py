"""The CPU's attention against the formula, row by row, on ragged batches over a shuffled pool."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rtlang.kernels.attention import torch_native
from rtlang.kernels.attention.base import AttentionLayer, AttentionRows
from rtlang.kernels.attention.reference import ReferenceAttention
from rtlang.kernels.attention.torch_native import TorchAttention

KV_HEADS, PER_KV, DIM = 2, 3, 8
CPU = torch.device("cpu")
LAYER = AttentionLayer(scale=0.3)
#: fp32 against the reference in fp64.
TOLERANCE: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-5}


@dataclasses.dataclass
class Case:
    rows: AttentionRows
    q: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor

    def run(self, layer: AttentionLayer = LAYER, *, share_prefix: bool = True) -> torch.Tensor:
        backend = TorchAttention(share_prefix=share_prefix)
        backend.plan(self.rows)
        return backend.run(self.q, self.keys, self.values, layer)

    def reference(self, layer: AttentionLayer = LAYER) -> torch.Tensor:
        backend = ReferenceAttention()
        backend.plan(self.rows)
        return backend.run(self.q, self.keys, self.values, layer)

    def check(self, layer: AttentionLayer = LAYER) -> None:
        torch.testing.assert_close(self.run(layer), self.reference(layer), **TOLERANCE)


def make_case(
    seq_lens: list[int],
    extend_lens: list[int],
    *,
    shared_len: int = 0,
    page_size: int = 1,
    fill: float = float("nan"),
    seed: int = 0,
) -> Case:
    """Rows in pages of a shuffled pool; ``fill`` is in every slot that no row owns."""
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    num_pages = sum(-(-n // page_size) for n in seq_lens) + shared_len // page_size + 3
    pages = rng.permutation(np.arange(1, num_pages + 1))
    slots = (pages[:, None] * page_size + np.arange(page_size)).reshape(-1)
    shared, own = slots[:shared_len], slots[shared_len:]
    table = np.full((len(seq_lens), max(seq_lens) + 5), 0, np.int32)  # 0: the reserved slot
    for row, seq in enumerate(seq_lens):
        front = min(shared_len, seq)
        table[row, :front] = shared[:front]
        table[row, front:seq] = own[: seq - front]
        own = own[-(-(seq - front) // page_size) * page_size :]
    keys = torch.full((int(slots.max()) + 1 + page_size, KV_HEADS, DIM), fill)
    values = keys.clone()
    used = np.unique(np.concatenate([table[i, :n] for i, n in enumerate(seq_lens)]))
    where = torch.from_numpy(used.astype(np.int64))
    keys[where] = torch.randn(len(used), KV_HEADS, DIM)
    values[where] = torch.randn(len(used), KV_HEADS, DIM)
    rows = AttentionRows(np.array(seq_lens, np.int32), np.array(extend_lens, np.int32), table)
    return Case(rows, torch.randn(sum(extend_lens), KV_HEADS * PER_KV, DIM), keys, values)


@st.composite
def ragged(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    seq_lens = draw(st.lists(st.integers(1, 70), min_size=1, max_size=9))
    kind = draw(st.sampled_from(["decode", "extend", "mixed"]))
    extend_lens = []
    for i, seq in enumerate(seq_lens):
        single = kind == "decode" or (kind == "mixed" and i % 2 == 0)
        extend_lens.append(1 if single else draw(st.integers(1, seq)))
    return seq_lens, extend_lens


@given(
    ragged(),
    st.sampled_from([None, 1, 3, 16, 100]),
    st.sampled_from([None, 5.0]),
    st.sampled_from([1, 16]),
    st.integers(0, 99),
)
@settings(max_examples=150, deadline=None)
def test_ragged_batches_equal_the_formula(
    lens: tuple[list[int], list[int]],
    window: int | None,
    soft_cap: float | None,
    page_size: int,
    seed: int,
) -> None:
    layer = AttentionLayer(scale=0.25, window=window, soft_cap=soft_cap)
    make_case(*lens, page_size=page_size, seed=seed).check(layer)


@pytest.mark.parametrize("soft_cap", [None, 3.0])
@pytest.mark.parametrize(
    ("seq_lens", "extend_lens"),
    [
        ([300, 333, 301], [1, 1, 1]),
        ([300, 333, 301, 290], [44, 77, 45, 34]),
        ([300, 333, 301, 400], [1, 1, 45, 144]),
        ([257, 300], [1, 44]),
    ],
)
def test_shared_prefix_equals_reading_it_once_per_row(
    seq_lens: list[int], extend_lens: list[int], soft_cap: float | None
) -> None:
    case = make_case(seq_lens, extend_lens, shared_len=256)
    layer = AttentionLayer(scale=0.3, soft_cap=soft_cap)
    case.check(layer)
    torch.testing.assert_close(case.run(layer), case.run(layer, share_prefix=False), **TOLERANCE)


def test_shared_prefix_is_really_read_once() -> None:
    case = make_case([300] * 8, [1] * 8, shared_len=256)
    plan = torch_native._make_groups(case.rows, None, CPU, share=True)
    assert [(len(g.shared), g.kv_len, g.num_rows) for g in plan] == [(256, 44, 8)]
    # With a window the front is out of sight for some rows: no sharing there.
    plan = torch_native._make_groups(case.rows, 32, CPU, share=True)
    assert [(len(g.shared), g.kv_len) for g in plan] == [(0, 32)]


def test_the_part_that_rows_compute_themselves_is_never_taken_as_shared() -> None:
    """Two rows of one batch may compute the same new slots: causality still holds inside them."""
    case = make_case([400, 400, 400], [300, 200, 100], shared_len=400)
    case.check()


def test_long_rows_are_cut_into_blocks_of_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    case = make_case([90, 80, 7], [50, 60, 7], shared_len=0)
    whole = case.run()
    monkeypatch.setattr(torch_native, "MAX_SCORES", KV_HEADS * PER_KV * 2 * 90 * 8)
    sizes: list[int] = []
    attend = torch_native._attend_block

    def spy(q: torch.Tensor, *args: object) -> torch.Tensor:
        sizes.append(q.shape[3])
        return attend(q, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(torch_native, "_attend_block", spy)
    torch.testing.assert_close(case.run(), whole, **TOLERANCE)
    assert len(sizes) > 5 and max(sizes) <= 8
    case.check(AttentionLayer(scale=0.3, window=13))


def test_groups_gather_a_bounded_number_of_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    case = make_case([60, 50, 61, 3, 64, 40], [1] * 6)
    whole = case.run()
    monkeypatch.setattr(torch_native, "MAX_GROUP_SLOTS", 128)
    groups = torch_native._make_groups(case.rows, None, CPU, share=True)
    assert len(groups) >= 3
    assert all(g.num_rows * g.kv_len <= 128 for g in groups)
    torch.testing.assert_close(case.run(), whole, **TOLERANCE)


@pytest.mark.parametrize("window", [None, 9])
def test_j2_a_pool_full_of_nan_changes_nothing(window: int | None) -> None:
    """J2: slots that no row owns, page tails and the reserved slot never reach a result."""
    layer = AttentionLayer(scale=0.3, window=window)
    lens = [33, 17, 2, 64, 65], [1, 17, 2, 5, 1]
    nan = make_case(*lens, page_size=16, fill=float("nan")).run(layer)
    zero = make_case(*lens, page_size=16, fill=0.0).run(layer)
    assert bool(torch.isfinite(nan).all())
    assert torch.equal(nan, zero)


def test_only_needed_slots_of_a_window_are_read() -> None:
    case = make_case([500, 400], [1, 1])
    before = case.reference(AttentionLayer(scale=0.3, window=20))
    for row, seq in enumerate((500, 400)):  # what has left the window may be anything
        out = torch.from_numpy(case.rows.slot_table[row, : seq - 20].astype(np.int64))
        case.keys[out] = float("nan")
        case.values[out] = float("nan")
    after = case.run(AttentionLayer(scale=0.3, window=20))
    torch.testing.assert_close(after, before, **TOLERANCE)


def test_bfloat16_is_close_to_the_formula() -> None:
    case = make_case([300, 333, 301], [1, 5, 1], shared_len=256)
    case.q, case.keys = case.q.bfloat16(), case.keys.bfloat16()
    case.values = case.values.bfloat16()
    torch.testing.assert_close(case.run(), case.reference(), rtol=2e-2, atol=2e-2)


def test_a_plan_is_replaced_by_the_next() -> None:
    backend = TorchAttention()
    for seed, lens in enumerate([([5, 9], [1, 1]), ([7], [7]), ([5, 9], [2, 3])]):
        case = make_case(*lens, seed=seed)
        backend.plan(case.rows)
        out = backend.run(case.q, case.keys, case.values, LAYER)
        torch.testing.assert_close(out, case.reference(), **TOLERANCE)


def test_wrong_tensors_are_named() -> None:
    case = make_case([5, 9], [1, 2])
    case.q = case.q[:-1]
    with pytest.raises(ValueError, match=r"^q: expected"):
        case.run()
    case = make_case([5, 9], [1, 2])
    case.values = case.values[:, :1]
    with pytest.raises(ValueError, match=r"^values: expected"):
        case.run()
