"""Gated activations: act(gate) * up, from one fused tensor; in fp32, rounded once."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """[num_tokens, 2 * size], gate before up -> [num_tokens, size]"""
    gate, up = _halves(gate_up)
    return F.silu(gate.float()).mul_(up).to(gate_up.dtype)


def silu_mul_ref(gate_up: torch.Tensor) -> torch.Tensor:
    """The plain form of ``silu_mul``."""
    gate, up = _halves(gate_up.float())
    return (gate * torch.sigmoid(gate) * up).to(gate_up.dtype)


def gelu_tanh_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """``silu_mul`` with GELU's tanh approximation. Source: arXiv 1606.08415, section 2."""
    gate, up = _halves(gate_up)
    return F.gelu(gate.float(), approximate="tanh").mul_(up).to(gate_up.dtype)


def gelu_tanh_mul_ref(gate_up: torch.Tensor) -> torch.Tensor:
    """The plain form of ``gelu_tanh_mul``."""
    gate, up = _halves(gate_up.float())
    inner = (2.0 / torch.pi) ** 0.5 * (gate + 0.044715 * gate**3)
    return (0.5 * gate * (1.0 + torch.tanh(inner)) * up).to(gate_up.dtype)


def _halves(gate_up: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    if gate_up.dim() != 2 or gate_up.shape[1] % 2:
        raise ValueError(f"gate_up: expected [num_tokens, an even size], got {list(gate_up.shape)}")
    gate, up = gate_up.chunk(2, dim=-1)
    return gate, up
