"""What changes logits before the draw: penalties by the row's history, packed masks."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from rtlang.runtime.batch import Int32s
from rtlang.runtime.mem.rows import ReqToTokenPool

Float32s = npt.NDArray[np.float32]
Bools = npt.NDArray[np.bool_]
Ids = npt.NDArray[np.intp]


def penalise_plain(
    logits: Float32s,
    tokens: Int32s,
    prompt_len: int,
    repetition: float,
    frequency: float,
    presence: float,
) -> Float32s:
    """One row after its penalties: repetition (prompt and output, once a distinct token: a
    positive logit is divided, a negative one multiplied), then frequency and presence (output).

    logits  [vocab_size], not changed
    tokens  [len] prompt and generated ids
    """
    result = logits.copy()
    for token in set(tokens.tolist()):
        value = result[token]
        result[token] = value / repetition if value > 0 else value * repetition
    output = tokens[prompt_len:].tolist()
    for token in set(output):
        result[token] -= frequency * output.count(token) + presence
    return result


def apply_penalties(
    logits: Float32s,
    samples: Ids,
    rows: Int32s,
    seq_lens: Int32s,
    pool: ReqToTokenPool,
    repetition: Float32s,
    frequency: Float32s,
    presence: Float32s,
) -> None:
    """``penalise_plain`` on many rows at once, in place; touches only tokens of the histories.

    logits   [num_samples, vocab_size], contiguous; rows ``samples`` are changed
    samples  [n] rows of ``logits``; all that follow are of the same length
    rows     [n] pool rows; the histories are ``pool.token_ids[row, :seq_len]``
    """
    lens = seq_lens[:, None]
    columns = np.arange(lens.max())
    known = columns < lens  # [n, width]
    generated = known & (columns >= pool.prompt_lens[rows][:, None])
    # A token's place in the flattened logits.
    places = pool.token_ids[rows, : len(columns)] + samples[:, None] * logits.shape[1]
    owner = np.broadcast_to(np.arange(len(rows))[:, None], known.shape)
    flat = logits.reshape(-1)
    assert np.shares_memory(flat, logits), "the logits are not contiguous"

    at, factor = places[known], repetition[owner[known]]
    values = flat[at]
    with np.errstate(over="ignore"):
        # A token that occurs often is written often, but always the same value.
        flat[at] = np.where(values > 0, values / factor, values * factor)

    at, first, counts = np.unique(places[generated], return_index=True, return_counts=True)
    of = owner[generated][first]
    flat[at] -= frequency[of] * counts.astype(np.float32) + presence[of]


def unpack_mask(mask_bits: torch.Tensor, vocab_size: int) -> Bools:
    """[num_rows, vocab_size], True where a token is allowed.

    mask_bits  [num_rows, ceil(vocab_size / 32)] int32; token t is bit t % 32 of word t // 32
    """
    assert mask_bits.dtype == torch.int32, mask_bits.dtype
    assert mask_bits.shape[1] == -(-vocab_size // 32), (mask_bits.shape, vocab_size)
    octets = mask_bits.cpu().contiguous().numpy().astype("<i4", copy=False).view(np.uint8)
    bits = np.unpackbits(octets, axis=1, count=vocab_size, bitorder="little")
    return bits.view(np.bool_)
