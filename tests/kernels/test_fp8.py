"""FP8: quantizing rows and weights, products with them, and the Triton form of the first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from rtlang.kernels import fp8
from rtlang.kernels.fp8 import (
    FP8,
    FP8_MAX,
    dequantize,
    fits,
    fp8_linear,
    fp8_linear_ref,
    quantize_rows,
    quantize_rows_ref,
    quantize_weight,
)
from rtlang.kernels.linear import linear, linear_ref, pack, pack_fp8
from rtlang.kernels.triton import quantize
from rtlang.kernels.triton.quantize import quantize_rows_triton, rescale_triton

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
#: What the interpreter can cast; on a GPU bf16 too.
DTYPES = (torch.float32, torch.float16)
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def relative_error(got: torch.Tensor, want: torch.Tensor) -> float:
    return float((got.float() - want.float()).norm() / want.float().norm())


def spread_rows(num_rows: int, size: int, dtype: torch.dtype) -> torch.Tensor:
    """Rows of very different sizes; the fourth is zero."""
    x = random(num_rows, size) * torch.logspace(-6, 4, num_rows)[:, None]
    x[3] = 0.0
    return x.to(dtype)


def bits(values: torch.Tensor) -> torch.Tensor:
    assert values.dtype == FP8
    return values.cpu().view(torch.uint8)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.bfloat16])
def test_a_row_is_within_half_a_step(dtype: torch.dtype) -> None:
    x = spread_rows(8, 200, dtype)
    values, scale = quantize_rows(x)
    assert values.dtype == FP8 and values.shape == x.shape
    assert scale.dtype == torch.float32 and scale.shape == (8,)
    got, want = dequantize(values, scale, torch.float32), x.float()
    # Four significant bits; below 2^-6 of the scaled values steps of 2^-9.
    bound = torch.maximum(want.abs() / 16, scale[:, None] * 2.0**-10)
    assert bool(((got - want).abs() <= bound * 1.001).all())
    largest = want.abs().amax(-1)
    torch.testing.assert_close(got.abs().amax(-1), largest, rtol=1e-6, atol=0)


def test_rows_of_zeros_stay_zeros() -> None:
    values, scale = quantize_rows(torch.zeros(3, 16))
    assert not values.float().any()
    assert bool((scale > 0).all()) and bool((1 / scale).isfinite().all())
    assert not fp8_linear(torch.zeros(3, 16), *quantize_weight(torch.zeros(32, 16))).any()


def test_no_rows_and_strided_rows() -> None:
    values, scale = quantize_rows(torch.zeros(0, 16))
    assert values.shape == (0, 16) and scale.shape == (0,)
    assert fp8_linear(torch.zeros(0, 16), *quantize_weight(random(32, 16))).shape == (0, 32)
    x = random(6, 40)
    got, want = quantize_rows(x[::2, 8:24]), quantize_rows(x[::2, 8:24].contiguous())
    assert torch.equal(bits(got[0]), bits(want[0])) and torch.equal(got[1], want[1])


def strange_rows() -> torch.Tensor:
    x = random(5, 64)
    x[0, 3], x[1, 5], x[2, 1], x[3, 0] = float("inf"), float("nan"), 3e38, -float("inf")
    return x


@pytest.mark.parametrize("run", [quantize_rows_ref, quantize_rows_triton])
def test_huge_values_saturate_and_a_nan_stays_in_its_row(run: Callable[..., Any]) -> None:
    values, scale = (tensor.cpu() for tensor in run(strange_rows().to(DEVICE)))
    wide = values.float()
    assert bool(wide.isfinite().all())
    assert wide[0, 3] == wide[2, 1] == FP8_MAX and wide[3, 0] == -FP8_MAX
    assert not wide[1].any() and scale.isnan().tolist() == [False, True, False, False, False]
    assert bool(scale[[0, 2, 3, 4]].isfinite().all())
    want = quantize_rows_ref(strange_rows()[4:])
    assert scale[4] == want[1][0]


def test_a_nan_reaches_only_its_own_row_of_a_product() -> None:
    x = random(3, 64)
    x[1, 7] = float("nan")
    out = fp8_linear(x, *quantize_weight(random(32, 64, seed=1)))
    assert out.isnan().any(-1).tolist() == [False, True, False]
    assert bool(out[1].isnan().all())


@pytest.mark.parametrize("rows", [1, 7, 64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_product_is_within_four_percent(rows: int, dtype: torch.dtype) -> None:
    x, weight, bias = random(rows, 512), random(384, 512, seed=1), random(384, seed=2)
    # Channels of different sizes, which one scale for all would not serve.
    weight *= torch.logspace(-3, 1, 384)[:, None]
    quantized = quantize_weight(weight.to(dtype))
    out = fp8_linear(x.to(dtype), *quantized, bias.to(dtype))
    assert out.dtype == dtype and out.is_contiguous()
    assert relative_error(out, linear_ref(x, weight, bias)) < 0.04
    plain = fp8_linear(x.to(dtype), *quantized), linear_ref(x, weight)
    for got, want in zip(*(side.view(rows, 4, 96).unbind(1) for side in plain), strict=True):
        assert relative_error(got, want) < 0.045  # the small channels' too


def test_pack_quantizes_and_linear_dispatches() -> None:
    x, weight, bias = random(5, 64), random(48, 64, seed=1), random(48, seed=2)
    packed = pack(weight, quantize=True)
    assert packed.data.dtype == FP8 and packed.scale is not None and not packed.packed
    assert (packed.out_features, packed.in_features, packed.dtype) == (48, 64, torch.float32)
    want = fp8_linear_ref(x, *quantize_weight(weight), bias)
    torch.testing.assert_close(linear(x, packed, bias), want)
    again = pack_fp8(packed.data, packed.scale, torch.bfloat16)
    assert linear(x.bfloat16(), again).dtype == torch.bfloat16
    with pytest.raises(ValueError, match="x: expected"):
        linear(x, again)
    assert pack(weight).scale is None


def test_wrong_arguments_are_named() -> None:
    values, scale = quantize_weight(random(32, 16))
    with pytest.raises(ValueError, match=r"weight: expected.*float8_e4m3fn"):
        fp8_linear(random(2, 16), values.float(), scale)
    with pytest.raises(ValueError, match="weight_scale: expected"):
        fp8_linear(random(2, 16), values, scale[:-1])
    with pytest.raises(ValueError, match="x: expected"):
        fp8_linear(random(2, 17), values, scale)
    with pytest.raises(ValueError, match="scale: expected"):
        pack_fp8(values, scale.double(), torch.float32)
    with pytest.raises(ValueError, match="x: its rows must be dense"):
        quantize_rows_triton(random(16, 4).t())
    assert fits(32, 48) and not fits(32, 40) and not fits(40, 32)


def assert_same_but_for_the_interpreters_rounding(x: torch.Tensor) -> None:
    """Its cast to FP8 rounds ties away and loses the carry of a value that rounds up to a power
    of two; a GPU's must be the same everywhere."""
    values, scale = quantize_rows_triton(x.to(DEVICE))
    want, want_scale = quantize_rows_ref(x)
    assert torch.equal(scale.cpu(), want_scale)
    if DEVICE.type == "cuda":
        assert torch.equal(bits(values), bits(want))
        return
    scaled = x.float() * (1 / scale)[:, None]
    carried = want.float().abs().log2().frac() == 0
    tie = (scaled.abs().view(torch.int32) & 0xFFFFF) == 0x80000
    free = ~(carried & (scaled.abs() < want.float().abs())) & ~tie
    assert float(free.float().mean()) > 0.9
    assert torch.equal(bits(values)[free], bits(want)[free])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 7, 48, 128, 1000])
