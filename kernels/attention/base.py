"""The attention interface: plan once per batch, run once per layer."""

from __future__ import annotations

import dataclasses
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

Int32s = npt.NDArray[np.int32]


@dataclasses.dataclass(frozen=True, slots=True)
class AttentionRows:
    """What attention needs of a batch; knows no request.

    Row i attends with its last ``extend_lens[i]`` tokens, which lie one after the other in q, to
    its first ``seq_lens[i]`` tokens, causally; token t of it is in slot ``slot_table[i, t]``.
    """

    seq_lens: Int32s  # [num_rows]
    extend_lens: Int32s  # [num_rows]
    slot_table: Int32s  # [num_rows, >= max(seq_lens)]; more columns are not read


@dataclasses.dataclass(frozen=True, slots=True)
class AttentionLayer:
    """What a layer's attention is like."""

    scale: float
    window: int | None = None  # a token sees itself and window - 1 tokens before it
    soft_cap: float | None = None  # scores become cap * tanh(score / cap)


class AttentionBackend(Protocol):
    def plan(self, rows: AttentionRows) -> None:
        """Prepare for one batch. Valid until the next ``plan``."""
        ...

    def run(
        self, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, layer: AttentionLayer
    ) -> torch.Tensor:
        """Attention of the planned batch; the new tokens' KV is in the pool already.

        q             [num_tokens, num_heads, head_dim]
        keys, values  [num_slots, num_kv_heads, head_dim], one layer's pool
        returns       [num_tokens, num_heads, head_dim]
        """
        ...
