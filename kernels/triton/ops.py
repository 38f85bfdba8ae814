"""TritonOps: the decoder's small operations, fused, as Triton kernels."""

from __future__ import annotations

import torch

from rtlang.kernels.triton import activation, norm, rope


class TritonOps:
    """Implements ``kernels.ops.Ops`` on a GPU (or in Triton's interpreter)."""

    def rmsnorm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return norm.rmsnorm(x, weight, eps)

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
    ) -> torch.Tensor:
        return rope.norm_rope_store(qkv, table, norms, eps, keys, values, slots, scales)