def test_triton_quantizes_as_the_plain_form(size: int, dtype: torch.dtype) -> None:
    assert_same_but_for_the_interpreters_rounding(spread_rows(9, size, dtype))


@pytest.mark.parametrize("size", [65, 128, 300])
def test_triton_reads_long_rows_in_blocks(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantize, "MAX_BLOCK", 64)
    assert_same_but_for_the_interpreters_rounding(spread_rows(9, size, torch.float32))
    x = random(3, size)
    x[1, -1] = float("nan")
    values, scale = quantize_rows_triton(x.to(DEVICE))
    assert scale.isnan().tolist() == [False, True, False]
    assert not values[1].float().any()


def test_triton_is_exact_on_numbers_that_fp8_has() -> None:
    every = torch.arange(256, dtype=torch.uint8).view(FP8).float()
    row = every[every.isfinite()]
    x = torch.stack([row, row * 2.0**-20, row * 2.0**30])
    for run in (quantize_rows_ref, quantize_rows_triton):
        values, scale = (tensor.cpu() for tensor in run(x.to(DEVICE)))
        assert scale.tolist() == [1.0, 2.0**-20, 2.0**30]
        assert torch.equal(values.float(), row.expand(3, -1))


def test_triton_takes_strided_rows_and_none() -> None:
    x = random(6, 40).to(DEVICE)
    got, want = quantize_rows_triton(x[::2, 8:24]), quantize_rows_triton(x[::2, 8:24].contiguous())
    assert torch.equal(bits(got[0]), bits(want[0])) and torch.equal(got[1], want[1])
    assert quantize_rows_triton(x[:0])[0].shape == (0, 40)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [16, 1000, 2050])
