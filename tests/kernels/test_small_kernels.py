"""Norms, activations, RoPE, KV store, linear: each equals its plain form, and checks its border."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from rtlang.kernels.activation import (
    gelu_tanh_mul,
    gelu_tanh_mul_ref,
    silu_mul,
    silu_mul_ref,
)
from rtlang.kernels.linear import linear, linear_fp32, linear_ref, pack
from rtlang.kernels.norm import add_rmsnorm, add_rmsnorm_ref, rmsnorm, rmsnorm_ref
from rtlang.kernels.rope import apply_rope, apply_rope_ref, cos_sin, inverse_frequencies
from rtlang.kernels.store_kv import store_kv, store_kv_ref

ROWS = (1, 2, 7, 33)
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("rows", ROWS)
def test_rmsnorm_equals_its_plain_form(rows: int) -> None:
    x, weight = random(rows, 48) * 3, random(48, seed=1)
    torch.testing.assert_close(rmsnorm(x, weight, 1e-5), rmsnorm_ref(x, weight, 1e-5))


def test_rmsnorm_of_bfloat16_is_computed_in_fp32() -> None:
    x, weight = random(4, 48).bfloat16(), random(48, seed=1).bfloat16()
    exact = rmsnorm_ref(x.double().float(), weight.float(), 1e-5)
    assert rmsnorm(x, weight, 1e-5).dtype == torch.bfloat16
    torch.testing.assert_close(rmsnorm(x, weight, 1e-5), exact.bfloat16(), rtol=0, atol=0)


def test_rmsnorm_of_zeros_is_zero_thanks_to_eps() -> None:
    assert not rmsnorm(torch.zeros(2, 8), torch.ones(8), 1e-6).any()


def test_add_rmsnorm_equals_its_plain_form_and_updates_the_residual() -> None:
    x, residual, weight = random(5, 16), random(5, 16, seed=1), random(16, seed=2)
    wanted = add_rmsnorm_ref(x, residual, weight, 1e-5)
    before = x.clone()
    normed, total = add_rmsnorm(x, residual, weight, 1e-5)
    torch.testing.assert_close((normed, total), wanted)
    assert total is residual and torch.equal(x, before)


@pytest.mark.parametrize("rows", ROWS)
def test_gated_activations_equal_their_plain_forms(rows: int) -> None:
    gate_up = random(rows, 64) * 4
    before = gate_up.clone()
    torch.testing.assert_close(silu_mul(gate_up), silu_mul_ref(gate_up))
    torch.testing.assert_close(gelu_tanh_mul(gate_up), gelu_tanh_mul_ref(gate_up))
    assert torch.equal(gate_up, before)


def test_gated_activations_take_the_gate_from_the_first_half() -> None:
    gate_up = torch.tensor([[0.0, 0.0, 5.0, 5.0]])
    assert silu_mul(gate_up).tolist() == [[0.0, 0.0]]
    assert gelu_tanh_mul(gate_up).tolist() == [[0.0, 0.0]]


@pytest.mark.parametrize("rows", [0, *ROWS, 200])
@pytest.mark.parametrize(("features", "outputs"), [(40, 24), (64, 96), (17, 5)])
@pytest.mark.parametrize("with_bias", [False, True])
def test_linear_equals_its_plain_form(
    rows: int, features: int, outputs: int, with_bias: bool
) -> None:
    weight = random(outputs, features, seed=1)
    bias = random(outputs, seed=2) if with_bias else None
    wide = random(rows, 2 * features)
    for x in (random(rows, features), wide[:, features:]):  # rows side by side, and apart
        out = linear(x, pack(weight), bias)
        torch.testing.assert_close(out, linear_ref(x, weight, bias), rtol=1e-4, atol=1e-5)
        assert out.is_contiguous()


def test_packing_reads_a_weight_and_leaves_it() -> None:
    fused = random(12, 8, seed=1)
    before = fused.clone()
    part = pack(fused[2:7])  # a view with an offset
    x = random(3, 8)
    torch.testing.assert_close(linear(x, part), linear_ref(x, fused[2:7]), rtol=1e-4, atol=1e-5)
    assert torch.equal(fused, before)
    assert (part.out_features, part.in_features) == (5, 8)


def test_linear_without_packing_is_the_plain_form(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    x, weight = random(3, 4), random(5, 4, seed=1)
    packed = pack(weight)
    assert not packed.packed and packed.data is weight
    assert torch.equal(linear(x, packed), F.linear(x, weight))


def test_linear_takes_bfloat16() -> None:
    x, weight = random(3, 40).bfloat16(), random(24, 40, seed=1).bfloat16()
    wanted = linear_ref(x.float(), weight.float())
    torch.testing.assert_close(linear(x, pack(weight)).float(), wanted, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("scaling", [{}, {"rope_type": "linear", "factor": 4.0}, LLAMA3])
def test_rope_rotates_pairs_by_position_times_frequency(scaling: dict[str, float]) -> None:
    freqs = inverse_frequencies(16, 10000.0, scaling)
    positions = torch.tensor([0, 1, 2, 999])
    x = random(4, 3, 16)
    out = apply_rope(x, *cos_sin(positions, freqs))
    torch.testing.assert_close(out, apply_rope_ref(x, *cos_sin(positions, freqs)))
    torch.testing.assert_close(out[0], x[0])  # position 0 turns nothing
    for token, head, pair in ((1, 0, 0), (3, 2, 5)):
        angle = float(positions[token]) * float(freqs[pair])
        a, b = float(x[token, head, pair]), float(x[token, head, pair + 8])
        turned = a * math.cos(angle) - b * math.sin(angle)
        assert out[token, head, pair] == pytest.approx(turned, abs=1e-4)


def test_llama3_scaling_keeps_short_waves_and_stretches_long_ones() -> None:
    plain = inverse_frequencies(64, 10000.0, {})
    scaled = inverse_frequencies(64, 10000.0, LLAMA3)
    wavelength = 2 * math.pi / plain
    short, long = wavelength < 64 / 4, wavelength > 64 / 1
    between = ~short & ~long
    torch.testing.assert_close(scaled[short], plain[short])
    torch.testing.assert_close(scaled[long], plain[long] / 8)
    assert bool(between.any())
    assert bool((scaled[between] < plain[between]).all())
    assert bool((scaled[between] > plain[between] / 8).all())


def test_unknown_rope_type_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="yarn"):
        inverse_frequencies(16, 10000.0, {"rope_type": "yarn"})


@pytest.mark.parametrize("heads_first", [False, True])
def test_store_kv_writes_its_slots_and_no_others(heads_first: bool) -> None:
    x = random(3, 2, 4)
    pool = torch.full((2, 9, 4) if heads_first else (9, 2, 4), -1.0)
    pool = pool.transpose(0, 1) if heads_first else pool
    plain, slots = pool.clone(), torch.tensor([7, 2, 4])
    store_kv(x, pool, slots)
    store_kv_ref(x, plain, slots)
    assert torch.equal(pool, plain)
    assert torch.equal(pool[7], x[0])
    assert bool((pool[[0, 1, 3, 5, 6, 8]] == -1).all())


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("weight", lambda: rmsnorm(torch.zeros(2, 8), torch.ones(7), 1e-5)),
        ("residual", lambda: add_rmsnorm(torch.zeros(2, 8), torch.zeros(3, 8), torch.ones(8), 0.1)),
        ("gate_up", lambda: silu_mul(torch.zeros(2, 7))),
        ("gate_up", lambda: gelu_tanh_mul(torch.zeros(2, 2, 8))),
        ("x", lambda: linear(torch.zeros(2, 7), pack(torch.zeros(3, 8)))),
        ("x", lambda: linear(torch.zeros(2, 8).bfloat16(), pack(torch.zeros(3, 8)))),
        ("weight", lambda: pack(torch.zeros(8))),
        ("cos", lambda: apply_rope(torch.zeros(2, 1, 8), torch.zeros(2, 8), torch.zeros(2, 1, 8))),
        ("sin", lambda: apply_rope(torch.zeros(2, 1, 8), torch.zeros(2, 1, 8), torch.zeros(2, 8))),
        ("slots", lambda: store_kv(torch.zeros(2, 1, 8), torch.zeros(9, 1, 8), torch.zeros(2))),
        ("pool", lambda: store_kv(torch.zeros(1, 1, 8), torch.zeros(9, 2, 8), torch.tensor([1]))),
    ],
)
def test_a_wrong_argument_is_named_with_expected_and_got(name: str, call: object) -> None:
    assert callable(call)
    with pytest.raises(ValueError, match=rf"^{name}: expected .* got "):
        call()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_logits_are_fp32_sums(dtype: torch.dtype) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    x, weight = torch.randn(3, 64).to(device, dtype), torch.randn(40, 64).to(device, dtype)
    got = linear_fp32(x, pack(weight))
    assert got.dtype == torch.float32
    tolerance = 1e-4 if dtype == torch.float32 or device == "cuda" else 0.1
    torch.testing.assert_close(got, x.float() @ weight.float().T, rtol=tolerance, atol=tolerance)
