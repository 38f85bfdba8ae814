"""Writes new keys and values into their slots."""

from __future__ import annotations

import torch

from rtlang.kernels.checks import check
from rtlang.kernels.fp8 import FP8_MAX


def store_kv(x: torch.Tensor, pool: torch.Tensor, slots: torch.Tensor, scale: float = 1.0) -> None:
    """Scatter into the pool, in place.

    x      [num_tokens, num_kv_heads, head_dim]
    pool   [num_slots, num_kv_heads, head_dim], dtype of x or FP8; any strides
    slots  [num_tokens] int64, distinct
    scale  an FP8 pool holds x / scale, saturated
    """
    fp8 = pool.dtype.itemsize == 1
    check(slots, "slots", (x.shape[0],), torch.int64)
    check(pool, "pool", (None, x.shape[1], x.shape[2]), None if fp8 else x.dtype)
    if fp8:
        quantized = (x.float() / scale).clamp_(-FP8_MAX, FP8_MAX).to(pool.dtype)
        # index_copy_ knows no FP8; bytes are bytes.
        pool.view(torch.uint8).index_copy_(0, slots, quantized.view(torch.uint8))
    else:
        pool.index_copy_(0, slots, x)


def store_kv_ref(
    x: torch.Tensor, pool: torch.Tensor, slots: torch.Tensor, scale: float = 1.0
) -> None:
    """The plain form of ``store_kv``."""
    for i, slot in enumerate(slots.tolist()):
        value = x[i] if pool.dtype.itemsize > 1 else (x[i].float() / scale).clamp(-FP8_MAX, FP8_MAX)
        pool[slot] = value.to(pool.dtype)
