"""Gated activations as one Triton kernel: act(gate) * up, from one fused tensor."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from rtlang.kernels.checks import check
from rtlang.kernels.triton.jit import await_earlier, jit, pdl_options

_BLOCK = 1024


@jit
def _gated_kernel(
    gate_up: tl.tensor,
    out: tl.tensor,
    size: tl.tensor,
    GELU: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    await_earlier(PDL)
    row = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = i < size
    gate = tl.load(gate_up + row * 2 * size + i, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + (row * 2 + 1) * size + i, mask=inside, other=0.0).to(tl.float32)
    if GELU:
        inner = 0.7978845608028654 * (gate + 0.044715 * gate * gate * gate)
        # (1 + tanh(z)) / 2 == sigmoid(2 z)
        act = gate / (1.0 + tl.exp(-2.0 * inner))
    else:
        act = gate / (1.0 + tl.exp(-gate))
    tl.store(out + row * size + i, (act * up).to(out.dtype.element_ty), mask=inside)


def gated(gate_up: torch.Tensor, kind: str) -> torch.Tensor:
    """[num_tokens, 2 * size], gate before up -> [num_tokens, size], computed in fp32.

    kind  "silu" or "gelu_pytorch_tanh" (arXiv 1606.08415, section 2)
    """
    check(gate_up, "gate_up", (None, None))
    rows, size = gate_up.shape[0], gate_up.shape[1] // 2
    out = gate_up.new_empty(rows, size)
    grid = (rows, triton.cdiv(size, _BLOCK))
    gelu = kind == "gelu_pytorch_tanh"
    _gated_kernel[grid](gate_up, out, size, GELU=gelu, BLOCK=_BLOCK, **pdl_options())
    return out