@pytest.mark.parametrize("biased", [False, True])
def test_a_product_is_scaled_back(biased: bool, size: int, dtype: torch.dtype) -> None:
    product, rows, columns = random(5, size), random(5, seed=1), random(size, seed=2)
    rows[3] = float("nan")
    bias = random(size, seed=3).to(DEVICE, dtype) if biased else None
    product, rows, columns = (t.to(DEVICE) for t in (product, rows, columns))
    want = product * (columns * rows[:, None]) + (0 if bias is None else bias.float())
    out = rescale_triton(product.clone(), rows, columns, bias, dtype)
    assert out.dtype == dtype
    torch.testing.assert_close(out, want.to(dtype), equal_nan=True)
    assert rescale_triton(product[:0], rows[:0], columns, None, dtype).shape == (0, size)


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_on_a_gpu_products_equal_the_plain_form(dtype: torch.dtype) -> None:
    weight, bias = (
        random(768, 1024, seed=1).to(DEVICE, dtype),
        random(768, seed=2).to(DEVICE, dtype),
    )
    values, scale = quantize_weight(weight)
    assert torch.equal(bits(values), bits(quantize_rows_ref(weight.cpu())[0]))
    for rows in (0, 1, 2, 17, 64, fp8.FEW_ROWS, fp8.FEW_ROWS + 1, 2048):
        x = random(rows, 1024).to(DEVICE, dtype)
        for extra in (None, bias):
            got = fp8_linear(x, values, scale, extra)
            want = fp8_linear_ref(x, values, scale, extra)
            assert got.dtype == dtype and got.is_contiguous()
            if rows:
                assert relative_error(got, want) < 0.005
        if rows > 1:
            x[1, 7] = float("nan")
            is_nan = fp8_linear(x, values, scale).isnan()
            assert bool(is_nan[1].all()) and int(is_nan.sum()) == 768


@pytest.mark.gpu
@gpu
def test_on_a_gpu_a_product_is_captured_and_replayed() -> None:
    packed = pack(random(256, 512, seed=1).to(DEVICE, torch.bfloat16), quantize=True)
    x = random(8, 512).to(DEVICE, torch.bfloat16)
    linear(x, packed)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = linear(x, packed)
    x.copy_(random(8, 512, seed=5))
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out, linear(x, packed))


@pytest.mark.gpu
@gpu
def test_on_a_gpu_sides_that_do_not_fit_are_kept_plain() -> None:
    weight = random(40, 24).to(DEVICE)
    assert pack(weight, quantize=True).scale is None
    values, scale = quantize_weight(weight)
    packed = pack_fp8(values, scale, torch.float32)
    assert packed.scale is None
    torch.testing.assert_close(packed.data, fp8.dequantize(values, scale, torch.float32))
