"""FP8's small kernels: rows to FP8, and a product of FP8 numbers back to what it stands for."""

# Triton compiles no annotation but tl.constexpr.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl

from rtlang.kernels.checks import check
from rtlang.kernels.fp8 import FP8_MAX

_FP8_MAX = tl.constexpr(FP8_MAX)
_MIN_SCALE = tl.constexpr(1e-12)
_FLOAT_MAX = tl.constexpr(3.4028234663852886e38)
#: Longest row that a program keeps in registers; longer ones are read twice.
MAX_BLOCK = 16384


@triton.jit
def _scale(largest, has_nan):
    """Scale of a row and its inverse, both divisions rounded as torch rounds them."""
    largest = tl.minimum(largest, _FLOAT_MAX)
    scale = tl.maximum(tl.div_rn(largest, _FP8_MAX), _MIN_SCALE)
    scale = tl.where(has_nan > 0, float("nan"), scale)
    return scale, tl.div_rn(1.0, scale)


@triton.jit
def _cast(x, inverse):
    """To FP8; what is NaN becomes 0 (the row's scale tells)."""
    scaled = x * inverse
    scaled = tl.where(scaled == scaled, scaled, 0.0)
    return tl.minimum(tl.maximum(scaled, -_FP8_MAX), _FP8_MAX).to(tl.float8e4nv)


@triton.jit
def _quantize_rows_kernel(
    x,  # [num_rows, SIZE], any row stride
    values,  # [num_rows, SIZE] FP8, contiguous
    scales,  # [num_rows] fp32
    row_stride,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    ONE_BLOCK: tl.constexpr,  # the row fits: it is read once
):
    row = tl.program_id(0).to(tl.int64)
    x += row * row_stride
    values += row * SIZE
    columns = tl.arange(0, BLOCK)
    if ONE_BLOCK:
        inside = columns < SIZE
        part = tl.load(x + columns, inside, other=0.0).to(tl.float32)
        has_nan = tl.max((part != part).to(tl.int32), 0)
        largest = tl.max(tl.where(part == part, tl.abs(part), 0.0), 0)
        scale, inverse = _scale(largest, has_nan)
        tl.store(values + columns, _cast(part, inverse), inside)
    else:
        most = tl.zeros((BLOCK,), tl.float32)
        nans = tl.zeros((BLOCK,), tl.int32)
        for start in range(0, SIZE, BLOCK):
            inside = start + columns < SIZE
            part = tl.load(x + start + columns, inside, other=0.0).to(tl.float32)
            nans = tl.maximum(nans, (part != part).to(tl.int32))
            most = tl.maximum(most, tl.where(part == part, tl.abs(part), 0.0))
        scale, inverse = _scale(tl.max(most, 0), tl.max(nans, 0))
        for start in range(0, SIZE, BLOCK):
            inside = start + columns < SIZE
            part = tl.load(x + start + columns, inside, other=0.0).to(tl.float32)
            tl.store(values + start + columns, _cast(part, inverse), inside)
    tl.store(scales + row, scale)


def quantize_rows_triton(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """As ``fp8.quantize_rows``, bit for bit. One program per row; can be captured in a graph.

    x        [num_rows, size], fp32, fp16 or bf16, its last dimension dense
    returns  FP8 [num_rows, size], contiguous, and scales [num_rows] fp32
    """
    check(x, "x", (None, None))
    if x.stride(1) != 1:
        raise ValueError(f"x: its rows must be dense, got strides {tuple(x.stride())}")
    num_rows, size = x.shape
    values = torch.empty((num_rows, size), dtype=torch.float8_e4m3fn, device=x.device)
    scales = torch.empty(num_rows, dtype=torch.float32, device=x.device)
    if num_rows == 0:
        return values, scales
    block = min(triton.next_power_of_2(size), MAX_BLOCK)
    _quantize_rows_kernel[(num_rows,)](
        x,
        values,
        scales,
        x.stride(0),
        SIZE=size,
        BLOCK=block,
        ONE_BLOCK=size <= block,
        num_warps=min(max(block // 512, 1), 16),  # pyright: ignore[reportCallIssue]
    )
    return values, scales


@triton.jit
def _rescale_kernel(
    product,  # [num_rows, num_columns] contiguous
    row_scales,  # [num_rows] fp32
    column_scales,  # [num_columns] fp32
    bias,  # [num_columns]
    out,  # [num_rows, num_columns] contiguous; may be ``product``
    num_columns,
    HAS_BIAS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < num_columns
    at = row * num_columns + columns
    values = tl.load(product + at, inside, other=0.0).to(tl.float32)
    scales = tl.load(column_scales + columns, inside, other=0.0)
    values = values * (scales * tl.load(row_scales + row))
    if HAS_BIAS:
        values += tl.load(bias + columns, inside, other=0.0).to(tl.float32)
    tl.store(out + at, values.to(out.dtype.element_ty), inside)


def rescale_triton(
    product: torch.Tensor,
    row_scales: torch.Tensor,
    column_scales: torch.Tensor,
    bias: torch.Tensor | None,
    dtype: torch.dtype,
) -> torch.Tensor:
    """product * row_scales * column_scales + bias, in ``dtype``; changes ``product`` where that
    is its dtype.

    product        [num_rows, num_columns] contiguous, fp32 or bf16
    row_scales     [num_rows] fp32
    column_scales  [num_columns] fp32
    bias           [num_columns] or None
    """
    check(product, "product", (row_scales.shape[0], column_scales.shape[0]))
    num_rows, num_columns = product.shape
    out = product if product.dtype == dtype else torch.empty_like(product, dtype=dtype)
    block = min(triton.next_power_of_2(num_columns), 1024)
    if num_rows:
        _rescale_kernel[(num_rows, triton.cdiv(num_columns, block))](
            product,
            row_scales,
            column_scales,
            product if bias is None else bias,
            out,
            num_columns,
            HAS_BIAS=bias is not None,
            BLOCK=block,
            num_warps=4,  # pyright: ignore[reportCallIssue]
        )
    return out
