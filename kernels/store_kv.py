"""Writes new keys and values into their slots."""

from __future__ import annotations

import torch

from rtlang.kernels.checks import check


def store_kv(x: torch.Tensor, pool: torch.Tensor, slots: torch.Tensor) -> None:
    """Scatter into the pool, in place.

    x      [num_tokens, num_kv_heads, head_dim]
    pool   [num_slots, num_kv_heads, head_dim], dtype of x; any strides
    slots  [num_tokens] int64, distinct
    """
    check(slots, "slots", (x.shape[0],), torch.int64)
    check(pool, "pool", (None, x.shape[1], x.shape[2]), x.dtype)
    pool.index_copy_(0, slots, x)


def store_kv_ref(x: torch.Tensor, pool: torch.Tensor, slots: torch.Tensor) -> None:
    """The plain form of ``store_kv``."""
    for i, slot in enumerate(slots.tolist()):
        pool[slot] = x[i]
