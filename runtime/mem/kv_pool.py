"""TokenToKVPool: the tensors behind the slots."""

from __future__ import annotations

import torch

from rtlang.runtime.layers.spec import DecoderSpec


class TokenToKVPool:
    """``keys`` and ``values``: per layer [num_slots, num_kv_heads, head_dim].

    In memory the heads come first: one head's keys are then rows of one matrix, which is what
    the CPU's matrix products want.
    """

    def __init__(self, spec: DecoderSpec, num_slots: int, dtype: torch.dtype) -> None:
        shape = (spec.num_kv_heads, num_slots, spec.head_dim)

        # Not zeroed: memory that nobody has written is never read, and untouched pages cost
        # nothing.
        def layer() -> torch.Tensor:
            return torch.empty(shape, dtype=dtype).transpose(0, 1)

        self.keys = [layer() for _ in range(spec.num_layers)]
        self.values = [layer() for _ in range(spec.num_layers)]


def kv_bytes_per_token(spec: DecoderSpec, dtype: torch.dtype) -> int:
    """2 * layers * KV heads * head dim * bytes per number."""
    return 2 * spec.num_layers * spec.num_kv_heads * spec.head_dim * dtype.itemsize
