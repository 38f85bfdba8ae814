"""Linear layers for at most 16 rows, where reading the weights is what takes time.

They are fused with what stands around them: RMSNorm before, a gated activation or the addition to
the residual behind.

Two kernels, by the number of rows. ``fma_kernel`` (up to 2, or 4) multiplies in fp32: weights go
from memory to registers, the next tile while this one is used, and are summed up once at the end.
``dot_kernel`` pads x to 16 rows for the matrix units. Both own their outputs: no split over K.
With PDL, weights are fetched while the kernels before still run.
"""

from __future__ import annotations

import dataclasses

import torch
import triton

from rtlang.kernels.checks import check
from rtlang.kernels.triton.jit import pdl_options, pdl_supported
from rtlang.kernels.triton.skinny_kernels import dot_kernel, fma_kernel

MAX_ROWS = 16
#: Rows that ``fma_kernel`` takes: of any layer, and of one too narrow for ``dot_kernel``'s tiles.
FMA_ROWS, FMA_ROWS_NARROW = 2, 4
_ACTIVATIONS = ("silu", "gelu_pytorch_tanh")


@dataclasses.dataclass(frozen=True, slots=True)
class Config:
    """What may be tuned.

    block_n   outputs of a program; of a gated layer as many rows of gate and of up
    block_k   elements of a step; at least 32 * num_warps times a 16-byte vector's without ``dot``
    num_stages  tiles in flight: in registers, with ``dot`` the matrix units' pipeline
    prefetch  leading elements of each weight row that L2 is asked for at once, a multiple
              of 8; 0: none
    """

    block_n: int
    block_k: int
    num_warps: int
    num_stages: int = 2
    prefetch: int = 0
    dot: bool = False


def choose(m: int, n: int, k: int, element_size: int, *, gated: bool = False) -> Config:
    """For x [m, k] and n outputs. ``element_size`` in bytes of a weight."""
    if m > (FMA_ROWS_NARROW if n < 16 * 132 else FMA_ROWS):
        return _choose_dot(n, k, element_size, gated)
    programs = 2 * 132
    block_n = 2 if gated or n < 4 * programs else 4
    warps = 8 if k >= 8192 or (k > 1024 and n < 8 * programs) else 4
    return Config(block_n, warps * 32 * 16 // element_size, warps)


def _choose_dot(n: int, k: int, element_size: int, gated: bool) -> Config:
    block_k = 128 if element_size == 2 else 32
    if n < 16 * 132:
        block_n = 8
    elif n < 32 * 132 or gated:
        block_n = 16
    else:
        block_n = 32 if n < 4 * 132 * 64 else 64
    stages = max(2, min(6, -(-k // block_k)))
    return Config(block_n, block_k, 2 if block_n <= 16 else 4, stages, dot=True)


def _launch(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    out: torch.Tensor,
    config: Config | None,
    *,
    gain: torch.Tensor | None = None,
    eps: float = 0.0,
    kind: str | None = None,
    add: bool = False,
    pdl: bool = True,
) -> None:
    (m, k), n = x.shape, out.shape[1]
    check(weight, "weight", (2 * n if kind else n, k), x.dtype)
    if not 0 <= m <= MAX_ROWS:
        raise ValueError(f"x: expected at most {MAX_ROWS} rows, got {m}")
    if k % 8:
        raise ValueError(f"x: expected a multiple of 8 columns, got {k}")
    if bias is not None:
        check(bias, "bias", (weight.shape[0],))
    if gain is not None:
        check(gain, "gain", (k,))
    tensors = {"x": x, "weight": weight, "bias": bias, "gain": gain, "out": out}
    for name, tensor in tensors.items():
        if tensor is not None and not tensor.is_contiguous():
            raise ValueError(f"{name}: expected a contiguous tensor")
    if m == 0:
        return
    size = weight.element_size()
    c = config or choose(m, n, k, size, gated=kind is not None)
    grid = (triton.cdiv(n, c.block_n),)
    given = (x, x if gain is None else gain, weight, x if bias is None else bias, out, eps, n)
    options = {
        "K": k,
        "BLOCK_N": c.block_n,
        "BLOCK_K": c.block_k,
        "PREFETCH": c.prefetch if pdl_supported() else 0,  # its instruction needs as much
        "NORM": gain is not None,
        "GATED": kind is not None,
        "GELU": kind == "gelu_pytorch_tanh",
        "ADD": add,
        "BIAS": bias is not None,
        "num_warps": c.num_warps,
        "num_stages": c.num_stages,
        **pdl_options(pdl),
    }
    if c.dot:
        precision = "ieee" if x.dtype == torch.float32 else "tf32"
        dot_kernel[grid](*given, m, PRECISION=precision, **options)
    else:
        fma_kernel[grid](*given, ROWS=m, VEC=16 // size, DEPTH=c.num_stages, **options)


def norm_linear(
    x: torch.Tensor,
    gain: torch.Tensor,
    eps: float,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    config: Config | None = None,
    pdl: bool = True,
) -> torch.Tensor:
    """rmsnorm(x) @ weight.T + bias: [m, n].

    x  [m, k], m <= 16;  gain [k];  weight [n, k] of x's dtype;  bias [n] or None
    """
    check(x, "x", (None, None))
    check(weight, "weight", (None, None))
    out = x.new_empty(x.shape[0], weight.shape[0])
    _launch(x, weight, bias, out, config, gain=gain, eps=eps, pdl=pdl)
    return out


def linear_add(
    x: torch.Tensor,
    weight: torch.Tensor,
    residual: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    config: Config | None = None,
    pdl: bool = True,
) -> None:
    """residual += x @ weight.T + bias, in place.

    x  [m, k], m <= 16;  weight [n, k] and residual [m, n] of x's dtype;  bias [n] or None
    """
    check(x, "x", (None, None))
    check(weight, "weight", (None, None))
    check(residual, "residual", (x.shape[0], weight.shape[0]), x.dtype)
    _launch(x, weight, bias, residual, config, add=True, pdl=pdl)


def norm_gated(
    x: torch.Tensor,
    gain: torch.Tensor,
    eps: float,
    weight: torch.Tensor,
    kind: str,
    bias: torch.Tensor | None = None,
    *,
    config: Config | None = None,
    pdl: bool = True,
) -> torch.Tensor:
    """act(gate) * up of [gate, up] = rmsnorm(x) @ weight.T + bias: [m, size], all in fp32.

    x     [m, k], m <= 16;  gain [k];  weight [2 size, k] of x's dtype;  bias [2 size] or None
    kind  "silu" or "gelu_pytorch_tanh"
    """
    check(x, "x", (None, None))
    check(weight, "weight", (None, None))
    if kind not in _ACTIVATIONS:
        raise ValueError(f"kind: expected one of {_ACTIVATIONS}, got {kind!r}")
    out = x.new_empty(x.shape[0], weight.shape[0] // 2)
    _launch(x, weight, bias, out, config, gain=gain, eps=eps, kind=kind, pdl=pdl)
    return out


def linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    config: Config | None = None,
    pdl: bool = True,
) -> torch.Tensor:
    """x @ weight.T + bias: [m, n].

    x  [m, k], m <= 16;  weight [n, k] of x's dtype;  bias [n] or None
    """
    check(x, "x", (None, None))
    check(weight, "weight", (None, None))
    out = x.new_empty(x.shape[0], weight.shape[0])
    _launch(x, weight, bias, out, config, pdl=pdl)
    return out
