"""Ops: the small operations of a decoder, as one set that a device chooses."""

from __future__ import annotations

from typing import Any, Protocol

import torch

from rtlang.kernels.activation import gelu_tanh_mul, silu_mul
from rtlang.kernels.linear import Weight, linear
from rtlang.kernels.norm import add_rmsnorm, rmsnorm
from rtlang.kernels.rope import apply_rope, cos_sin
from rtlang.kernels.store_kv import store_kv

_GATED = {"silu": silu_mul, "gelu_pytorch_tanh": gelu_tanh_mul}
#: Activations by their names in config.json.
ACTIVATIONS = tuple(_GATED)

QKV = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class Ops(Protocol):
    """Contracts are those of the functions that ``TorchOps`` calls."""

    def fuses(self, weight: Weight) -> bool:
        """Whether the fused products below take it."""
        ...

    def prefers_fused(self, num_rows: int, hidden_size: int) -> bool:
        """Whether they are faster than the separate operations for so many rows."""
        ...

    def rmsnorm(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        eps: float,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor: ...

    def add_rmsnorm(
        self,
        x: torch.Tensor,
        residual: torch.Tensor,
        weight: torch.Tensor,
        eps: float,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """rmsnorm(residual + x); ``residual`` becomes the sum, ``x`` may be overwritten.

        out  where the result goes, or None
        """
        ...

    def gated(self, gate_up: torch.Tensor, kind: str) -> torch.Tensor:
        """act(gate) * up: [n, 2 * size] -> [n, size]; ``kind``: one of ``ACTIVATIONS``."""
        ...

    def angles(self, positions: torch.Tensor, freqs: torch.Tensor) -> Any:
        """What ``norm_rope_store`` wants to know of [num_tokens] positions."""
        ...

    def norm_rope_store(
        self,
        qkv: torch.Tensor,
        table: Any,
        norms: tuple[torch.Tensor, torch.Tensor] | None,
        eps: float,
        keys: torch.Tensor,
        values: torch.Tensor,
        slots: torch.Tensor,
        scales: tuple[float, float] = (1.0, 1.0),
    ) -> QKV:
        """Rotated queries [n, num_heads, head_dim], rotated keys and values [n, num_kv_heads,
        head_dim]; keys and values also go to their slots.

        qkv     [n, num_heads + 2 * num_kv_heads, head_dim], may be overwritten
        norms   weights [head_dim] of the norms of queries and keys, or None
        keys, values  [num_slots, num_kv_heads, head_dim], the layer's pool
        slots   [n]
        scales  (k, v): an FP8 pool holds the key (value) over its scale
        """
        ...

    # Fused products, for weights that ``fuses`` accepts.

    def norm_linear(
        self,
        x: torch.Tensor,
        gain: torch.Tensor,
        eps: float,
        weight: Weight,
        bias: torch.Tensor | None,
    ) -> torch.Tensor:
        """linear(rmsnorm(x))"""
        ...

    def linear_add(
        self, x: torch.Tensor, weight: Weight, residual: torch.Tensor, bias: torch.Tensor | None
    ) -> None:
        """residual += linear(x)"""
        ...

    def norm_gated(
        self,
        x: torch.Tensor,
        gain: torch.Tensor,
        eps: float,
        weight: Weight,
        kind: str,
        bias: torch.Tensor | None,
    ) -> torch.Tensor:
        """gated(linear(rmsnorm(x)))"""
        ...


class TorchOps:
    """Plain torch, on any device; what the CPU runs and others are compared with."""

    def fuses(self, weight: Weight) -> bool:
        return True

    def prefers_fused(self, num_rows: int, hidden_size: int) -> bool:
        return False

    def rmsnorm(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        eps: float,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        normed = rmsnorm(x, weight, eps)
        return normed if out is None else out.copy_(normed)

    def norm_linear(
        self,
        x: torch.Tensor,
        gain: torch.Tensor,
        eps: float,
        weight: Weight,
        bias: torch.Tensor | None,
    ) -> torch.Tensor:
        return linear(rmsnorm(x, gain, eps), weight, bias)

    def linear_add(
        self, x: torch.Tensor, weight: Weight, residual: torch.Tensor, bias: torch.Tensor | None
    ) -> None:
        residual += linear(x, weight, bias)

    def norm_gated(
        self,
        x: torch.Tensor,
        gain: torch.Tensor,
        eps: float,
        weight: Weight,
        kind: str,
        bias: torch.Tensor | None,
    ) -> torch.Tensor:
        return self.gated(linear(rmsnorm(x, gain, eps), weight, bias), kind)

    def add_rmsnorm(
        self,
        x: torch.Tensor,
        residual: torch.Tensor,
        weight: torch.Tensor,
        eps: float,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        normed = add_rmsnorm(x, residual, weight, eps)[0]
        return normed if out is None else out.copy_(normed)

    def gated(self, gate_up: torch.Tensor, kind: str) -> torch.Tensor:
        return _GATED[kind](gate_up)

    def angles(self, positions: torch.Tensor, freqs: torch.Tensor) -> Any:
        return cos_sin(positions, freqs)

    def norm_rope_store(
        self,
        qkv: torch.Tensor,
        table: Any,
        norms: tuple[torch.Tensor, torch.Tensor] | None,
        eps: float,
        keys: torch.Tensor,
        values: torch.Tensor,
        slots: torch.Tensor,
        scales: tuple[float, float] = (1.0, 1.0),
    ) -> QKV:
        kv_heads = keys.shape[1]
        heads = qkv.shape[1] - 2 * kv_heads
        qk, v = qkv[:, : heads + kv_heads], qkv[:, heads + kv_heads :]
        if norms is not None:
            qk = torch.cat(
                (rmsnorm(qk[:, :heads], norms[0], eps), rmsnorm(qk[:, heads:], norms[1], eps)), 1
            )
        qk = apply_rope(qk, *table)
        store_kv(qk[:, heads:], keys, slots, scales[0])
        store_kv(v, values, slots, scales[1])
        return qk[:, :heads].contiguous(), qk[:, heads:], v
