"""ForwardBatch: one step as the model sees it, flat over tokens."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

from rtlang.kernels.attention.base import AttentionRows
from rtlang.runtime.batch import Batch, Int32s


@dataclasses.dataclass(frozen=True, slots=True)
class ForwardBatch:
    input_ids: torch.Tensor  # [num_tokens] int64
    positions: torch.Tensor  # [num_tokens] int64
    out_slots: torch.Tensor  # [num_tokens] int64, where the tokens' KV goes
    last_tokens: Int32s  # [num_rows], index of each row's last token
    attention: AttentionRows


def make_forward_batch(batch: Batch) -> ForwardBatch:
    """Gather a plan's tokens from the row tables, without a Python loop over them."""
    ends = np.cumsum(batch.extend_lens)
    starts = ends - batch.extend_lens
    of_row = np.repeat(np.arange(len(batch.rows)), batch.extend_lens)
    offsets = np.arange(ends[-1]) - starts[of_row]
    positions = (batch.seq_lens - batch.extend_lens)[of_row] + offsets
    rows = batch.rows[of_row]
    table = batch.pool.slots[batch.rows, : int(batch.seq_lens.max())]
    return ForwardBatch(
        input_ids=torch.from_numpy(batch.pool.token_ids[rows, positions].astype(np.int64)),
        positions=torch.from_numpy(positions.astype(np.int64)),
        out_slots=torch.from_numpy(batch.pool.slots[rows, positions].astype(np.int64)),
        last_tokens=(ends - 1).astype(np.int32),
        attention=AttentionRows(batch.seq_lens, batch.extend_lens, table),
    )
