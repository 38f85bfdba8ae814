"""The Triton attention against the formula: on a GPU where there is one, else interpreted."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rtlang.kernels.attention import triton_backend
from rtlang.kernels.attention.base import AttentionLayer, AttentionRows, DeviceRows
from rtlang.kernels.attention.reference import ReferenceAttention
from rtlang.kernels.attention.triton_backend import TritonAttention
from rtlang.kernels.attention.triton_decode import BlockConfig, plan

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
#: bfloat16 is left out of the interpreter, whose conversion rounds another way.
DTYPES = [torch.float32, torch.float16] + ([torch.bfloat16] if ON_GPU else [])
TOLERANCES: dict[torch.dtype, dict[str, Any]] = {
    torch.float32: {"rtol": 1e-4, "atol": 1e-5},
    torch.float16: {"rtol": 4e-3, "atol": 2e-3},
    torch.bfloat16: {"rtol": 2e-2, "atol": 2e-2},
}
#: Items of at least 16 keys, as many as may be: short rows are cut too.
CUT = BlockConfig(block_n=16, num_warps=4, num_stages=2, min_tokens=16, waves=2)


@dataclasses.dataclass
class Case:
    """A batch on the host; ``pad_rows`` and ``pad_tokens`` fill it up as a captured graph's."""

    rows: AttentionRows
    q: torch.Tensor  # [sum(extend_lens), num_heads, head_dim]
    keys: torch.Tensor
    values: torch.Tensor
    pad_rows: int = 0
    pad_tokens: int = 0

    @property
    def decode(self) -> bool:
        return bool((self.rows.extend_lens == 1).all())

    def device_rows(self, decode: bool) -> DeviceRows:
        """Row i's line of the device's table is not i: lines are in reverse, with one in front."""
        num_rows = len(self.rows.seq_lens)
        pads = [1 if decode else 0] * self.pad_rows
        seq_lens = np.concatenate([self.rows.seq_lens, pads]).astype(np.int32)
        extend_lens = np.concatenate([self.rows.extend_lens, pads]).astype(np.int32)
        table = np.full((num_rows + 2, self.rows.slot_table.shape[1]), 0, np.int32)
        table[1 : num_rows + 1] = self.rows.slot_table[::-1]
        lines = np.concatenate([np.arange(num_rows, 0, -1), [0] * self.pad_rows]).astype(np.int32)
        q_starts = np.concatenate([[0], np.cumsum(extend_lens)]).astype(np.int32)
        arrays = (seq_lens, q_starts, lines, table)
        on_device = [torch.from_numpy(x).to(DEVICE) for x in arrays]
        return DeviceRows(on_device[0], on_device[1], on_device[2], on_device[3], decode)

    def padded_q(self, decode: bool) -> torch.Tensor:
        num_pads = self.pad_rows if decode else self.pad_tokens
        return torch.cat([self.q, torch.full_like(self.q[:1], 7.0).expand(num_pads, -1, -1)])

    def run(
        self,
        layer: AttentionLayer,
        backend: TritonAttention | None = None,
        config: BlockConfig | None = CUT,
        *,
        decode: bool | None = None,
    ) -> torch.Tensor:
        decode = self.decode if decode is None else decode
        rows = dataclasses.replace(self.rows, device=self.device_rows(decode))
        q = self.padded_q(decode).to(DEVICE)
        backend = backend or make_backend(self, layer.window, config)
        backend.plan(rows)
        out = backend.run(q, self.keys.to(DEVICE), self.values.to(DEVICE), layer)
        return out[: len(self.q)].cpu()

    def reference(self, layer: AttentionLayer) -> torch.Tensor:
        backend = ReferenceAttention()
        backend.plan(self.rows)
        keys, values = self.keys.to(torch.float32), self.values.to(torch.float32)
        return backend.run(self.q, keys * layer.k_scale, values * layer.v_scale, layer)

    def check(
        self,
        layer: AttentionLayer,
        backend: TritonAttention | None = None,
        config: BlockConfig | None = CUT,
        *,
        decode: bool | None = None,
    ) -> None:
        got = self.run(layer, backend, config, decode=decode)
        torch.testing.assert_close(got, self.reference(layer), **TOLERANCES[self.q.dtype])


def make_backend(
    case: Case, window: int | None, config: BlockConfig | None = CUT, num_sms: int = 8
) -> TritonAttention:
    _, num_heads, head_dim = case.q.shape
    return TritonAttention(
        num_heads,
        case.keys.shape[1],
        head_dim,
        windows=(None, window),
        max_rows=12,
        max_tokens=400,
        device=DEVICE,
        num_sms=num_sms,
        config=config,
    )


