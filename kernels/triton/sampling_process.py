# Triton's functions and their arguments have no Python types.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""From logits to processed scores: penalties, addends, mask; and each block's best score.

The arithmetic is that of ``runtime/sampling/penalties.py``, operation by operation in fp32, so
the launches need ``enable_fp_fusion=False``: a fused multiply-add rounds once instead of twice.
Grids are (rows, blocks of the vocabulary) unless said otherwise.
"""

from __future__ import annotations

import triton
import triton.language as tl

#: Bits of ``SampleRows.flags``.
GREEDY = tl.constexpr(1)
FILTERED = tl.constexpr(2)
PENALISED = tl.constexpr(4)
MASKED = tl.constexpr(8)

#: Arguments that are slices of one upload, at any multiple of 4 bytes: no variant of a kernel for
#: each alignment, so that what is compiled does not depend on the batch.
UPLOADED = [
    *("temperatures", "top_ks", "top_ps", "min_ps", "seed_lows", "seed_highs", "positions"),
    *("flags", "repetitions", "frequencies", "presences", "lines", "seq_lens", "prompt_lens"),
    *("count", "samples", "tokens", "values", "mask_bits", "out_ids", "out_status"),
]

#: Bit of a count that says that the token occurs in the prompt; those below count the output.
_PROMPT_BIT = tl.constexpr(1 << 30)


@triton.jit(do_not_specialize_on_alignment=UPLOADED)
def count_kernel(
    token_ids,  # [num_lines, width] i32
    line_stride,
    lines,  # [B] i32, line of each row
    seq_lens,  # [B] i32
    prompt_lens,  # [B] i32
    flags,  # [B] i32
    counts,  # [B, vocab_size] i32, all 0 before the first and after the second call
    vocab_size,
    CLEAR: tl.constexpr,
    SPLIT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Counts the history of the penalised rows, or clears its counts. Grid (B, SPLIT).

    Only the places of known tokens are touched: the cost is that of the history, not of the
    vocabulary. Integer atomics, so the result does not depend on their order.
    """
    row = tl.program_id(0)
    if tl.load(flags + row) & PENALISED:
        seq_len = tl.load(seq_lens + row)
        prompt_len = tl.load(prompt_lens + row)
        history = token_ids + tl.load(lines + row).to(tl.int64) * line_stride
        target = counts + row.to(tl.int64) * vocab_size
        start = tl.program_id(1) * BLOCK
        while start < seq_len:
            columns = start + tl.arange(0, BLOCK)
            known = columns < seq_len
            tokens = tl.load(history + columns, mask=known, other=-1)
            known = known & (tokens >= 0) & (tokens < vocab_size)
            if CLEAR:
                tl.store(target + tokens, tl.zeros([BLOCK], tl.int32), mask=known)
            else:
                is_output = columns >= prompt_len
                ones = tl.full([BLOCK], 1, tl.int32)
                tl.atomic_add(target + tokens, ones, mask=known & is_output, sem="relaxed")
                bits = tl.full([BLOCK], _PROMPT_BIT, tl.int32)
                tl.atomic_or(
                    target + tokens, bits, mask=known & (columns < prompt_len), sem="relaxed"
                )
            start += SPLIT * BLOCK


@triton.jit
def penalise(x, counted, repetition, frequency, presence):
    """``penalise_plain``: [BLOCK] fp32 logits and their counts; the rest are the row's scalars."""
    repeated = tl.where(x > 0, tl.math.div_rn(x, repetition), x * repetition)
    x = tl.where(counted != 0, repeated, x)
    in_output = counted & (_PROMPT_BIT - 1)
    less = frequency * in_output.to(tl.float32) + presence
    return tl.where(in_output > 0, x - less, x)


