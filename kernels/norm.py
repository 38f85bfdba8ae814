"""RMSNorm, alone and after a residual addition. Source: arXiv 1910.07467."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from rtlang.kernels.checks import check


def rmsnorm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x / sqrt(mean(x^2) + eps) * weight, over the last dimension; computed in fp32.

    x       [..., size]
    weight  [size]
    """
    check(weight, "weight", (x.shape[-1],))
    if x.dtype == torch.float32:
        return F.rms_norm(x, (x.shape[-1],), weight, eps)
    return rmsnorm_ref(x, weight, eps)


def rmsnorm_ref(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """The plain form of ``rmsnorm``."""
    wide = x.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * scale * weight.float()).to(x.dtype)


def add_rmsnorm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """(rmsnorm(residual + x), residual + x). ``residual`` is changed in place."""
    check(residual, "residual", tuple(x.shape), x.dtype)
    residual = residual.add_(x)
    return rmsnorm(residual, weight, eps), residual


def add_rmsnorm_ref(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The plain form of ``add_rmsnorm``; changes nothing."""
    total = residual + x
    return rmsnorm_ref(total, weight, eps), total