def make_case(
    seq_lens: list[int],
    extend_lens: list[int],
    *,
    heads: tuple[int, int] = (4, 2),
    head_dim: int = 16,
    page_size: int = 1,
    dtype: torch.dtype = torch.float32,
    fill: float = float("nan"),
    seed: int = 0,
    pad_rows: int = 0,
    pad_tokens: int = 0,
) -> Case:
    """Rows in pages of a shuffled pool; ``fill`` is in every slot that no row owns but slot 0,
    which padding rows read; what stands behind a row in the slot table must not be used at all."""
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    num_pages = sum(-(-n // page_size) for n in seq_lens) + 3
    pages = rng.permutation(np.arange(1, num_pages + 1))
    slots = (pages[:, None] * page_size + np.arange(page_size)).reshape(-1)
    table = np.full((len(seq_lens), max(seq_lens) + 5), -(1 << 30), np.int32)
    own = slots
    for row, seq in enumerate(seq_lens):
        table[row, :seq] = own[:seq]
        own = own[-(-seq // page_size) * page_size :]
    keys = torch.full((int(slots.max()) + 1 + page_size, heads[1], head_dim), fill)
    keys[0] = 1.0
    values = keys.clone()
    used = np.concatenate([table[i, :n] for i, n in enumerate(seq_lens)])
    where = torch.from_numpy(used.astype(np.int64))
    keys[where] = torch.randn(len(used), heads[1], head_dim)
    values[where] = torch.randn(len(used), heads[1], head_dim)
    rows = AttentionRows(np.array(seq_lens, np.int32), np.array(extend_lens, np.int32), table)
    q = torch.randn(sum(extend_lens), heads[0], head_dim)
    return Case(rows, q.to(dtype), keys.to(dtype), values.to(dtype), pad_rows, pad_tokens)


DECODE = [1, 70, 16, 33], [1, 1, 1, 1]
MIXED = [40, 1, 19, 52], [1, 1, 19, 21]
LAYERS = [
    AttentionLayer(scale=0.3),
    AttentionLayer(scale=0.3, window=20),
    AttentionLayer(scale=0.3, soft_cap=2.0),
    AttentionLayer(scale=0.3, window=1, soft_cap=5.0),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("lens", [DECODE, MIXED])
def test_every_layer_equals_the_formula(
    lens: tuple[list[int], list[int]], layer: AttentionLayer, dtype: torch.dtype
) -> None:
    make_case(*lens, dtype=dtype, page_size=16).check(layer)


@pytest.mark.parametrize("heads", [(2, 2), (4, 2), (9, 3), (4, 1), (8, 1), (20, 1)])
@pytest.mark.parametrize("lens", [([1, 37], [1, 1]), ([24, 37, 3], [9, 1, 3])])
def test_query_heads_share_their_kv_head(
    lens: tuple[list[int], list[int]], heads: tuple[int, int]
) -> None:
    make_case(*lens, heads=heads).check(AttentionLayer(scale=0.3, window=30))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("head_dim", [16, 64, 96, 128, 256])
@pytest.mark.parametrize("lens", [([5, 37], [1, 1]), ([24, 37], [9, 1])])
def test_head_dims(lens: tuple[list[int], list[int]], head_dim: int, dtype: torch.dtype) -> None:
    layer = AttentionLayer(scale=head_dim**-0.5)
    make_case(*lens, heads=(2, 1), head_dim=head_dim, dtype=dtype).check(layer)


@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize("lens", [([130, 300], [1, 1]), ([150, 300], [100, 1])])
def test_the_tuned_configs(lens: tuple[list[int], list[int]], head_dim: int) -> None:
    case = make_case(*lens, head_dim=head_dim)
    layer = AttentionLayer(scale=head_dim**-0.5)
    case.check(layer, make_backend(case, None, None, num_sms=132), None)


@given(
    st.lists(st.tuples(st.integers(1, 50), st.integers(1, 50)), min_size=1, max_size=6),
    st.sampled_from(["decode", "extend", "mixed"]),
    st.sampled_from([None, 1, 3, 16, 100]),
    st.sampled_from([None, 5.0]),
    st.sampled_from([1, 16]),
    st.sampled_from([1, 4]),
    st.integers(0, 99),
)
@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_ragged_batches_equal_the_formula(
    lens: list[tuple[int, int]],
    kind: str,
    window: int | None,
    soft_cap: float | None,
    page_size: int,
    waves: int,
    seed: int,
) -> None:
    seq_lens = [max(pair) for pair in lens]
    extend_lens = [min(pair) for pair in lens]
    single = {"decode": 1, "mixed": 2, "extend": len(lens) + 1}[kind]
    extend_lens[::single] = [1] * len(extend_lens[::single])
    if kind == "extend":
        extend_lens[0] = min(lens[0])
    case = make_case(seq_lens, extend_lens, page_size=page_size, seed=seed, pad_rows=seed % 3)
    case.pad_tokens = seed % 4
    layer = AttentionLayer(scale=0.25, window=window, soft_cap=soft_cap)
    case.check(layer, config=dataclasses.replace(CUT, waves=waves))


@pytest.mark.parametrize("waves", [1, 16])
@pytest.mark.parametrize("lens", [([200], [1]), ([200, 3, 90], [5, 1, 40])])
def test_a_cut_row_equals_an_uncut_one(lens: tuple[list[int], list[int]], waves: int) -> None:
    """Cut into up to 13 parts; with ``min_tokens`` of a whole row into none."""
    case, layer = make_case(*lens), AttentionLayer(scale=0.3)
    case.check(layer, config=dataclasses.replace(CUT, waves=waves))
    case.check(layer, config=dataclasses.replace(CUT, min_tokens=256))
    backend = make_backend(case, None, dataclasses.replace(CUT, waves=waves))
    case.check(layer, backend)
    counts = backend._counts[None].item()
    assert counts > len(lens[0]), "no row was cut"
    assert not backend._arrivals.any(), "the next launch starts from zero"


def test_a_decode_batch_may_be_run_as_an_extend() -> None:
    case = make_case(*DECODE, pad_rows=2, pad_tokens=3)
    case.check(AttentionLayer(scale=0.3), decode=False)


@pytest.mark.parametrize("lens", [DECODE, MIXED])
def test_padding_rows_change_nothing(lens: tuple[list[int], list[int]]) -> None:
    layer = AttentionLayer(scale=0.3)
    whole = make_case(*lens).run(layer)
    padded = make_case(*lens, pad_rows=4, pad_tokens=6).run(layer)
    torch.testing.assert_close(padded, whole, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("window", [None, 9])
@pytest.mark.parametrize("lens", [DECODE, MIXED])
def test_j2_a_pool_full_of_nan_changes_nothing(
    lens: tuple[list[int], list[int]], window: int | None
) -> None:
    """J2: foreign slots, page tails and what has left the window never reach a result."""
    layer = AttentionLayer(scale=0.3, window=window)
    nan, zero = (make_case(*lens, page_size=16, fill=fill) for fill in (float("nan"), 0.0))
    if window is not None:
        for i, (seq, ext) in enumerate(zip(*lens, strict=True)):
            gone = nan.rows.slot_table[i, : max(seq - ext - window + 1, 0)].astype(np.int64)
            nan.keys[torch.from_numpy(gone)] = float("nan")
            nan.values[torch.from_numpy(gone)] = float("nan")
    assert torch.equal(nan.run(layer), zero.run(layer))


def test_one_backend_serves_batch_after_batch() -> None:
    layers = AttentionLayer(scale=0.3), AttentionLayer(scale=0.3, window=7)
    backend = make_backend(make_case(*DECODE), 7)
    for seed, lens in enumerate([DECODE, MIXED, ([90, 3, 1, 2], [1, 1, 1, 1]), ([9], [9])]):
        for layer in layers:
            make_case(*lens, seed=seed).check(layer, backend)


def test_the_work_list_is_made_once_a_step_and_window(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def spy(*args: torch.Tensor, **options: Any) -> None:
        made.append(options["window"])
        plan(*args, **options)

    monkeypatch.setattr(triton_backend, "plan", spy)
    case = make_case(*DECODE)
    backend = make_backend(case, 7)
    rows = dataclasses.replace(case.rows, device=case.device_rows(True))
    q, keys, values = (x.to(DEVICE) for x in (case.q, case.keys, case.values))
    for step in range(1, 3):
        backend.plan(rows)
        for window in (None, 7, 7, None):
            backend.run(q, keys, values, AttentionLayer(scale=0.3, window=window))
        assert made == [None, 7] * step


def test_scales_of_stored_keys_and_values() -> None:
    layer = AttentionLayer(scale=0.3, k_scale=0.5, v_scale=3.0)
    for lens in (DECODE, MIXED):
        make_case(*lens).check(layer)
        make_case(*lens).check(dataclasses.replace(layer, soft_cap=3.0))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("lens", [DECODE, MIXED])
def test_float8_pools(lens: tuple[list[int], list[int]], dtype: torch.dtype) -> None:
    case = make_case(*lens, dtype=dtype)
    case.keys = case.keys.to(torch.float8_e4m3fn)
    case.values = case.values.to(torch.float8_e4m3fn)
    case.check(AttentionLayer(scale=0.3, k_scale=0.5, v_scale=3.0))


def test_strided_pools_and_queries() -> None:
    case = make_case(*MIXED)
    slots, heads, dim = case.keys.shape
    pool = torch.empty(heads, slots, 2, dim)
    pool[:, :, 0], pool[:, :, 1] = case.keys.transpose(0, 1), case.values.transpose(0, 1)
    case.keys, case.values = pool[:, :, 0].transpose(0, 1), pool[:, :, 1].transpose(0, 1)
    wide = torch.randn(len(case.q), 9, dim)
    wide[:, 2:6] = case.q
    case.q = wide[:, 2:6]
    assert not case.q.is_contiguous() and not case.keys.is_contiguous()
    case.check(AttentionLayer(scale=0.3))


@pytest.mark.gpu
@pytest.mark.skipif(not ON_GPU, reason="needs a GPU")
@pytest.mark.parametrize("lens", [DECODE, MIXED])
def test_a_captured_graph_replays_with_other_lengths(lens: tuple[list[int], list[int]]) -> None:
    layers = AttentionLayer(scale=0.3), AttentionLayer(scale=0.3, window=7)
    case = make_case(*lens)
    backend = make_backend(case, 7)
    other = make_case([60, 70, 50, 70], lens[1], seed=5)
    size = max(len(case.keys), len(other.keys))
    keys, values = (torch.zeros(size, *case.keys.shape[1:], device=DEVICE) for _ in "kv")
    rows, q = case.device_rows(case.decode), case.q.to(DEVICE)

    def step() -> list[torch.Tensor]:
        backend.plan(dataclasses.replace(case.rows, device=rows))
        return [backend.run(q, keys, values, layer) for layer in layers]

    step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outs = step()
    for batch in (other, case, other):
        fresh = batch.device_rows(case.decode)
        rows.seq_lens.copy_(fresh.seq_lens)
        width = min(rows.slot_table.shape[1], fresh.slot_table.shape[1])
        rows.slot_table[:, :width].copy_(fresh.slot_table[:, :width])
        keys[: len(batch.keys)].copy_(batch.keys)
        values[: len(batch.values)].copy_(batch.values)
        q.copy_(batch.q)
        graph.replay()
        for out, layer in zip(outs, layers, strict=True):
            torch.testing.assert_close(
                out.cpu(), batch.reference(layer), **TOLERANCES[torch.float32]
            )


def test_wrong_arguments_are_named() -> None:
    case, layer = make_case(*DECODE), AttentionLayer(scale=0.3)
    backend = make_backend(case, 7)
    with pytest.raises(ValueError, match=r"^rows: "):
        backend.plan(case.rows)
    backend.plan(dataclasses.replace(case.rows, device=case.device_rows(True)))
    q, keys, values = (x.to(DEVICE) for x in (case.q, case.keys, case.values))
    wrong: dict[str, Callable[[], object]] = {
        "q": lambda: backend.run(q[:-1], keys, values, layer),
        "keys": lambda: backend.run(q, keys.half(), values.half(), layer),
        "values": lambda: backend.run(q, keys, values[:, :1], layer),
        "out": lambda: backend.run(q, keys, values, layer, q[:-1]),
        "layer": lambda: backend.run(q, keys, values, AttentionLayer(scale=0.3, window=8)),
        "num_heads": lambda: TritonAttention(5, 2, 16, max_rows=1, max_tokens=1, device=DEVICE),
        "max_tokens": lambda: TritonAttention(4, 2, 16, max_rows=2, max_tokens=1, device=DEVICE),
    }
    for name, call in wrong.items():
        with pytest.raises(ValueError, match=rf"^{name}: "):
            call()


@given(
    st.lists(st.integers(1, 3000), min_size=1, max_size=5),
    st.sampled_from([16, 64, 128]),
    st.integers(1, 400),
)
@settings(max_examples=40, deadline=None)
def test_no_part_of_a_decode_row_is_empty(lens: list[int], block_n: int, target: int) -> None:
    """An empty part has no weight to divide by: its NaN would spoil the row."""
    num_rows = len(lens)
    items = torch.zeros((9, num_rows + target), dtype=torch.int32, device=DEVICE)
    count = torch.zeros(1, dtype=torch.int32, device=DEVICE)
    rows = torch.arange(num_rows + 1, dtype=torch.int32, device=DEVICE)
    seq_lens = torch.tensor(lens, dtype=torch.int32, device=DEVICE)
    config = BlockConfig(block_n, 4, 3, 64, 4)
    plan(
        seq_lens, rows, rows[:-1].contiguous(), items, count,
        target=target, window=None, block_q=1, config=config,
    )  # fmt: skip
    used = items[:, : int(count)].tolist()
    seen: dict[int, list[tuple[int, int]]] = {}
    for line, start, stop in zip(used[0], used[4], used[5], strict=True):
        assert start < stop
        seen.setdefault(line, []).append((start, stop))
    for line, parts in seen.items():
        parts.sort()
        assert parts[0][0] == 0 and parts[-1][1] == lens[line]
        assert all(a[1] == b[0] for a, b in itertools.pairwise(parts))
    assert set(seen) == set(range(num_rows))
