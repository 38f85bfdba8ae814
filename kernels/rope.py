"""Rotary position embedding, half-split form. Source: arXiv 2104.09864; scaling as Llama 3."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from rtlang.kernels.checks import check


def inverse_frequencies(rotary_dim: int, theta: float, scaling: Mapping[str, Any]) -> torch.Tensor:
    """[rotary_dim / 2] fp32. ``scaling``: {} or {"rope_type": "linear" | "llama3", ...}.

    Raises ``ValueError`` for another type.
    """
    exponents = torch.arange(0, rotary_dim, 2, dtype=torch.int64).float() / rotary_dim
    freqs: torch.Tensor = 1.0 / (theta**exponents)
    kind = scaling.get("rope_type", "default")
    if kind == "default":
        return freqs
    if kind == "linear":
        scaled: torch.Tensor = freqs / scaling["factor"]
        return scaled
    if kind == "llama3":
        return _llama3(freqs, scaling)
    raise ValueError(f"rope type {kind!r} is not built; built are default, linear, llama3")


def _llama3(freqs: torch.Tensor, scaling: Mapping[str, Any]) -> torch.Tensor:
    """Long waves are stretched by ``factor``, short ones kept, between them a ramp."""
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    periods = scaling["original_max_position_embeddings"] * freqs / (2 * math.pi)
    ramp = ((periods - low) / (high - low)).clamp(0.0, 1.0)
    stretched: torch.Tensor = freqs * (ramp + (1.0 - ramp) / scaling["factor"])
    return stretched


def cos_sin(positions: torch.Tensor, freqs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Two [num_tokens, 1, rotary_dim] fp32 tables for ``apply_rope``; sin's first half negated."""
    angles = positions.float()[:, None] * freqs[None, :]
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((cos, cos), -1)[:, None], torch.cat((-sin, sin), -1)[:, None]


def apply_rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate each head; in fp32, rounded once.

    x         [num_tokens, num_heads, head_dim]
    cos, sin  [num_tokens, 1, head_dim], from ``cos_sin``
    """
    check(cos, "cos", (x.shape[0], 1, x.shape[2]))
    check(sin, "sin", (x.shape[0], 1, x.shape[2]))
    wide = x.float()
    swapped = torch.roll(wide, x.shape[-1] // 2, -1)
    return torch.addcmul(wide * cos, swapped, sin).to(x.dtype)


def apply_rope_ref(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """The plain form of ``apply_rope``: pairs (i, i + head_dim / 2) as complex numbers."""
    half = x.shape[-1] // 2
    a, b = x[..., :half].float(), x[..., half:].float()
    c, s = cos[..., :half], sin[..., half:]
    return torch.cat((a * c - b * s, b * c + a * s), -1).to(x.dtype)
