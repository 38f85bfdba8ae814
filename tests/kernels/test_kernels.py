"""Kernels against their plain forms, and attention against the formula."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rtlang.kernels.activation import gelu_tanh_mul, silu_mul
from rtlang.kernels.attention.base import AttentionLayer, AttentionRows
from rtlang.kernels.attention.reference import ReferenceAttention
from rtlang.kernels.attention.torch_native import TorchAttention
from rtlang.kernels.linear import linear, linear_ref
from rtlang.kernels.norm import add_rmsnorm, rmsnorm, rmsnorm_ref
from rtlang.kernels.rope import apply_rope, apply_rope_ref, cos_sin, inverse_frequencies
from rtlang.kernels.store_kv import store_kv, store_kv_ref

LAYERS = [
    AttentionLayer(0.3),
    AttentionLayer(0.3, window=5),
    AttentionLayer(0.3, soft_cap=2.0),
]


def random_rows(rng: np.random.Generator, num: int, shared: int) -> AttentionRows:
    """Ragged rows; all of them start with the same ``shared`` slots."""
    extend = rng.integers(1, 40, num).astype(np.int32)
    extend[: num // 2] = 1
    seq = (extend + shared + rng.integers(0, 60, num)).astype(np.int32)
    table = rng.permutation(np.arange(1, 1 + num * 200)).reshape(num, 200).astype(np.int32)
    table[:, :shared] = np.arange(3000, 3000 + shared)
    return AttentionRows(seq, extend, table[:, : int(seq.max())])


@pytest.mark.parametrize("layer", LAYERS, ids=["plain", "window", "soft-cap"])
@pytest.mark.parametrize(("num", "shared"), [(1, 0), (3, 0), (7, 0), (5, 50), (6, 100)])
def test_attention_equals_the_formula_and_reads_nothing_unwritten(
    num: int, shared: int, layer: AttentionLayer
) -> None:
    rng = np.random.default_rng(num * 100 + shared)
    rows = random_rows(rng, num, shared)
    torch.manual_seed(0)
    # J2: whatever no row has written is NaN.
    keys = torch.full((3200, 2, 16), float("nan"))
    values = keys.clone()
    for i, seq in enumerate(rows.seq_lens):
        slots = torch.from_numpy(rows.slot_table[i, :seq].astype(np.int64))
        keys[slots] = torch.randn(len(slots), 2, 16)
        values[slots] = torch.randn(len(slots), 2, 16)
    q = torch.randn(int(rows.extend_lens.sum()), 6, 16)
    outs = []
    for backend in (ReferenceAttention(), TorchAttention(), TorchAttention(share_prefix=False)):
        backend.plan(rows)
        outs.append(backend.run(q, keys, values, layer))
    assert not outs[1].isnan().any()
    torch.testing.assert_close(outs[1], outs[0], atol=2e-6, rtol=1e-5)
    torch.testing.assert_close(outs[2], outs[0], atol=2e-6, rtol=1e-5)


def test_long_queries_are_cut_into_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rtlang.kernels.attention.torch_native.MAX_SCORES", 2000)
    rows = AttentionRows(
        np.array([90], np.int32), np.array([70], np.int32), np.arange(90, dtype=np.int32)[None]
    )
    keys, values, q = torch.randn(90, 2, 8), torch.randn(90, 2, 8), torch.randn(70, 4, 8)
    outs = []
    for backend in (ReferenceAttention(), TorchAttention()):
        backend.plan(rows)
        outs.append(backend.run(q, keys, values, AttentionLayer(0.5)))
    torch.testing.assert_close(outs[1], outs[0], atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("rows", [1, 2, 5, 64, 129])
@pytest.mark.parametrize("bias", [True, False])
def test_linear(rows: int, bias: bool) -> None:
    x, weight = torch.randn(rows, 24), torch.randn(40, 24)
    b = torch.randn(40) if bias else None
    out = linear(x, weight, b)
    assert out.is_contiguous()
    torch.testing.assert_close(out, linear_ref(x, weight, b))


def test_linear_names_the_wrong_argument() -> None:
    with pytest.raises(ValueError, match=r"x: expected \[\?x24\]"):
        linear(torch.randn(2, 23), torch.randn(40, 24))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rmsnorm(dtype: torch.dtype) -> None:
    x, weight = torch.randn(7, 32, dtype=dtype), torch.randn(32, dtype=dtype)
    torch.testing.assert_close(rmsnorm(x, weight, 1e-5), rmsnorm_ref(x, weight, 1e-5))
    residual = torch.randn(7, 32, dtype=dtype)
    want = residual + x
    normed, kept = add_rmsnorm(x, residual, weight, 1e-5)
    torch.testing.assert_close(kept, want)
    torch.testing.assert_close(normed, rmsnorm_ref(want, weight, 1e-5))


def test_rope_rotates_pairs_and_keeps_relative_angles() -> None:
    freqs = inverse_frequencies(16, 10000.0, {})
    x = torch.randn(5, 3, 16)
    cos, sin = cos_sin(torch.arange(5), freqs)
    torch.testing.assert_close(apply_rope(x, cos, sin), apply_rope_ref(x, cos, sin))
    q, k = torch.randn(1, 1, 16), torch.randn(1, 1, 16)

    def score(at: int, distance: int) -> float:
        rotated = [
            apply_rope(v, *cos_sin(torch.tensor([p]), freqs))
            for v, p in ((q, at + distance), (k, at))
        ]
        return float((rotated[0] * rotated[1]).sum())

    assert score(0, 4) == pytest.approx(score(90, 4), abs=1e-4)


def test_rope_types_that_are_not_built_are_named() -> None:
    with pytest.raises(ValueError, match="yarn"):
        inverse_frequencies(16, 10000.0, {"rope_type": "yarn"})


def test_store_kv() -> None:
    pools = [torch.zeros(30, 2, 4) for _ in range(2)]
    x, slots = torch.randn(5, 2, 4), torch.tensor([7, 3, 29, 0, 12])
    store_kv(x, pools[0], slots)
    store_kv_ref(x, pools[1], slots)
    assert torch.equal(pools[0], pools[1])
    with pytest.raises(ValueError, match="slots"):
        store_kv(x, pools[0], slots.int())


def test_gated_activations() -> None:
    x = torch.randn(3, 12)
    gate, up = x[:, :6], x[:, 6:]
    torch.testing.assert_close(silu_mul(x), gate * torch.sigmoid(gate) * up)
    inner = 0.7978845608 * (gate + 0.044715 * gate**3)
    torch.testing.assert_close(gelu_tanh_mul(x), 0.5 * gate * (1 + torch.tanh(inner)) * up)
