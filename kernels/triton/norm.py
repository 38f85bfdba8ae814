"""RMSNorm as Triton kernels, one program a row. Source: arXiv 1910.07467."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from rtlang.kernels.checks import check
from rtlang.kernels.triton.jit import await_earlier, jit, pdl_options


@jit
def _rmsnorm_kernel(
    x: tl.tensor,
    residual: tl.tensor,
    weight: tl.tensor,
    out: tl.tensor,
    eps: tl.tensor,
    size: tl.tensor,
    x_stride: tl.tensor,
    ADD: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    await_earlier(PDL)
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, BLOCK)
    inside = i < size
    values = tl.load(x + row * x_stride + i, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        values += tl.load(residual + row * size + i, mask=inside, other=0.0).to(tl.float32)
        total = values.to(residual.dtype.element_ty)
        tl.store(residual + row * size + i, total, mask=inside)
        values = total.to(tl.float32)  # what is normed is what was stored
    scale = tl.rsqrt(tl.sum(values * values, 0) / size + eps)
    gain = tl.load(weight + i, mask=inside, other=0.0).to(tl.float32)
    normed = values * scale * gain
    tl.store(out + row * size + i, normed.to(out.dtype.element_ty), mask=inside)


def _launch(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    weight: torch.Tensor,
    eps: float,
    out: torch.Tensor,
) -> None:
    rows, size = x.shape
    check(weight, "weight", (size,))
    check(out, "out", (rows, size))
    block = triton.next_power_of_2(size)
    _rmsnorm_kernel[(rows,)](
        x,
        out if residual is None else residual,
        weight,
        out,
        eps,
        size,
        x.stride(0),
        ADD=residual is not None,
        BLOCK=block,
        num_warps=min(max(block // 512, 1), 16),
        **pdl_options(),
    )


def rmsnorm(
    x: torch.Tensor, weight: torch.Tensor, eps: float, out: torch.Tensor | None = None
) -> torch.Tensor:
    """x / sqrt(mean(x^2) + eps) * weight in fp32, for x [rows, size]; ``out`` where given."""
    check(x, "x", (None, None))
    out = torch.empty_like(x) if out is None else out
    _launch(x, None, weight, eps, out)
    return out


def add_rmsnorm(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """rmsnorm(residual + x), for x [rows, size]; ``residual`` becomes the sum.

    out  [rows, size] or None: then the result overwrites ``x``
    """
    check(x, "x", (None, None))
    check(residual, "residual", tuple(x.shape), x.dtype)
    out = x if out is None else out
    _launch(x, residual, weight, eps, out)
    return out
