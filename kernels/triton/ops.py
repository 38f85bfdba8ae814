"""TritonOps: the decoder's small operations, fused, as Triton kernels."""

from __future__ import annotations

import torch

from rtlang.kernels.linear import Weight
from rtlang.kernels.ops import QKV
from rtlang.kernels.triton import activation, norm, rope, skinny

#: Up to so many rows a product is bound by reading its weights once, and by launches: own kernels.
#: In a model whose hidden states are at most so wide, launches are what counts for more rows.
FEW_ROWS, FEW_ROWS_NARROW, NARROW = 2, skinny.MAX_ROWS, 1024


class TritonOps:
    """Implements ``kernels.ops.Ops`` on a GPU (or in Triton's interpreter)."""

    def fuses(self, weight: Weight) -> bool:
        half = weight.dtype in (torch.bfloat16, torch.float16)
        return half and weight.scale is None and not weight.packed and weight.in_features % 8 == 0

    def prefers_fused(self, num_rows: int, hidden_size: int) -> bool:
        return num_rows <= (FEW_ROWS_NARROW if hidden_size <= NARROW else FEW_ROWS)

    def rmsnorm(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        eps: float,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        return norm.rmsnorm(x, weight, eps, out)

    def norm_linear(
        self,
        x: torch.Tensor,
        gain: torch.Tensor,
        eps: float,
        weight: Weight,
        bias: torch.Tensor | None,
    ) -> torch.Tensor:
        return skinny.norm_linear(x, gain, eps, weight.data, bias)

    def linear_add(
        self, x: torch.Tensor, weight: Weight, residual: torch.Tensor, bias: torch.Tensor | None
    ) -> None:
        skinny.linear_add(x, weight.data, residual, bias)

    def norm_gated(
        self,
        x: torch.Tensor,
        gain: torch.Tensor,
        eps: float,
        weight: Weight,
        kind: str,
        bias: torch.Tensor | None,
    ) -> torch.Tensor:
        return skinny.norm_gated(x, gain, eps, weight.data, kind, bias)

    def add_rmsnorm(
        self,
        x: torch.Tensor,
        residual: torch.Tensor,
        weight: torch.Tensor,
        eps: float,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        return norm.add_rmsnorm(x, residual, weight, eps, out)

    def gated(self, gate_up: torch.Tensor, kind: str) -> torch.Tensor:
        return activation.gated(gate_up, kind)

    def angles(self, positions: torch.Tensor, freqs: torch.Tensor) -> torch.Tensor:
        return rope.angles(positions, freqs)

    def norm_rope_store(
        self,
        qkv: torch.Tensor,
        table: torch.Tensor,
        norms: tuple[torch.Tensor, torch.Tensor] | None,
        eps: float,
        keys: torch.Tensor,
        values: torch.Tensor,
        slots: torch.Tensor,
        scales: tuple[float, float] = (1.0, 1.0),
    ) -> QKV:
        return rope.norm_rope_store(qkv, table, norms, eps, keys, values, slots, scales)