@triton.jit(do_not_specialize_on_alignment=UPLOADED)
def process_kernel(
    logits,  # [B, vocab_size] any float, rows of ``row_stride``
    row_stride,
    scores,  # [B, vocab_size] fp32: written if FULL
    counts,  # [B, vocab_size] i32: see count_kernel
    mask_bits,  # [B, mask_stride] i32, 0 bits are forbidden
    mask_stride,
    flags,  # [B] i32
    repetitions,  # [B] f32
    frequencies,  # [B] f32
    presences,  # [B] f32
    block_best,  # [B, num_blocks] f32: each block's largest score, +inf if one is NaN
    block_arg,  # [B, num_blocks] i32: its id, the lowest among equals
    block_finite,  # [B, num_blocks] i32: whether some raw logit is finite; written if FULL
    vocab_size,
    num_blocks,
    FULL: tl.constexpr,
    HAS_MASK: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Best score of each block; FULL: of what penalties and mask make of it, which is kept.

    A NaN counts as +inf: both make a row bad, and no maximum loses it.
    """
    row = tl.program_id(0)
    block = tl.program_id(1)
    ids = block * BLOCK + tl.arange(0, BLOCK)
    inside = ids < vocab_size
    x = tl.load(logits + row.to(tl.int64) * row_stride + ids, mask=inside, other=float("-inf")).to(
        tl.float32
    )
    out = row.to(tl.int64) * num_blocks + block
    if FULL:
        finite = tl.max((tl.abs(x) < float("inf")).to(tl.int32), axis=0)
        tl.store(block_finite + out, finite)
        flag = tl.load(flags + row)
        place = row.to(tl.int64) * vocab_size + ids
        if flag & PENALISED:
            counted = tl.load(counts + place, mask=inside, other=0)
            x = penalise(
                x,
                counted,
                tl.load(repetitions + row),
                tl.load(frequencies + row),
                tl.load(presences + row),
            )
        if HAS_MASK:
            is_masked = (flag & MASKED) != 0
            if is_masked:
                at = mask_bits + row.to(tl.int64) * mask_stride + ids // 32
                words = tl.load(at, mask=inside, other=0)
                x = tl.where(((words >> (ids % 32)) & 1) != 0, x, float("-inf"))
        tl.store(scores + place, x, mask=inside)
    x = tl.where(x == x, x, float("inf"))
    best = tl.max(x, axis=0)
    tl.store(block_best + out, best)
    tl.store(block_arg + out, tl.min(tl.where(x == best, ids, 2147483647), axis=0))


@triton.jit(do_not_specialize_on_alignment=UPLOADED)
def mask_kernel(
    logits,  # [B, vocab_size] any float, rows of ``row_stride``; changed in place
    row_stride,
    mask_bits,  # [B, mask_stride] i32, 0 bits are forbidden
    mask_stride,
    flags,  # [B] i32
    vocab_size,
    BLOCK: tl.constexpr,
):
    """-inf for what the mask of a MASKED row forbids; nothing is read of the logits."""
    row = tl.program_id(0)
    if tl.load(flags + row) & MASKED:
        ids = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        inside = ids < vocab_size
        words = tl.load(mask_bits + row.to(tl.int64) * mask_stride + ids // 32, mask=inside)
        forbidden = inside & (((words >> (ids % 32)) & 1) == 0)
        minus = tl.full([BLOCK], float("-inf"), tl.float32).to(logits.dtype.element_ty)
        tl.store(logits + row.to(tl.int64) * row_stride + ids, minus, mask=forbidden)


@triton.jit(do_not_specialize=["num_rows"], do_not_specialize_on_alignment=UPLOADED)
def edit_kernel(
    count,  # [1] i32
    samples,  # [capacity] i32
    tokens,  # [capacity] i32
    values,  # [capacity] f32
    scores,  # [B, vocab_size] fp32, changed in place
    num_rows,
    vocab_size,
    capacity,
    BLOCK: tl.constexpr,
):
    """``scores[sample, token] += value`` for the first ``count``; -inf is set, not added, so that
    it also wins over +inf and NaN. Grid (blocks of the capacity)."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    used = i < tl.minimum(tl.load(count), capacity)
    sample = tl.load(samples + i, mask=used, other=0)
    token = tl.load(tokens + i, mask=used, other=0)
    value = tl.load(values + i, mask=used, other=0.0)
    used = used & (sample >= 0) & (sample < num_rows) & (token >= 0) & (token < vocab_size)
    place = scores + sample.to(tl.int64) * vocab_size + token
    is_hard = value == float("-inf")
    # Whichever comes first: -inf plus a finite addend stays -inf.
    tl.atomic_add(place, value, mask=used & (is_hard == 0), sem="relaxed")
    bits = place.to(tl.pointer_type(tl.int32), bitcast=True)
    hard = value.to(tl.int32, bitcast=True)
    tl.atomic_xchg(bits, hard, mask=used & is_hard, sem="relaxed")
