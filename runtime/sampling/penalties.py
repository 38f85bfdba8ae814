"""What changes logits before the draw: penalties, bias, forbidden ids, packed masks."""

from __future__ import annotations

import numpy as np
import torch

from rtlang.runtime.batch import Int32s
from rtlang.runtime.mem.rows import ReqToTokenPool


def apply_penalties(
    logits: torch.Tensor,
    rows: Int32s,
    pool: ReqToTokenPool,
    repetition: torch.Tensor,
    frequency: torch.Tensor,
    presence: torch.Tensor,
) -> torch.Tensor:
    """Repetition (prompt and output, once a distinct token: a positive logit is divided, a
    negative one multiplied), then frequency and presence (output only).

    logits                           [num_rows, vocab_size] fp32; a new tensor is returned
    repetition, frequency, presence  [num_rows] fp32
    """
    lens, width = pool.lens[rows], int(pool.lens[rows].max())
    tokens = torch.from_numpy(pool.token_ids[rows, :width].astype(np.int64)).to(logits.device)
    columns = np.arange(width)
    known = torch.from_numpy(columns < lens[:, None]).to(logits.device)
    generated = known & torch.from_numpy(columns >= pool.prompt_lens[rows][:, None]).to(known)
    seen = torch.zeros_like(logits).scatter_add_(1, tokens, known.float()) > 0
    counts = torch.zeros_like(logits).scatter_add_(1, tokens, generated.float())
    factor = repetition[:, None]
    penalised = torch.where(logits > 0, logits / factor, logits * factor)
    logits = torch.where(seen, penalised, logits)
    return logits - frequency[:, None] * counts - presence[:, None] * (counts > 0)


def apply_mask_bits(logits: torch.Tensor, mask_bits: torch.Tensor) -> None:
    """Set every token whose bit is 0 to -inf, in place.

    mask_bits  [num_rows, ceil(vocab_size / 32)] int32; token t is bit t % 32 of word t // 32
    """
    words = mask_bits.to(torch.int64) & 0xFFFFFFFF
    shifts = torch.arange(32, device=logits.device)
    bits = (words[:, :, None] >> shifts) & 1
    allowed = bits.reshape(len(words), -1)[:, : logits.shape[1]].bool()
    logits.masked_fill_(~allowed, float("-inf"))
