"""The attention interface: plan once per batch, run once per layer."""

from __future__ import annotations

import dataclasses
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

Int32s = npt.NDArray[np.int32]
NewKV = tuple[torch.Tensor, torch.Tensor]


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceRows:
    """A batch's rows as device kernels see them: the host need not know a length.

    Rows that only fill up a captured graph have ``seq_lens`` 1 and slot 0 (decode), or
    ``seq_lens`` 0 and no query (extend); queries behind ``q_starts[-1]`` belong to nobody, and
    what is written for them is not read.
    """

    seq_lens: torch.Tensor  # [num_rows] int32
    q_starts: torch.Tensor  # [num_rows + 1] int32; row i's queries are q[q_starts[i]:q_starts[i+1]]
    rows: torch.Tensor  # [num_rows] int32, the row's line in ``slot_table``
    slot_table: torch.Tensor  # [num_lines, width] int32; [rows[i], t] is the slot of token t
    decode: bool  # every row has exactly one query: q_starts[i] == i


@dataclasses.dataclass(frozen=True, slots=True)
class AttentionRows:
    """What attention needs of a batch; knows no request.

    Row i attends with its last ``extend_lens[i]`` tokens, which lie one after the other in q, to
    its first ``seq_lens[i]`` tokens, causally; token t of it is in slot ``slot_table[i, t]``.
    """

    seq_lens: Int32s  # [num_rows]
    extend_lens: Int32s  # [num_rows]
    slot_table: Int32s  # [num_rows, >= max(seq_lens)]; more columns are not read
    device: DeviceRows | None = None  # the same rows on the GPU, where there is one


@dataclasses.dataclass(frozen=True, slots=True)
class AttentionLayer:
    """What a layer's attention is like."""

    scale: float
    window: int | None = None  # a token sees itself and window - 1 tokens before it
    soft_cap: float | None = None  # scores become cap * tanh(score / cap)
    k_scale: float = 1.0  # a stored key times this is the key (fp8 pools)
    v_scale: float = 1.0


class AttentionBackend(Protocol):
    def plan(self, rows: AttentionRows) -> None:
        """Prepare for one batch. Valid until the next ``plan``."""
        ...

    def run(
        self,
        q: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        layer: AttentionLayer,
        out: torch.Tensor | None = None,
        new: NewKV | None = None,
    ) -> torch.Tensor:
        """Attention of the planned batch; the new tokens' KV is in the pool already.

        q             [num_tokens, num_heads, head_dim]
        keys, values  [num_slots, num_kv_heads, head_dim], one layer's pool
        new           the new tokens' keys and values once more, [num_tokens, num_kv_heads,
                      head_dim] each, unscaled, in the order of q
        returns       [num_tokens, num_heads, head_dim], ``out`` where it is given
        """
        ...
