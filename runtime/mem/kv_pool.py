"""TokenToKVPool: the tensors behind the slots."""

from __future__ import annotations

import torch

from rtlang.runtime.layers.spec import DecoderSpec


class TokenToKVPool:
    """``keys`` and ``values``: per layer [num_slots, num_kv_heads, head_dim].

    With ``heads_first`` the heads come first in memory: one head's keys are then rows of one
    matrix, which is what the CPU's matrix products want. On a GPU a token's heads lie together.
    """

    def __init__(
        self,
        spec: DecoderSpec,
        num_slots: int,
        dtype: torch.dtype,
        device: torch.device | None = None,
        *,
        heads_first: bool = True,
    ) -> None:
        shape = (num_slots, spec.num_kv_heads, spec.head_dim)

        # Not zeroed: memory that nobody has written is never read, and untouched pages cost
        # nothing.
        def layer() -> torch.Tensor:
            if heads_first:
                turned = (shape[1], shape[0], shape[2])
                return torch.empty(turned, dtype=dtype, device=device).transpose(0, 1)
            return torch.empty(shape, dtype=dtype, device=device)

        self.keys = [layer() for _ in range(spec.num_layers)]
        self.values = [layer() for _ in range(spec.num_layers)]


def kv_bytes_per_token(spec: DecoderSpec, dtype: torch.dtype) -> int:
    """2 * layers * KV heads * head dim * bytes per number."""
    return 2 * spec.num_layers * spec.num_kv_heads * spec.head_dim * dtype.itemsize
