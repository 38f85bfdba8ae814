# Triton's functions and their arguments have no Python types.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""top-k, top-p, min-p as one cut of the scaled scores, as ``runtime/sampling/filters.py`` has it.

Three kernels and no sort. ``survey_kernel`` counts and weighs what lies above fixed pivots;
``compact_kernel`` lists the scaled scores above the highest pivot below which the filters keep
nothing (some hundreds, as a rule); ``cut_kernel`` bisects over that list.

Scaled scores are at most 0, so the int32 bits of their magnitudes are in reverse order: a bisection
over those integers ends at an exact fp32 value.

Against the CPU: masses are of fp32 exponentials (relative error about 3e-7), added in fp32 in a
block of the survey and in fp64 elsewhere, while the CPU uses fp64; and top_p, min_p arrive as fp32.
A top-p border that is closer to a token's than those roundings, or a min-p one within an fp32 step
of its logarithm, can fall on the other side. Borders that are equal in exact arithmetic do not:
``_BORDER`` is larger than the errors. A row's cut does not depend on its batch-mates.
"""

from __future__ import annotations

import triton
import triton.language as tl

from rtlang.kernels.triton.sampling_draw import row_best
from rtlang.kernels.triton.sampling_process import FILTERED, GREEDY, UPLOADED

#: That of ``runtime/sampling/filters.py``.
_BORDER = tl.constexpr(1e-6)
_FLOAT_MAX = tl.constexpr(3.4028234663852886e38)
#: Bits of _FLOAT_MAX and of inf.
_MAX_BITS = tl.constexpr(0x7F7FFFFF)
_INF_BITS = tl.constexpr(0x7F800000)
#: Where the bisection of top-p begins if the cut lies above all pivots.
_FIRST_GUESS = tl.constexpr(2.0**-6)
#: Pivots -2, -5 ... -20, and one below all that is finite.
PIVOTS = tl.constexpr(8)


@triton.jit
def _pivot(i):
    """The i-th pivot, from the highest; i: int32 scalar."""
    return tl.where(i == PIVOTS - 1, -_FLOAT_MAX, -2.0 - 3.0 * i.to(tl.float32))


@triton.jit
def _exp(x):
    """e^x for fp32 x <= 0, its error not growing with x (``tl.exp`` scales x by log2 e in fp32).

    x = n log 2 + r, |r| <= 0.35; n times the first part of log 2 is exact in fp32 (x >= -100).
    """
    x = tl.maximum(x, -100.0)
    n = tl.floor(x * 1.4426950408889634 + 0.5)
    r = (x - n * 0.693359375) - n * -2.12194440e-4
    return tl.exp(r) * tl.exp2(n)


@triton.jit
def _wants(flags, top_ks, top_ps, row, vocab_size):
    """(top_k or 0, top_p or 1) of a row that is filtered and drawn; off for all others."""
    flag = tl.load(flags + row)
    on = ((flag & FILTERED) != 0) & ((flag & GREEDY) == 0)
    top_k = tl.load(top_ks + row)
    top_k = tl.where(on & (top_k > 0) & (top_k < vocab_size), top_k, 0)
    top_p = tl.where(on, tl.load(top_ps + row), 1.0)
    return top_k, top_p


@triton.jit
def _scaled(scores, best, temperatures, row, ids, vocab_size):
    line = scores + row.to(tl.int64) * vocab_size
    x = tl.load(line + ids, mask=ids < vocab_size, other=float("-inf"))
    return tl.math.div_rn(x - best, tl.load(temperatures + row))


@triton.jit(do_not_specialize_on_alignment=UPLOADED)
def survey_kernel(
    scores,  # [B, vocab_size] f32
    block_best,  # [B, num_best] f32
    temperatures,  # [B] f32
    flags,  # [B] i32
    top_ks,  # [B] i32
    top_ps,  # [B] f32
    pivot_counts,  # [B, PIVOTS, num_blocks] i32: how many of the block are at least the pivot
    pivot_masses,  # [B, PIVOTS, num_blocks] f64: sum of their e^scaled
    vocab_size,
    num_best,
    num_blocks,
    NUM_BEST: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Counts and masses above the pivots. Grid (B, num_blocks)."""
    row = tl.program_id(0)
    top_k, top_p = _wants(flags, top_ks, top_ps, row, vocab_size)
    best = row_best(block_best, row, num_best, NUM_BEST)
    if (top_k > 0 or top_p < 1.0) and tl.abs(best) < float("inf"):
        block = tl.program_id(1)
        ids = block * BLOCK + tl.arange(0, BLOCK)
        x = _scaled(scores, best, temperatures, row, ids, vocab_size)
        mass = _exp(x)
        for i in tl.static_range(PIVOTS):
            above = x >= _pivot(tl.full([], i, tl.int32))
            out = (row.to(tl.int64) * PIVOTS + i) * num_blocks + block
            tl.store(pivot_counts + out, tl.sum(above.to(tl.int32), axis=0))
            total = tl.sum(tl.where(above, mass, 0.0), axis=0)
            tl.store(pivot_masses + out, total.to(tl.float64))


@triton.jit(do_not_specialize_on_alignment=UPLOADED)
def compact_kernel(
    scores,  # [B, vocab_size] f32
    block_best,  # [B, num_best] f32
    temperatures,  # [B] f32
    flags,  # [B] i32
    top_ks,  # [B] i32
    top_ps,  # [B] f32
    pivot_counts,  # [B, PIVOTS, num_blocks] i32
    pivot_masses,  # [B, PIVOTS, num_blocks] f64
    listed,  # [B, vocab_size] f32: scaled scores that are at least the chosen pivot
    list_lens,  # [B] i32
    list_pivots,  # [B] i32: index of the chosen pivot
    totals,  # [B] f64: sum of e^scaled over the row
    vocab_size,
    num_best,
    num_blocks,
    NUM_BEST: tl.constexpr,
    NUM_BLOCKS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Lists what may be on or above the cut, in the order of the vocabulary. Grid (B, num_blocks).

    With top-k: the highest pivot that has k values above it. Else, the highest that has the mass
    of top-p above it. (top-p on what top-k leaves only raises the cut.)
    """
    row = tl.program_id(0)
    top_k, top_p = _wants(flags, top_ks, top_ps, row, vocab_size)
    best = row_best(block_best, row, num_best, NUM_BEST)
    if (top_k > 0 or top_p < 1.0) and tl.abs(best) < float("inf"):
        block = tl.program_id(1)
        pivots = tl.arange(0, PIVOTS)
        blocks = tl.arange(0, NUM_BLOCKS)
        at = (row.to(tl.int64) * PIVOTS + pivots)[:, None] * num_blocks + blocks[None, :]
        inside = (pivots[:, None] >= 0) & (blocks[None, :] < num_blocks)
        counts = tl.load(pivot_counts + at, mask=inside, other=0)
        masses = tl.sum(tl.load(pivot_masses + at, mask=inside, other=0.0), axis=1)
        total = tl.max(masses, axis=0)
        enough = masses >= top_p.to(tl.float64) * total
        enough = tl.where(top_k > 0, tl.sum(counts, axis=1) >= top_k, enough)
        chosen = tl.min(tl.where(enough, pivots, PIVOTS - 1), axis=0)
        of_chosen = tl.sum(tl.where((pivots == chosen)[:, None], counts, 0), axis=0)
        if block == 0:
            tl.store(list_lens + row, tl.sum(of_chosen, axis=0))
            tl.store(list_pivots + row, chosen)
            tl.store(totals + row, total)
        before = tl.sum(tl.where(blocks < block, of_chosen, 0), axis=0)
        ids = block * BLOCK + tl.arange(0, BLOCK)
        x = _scaled(scores, best, temperatures, row, ids, vocab_size)
        above = x >= _pivot(chosen)
        places = before + tl.cumsum(above.to(tl.int32), axis=0) - 1
        tl.store(listed + row.to(tl.int64) * vocab_size + places, x, mask=above)


@triton.jit
def _weigh(line, length, bits, MASS: tl.constexpr, BLOCK: tl.constexpr):
    """Count, or MASS (fp64), of the listed values whose magnitude has at most these ``bits``."""
    bound = -bits.to(tl.float32, bitcast=True)
    sums = tl.zeros([BLOCK], tl.float64 if MASS else tl.int32)
    start = length * 0
    while start < length:
        i = start + tl.arange(0, BLOCK)
        x = tl.load(line + i, mask=i < length, other=float("-inf"))
        above = (x >= bound) & (i < length)
        if MASS:
            sums += tl.where(above, _exp(x), 0.0).to(tl.float64)
        else:
            sums += above.to(tl.int32)
        start += BLOCK
    return tl.sum(sums, axis=0)


@triton.jit(do_not_specialize_on_alignment=UPLOADED)
def cut_kernel(
    flags,  # [B] i32
    block_best,  # [B, num_best] f32
    top_ks,  # [B] i32
    top_ps,  # [B] f32
    min_ps,  # [B] f32
    listed,  # [B, vocab_size] f32
    list_lens,  # [B] i32
    list_pivots,  # [B] i32
    totals,  # [B] f64
    cuts,  # [B] f32: the least scaled score that stays, -inf where nothing is filtered
    vocab_size,
    num_best,
    NUM_BEST: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The cut of each row. Grid (B)."""
    row = tl.program_id(0)
    top_k, top_p = _wants(flags, top_ks, top_ps, row, vocab_size)
    best = row_best(block_best, row, num_best, NUM_BEST)
    last = tl.full([], _INF_BITS, tl.int32)  # magnitude of the cut, as bits
    if (top_k > 0 or top_p < 1.0) and tl.abs(best) < float("inf"):
        line = listed + row.to(tl.int64) * vocab_size
        length = tl.load(list_lens + row)
        pivot = tl.load(list_pivots + row)
        total = tl.load(totals + row)
        lowest = (-_pivot(pivot)).to(tl.int32, bitcast=True)
        above = tl.where(pivot > 0, -_pivot(pivot - 1), _FIRST_GUESS).to(tl.int32, bitcast=True)
        if top_k > 0 and length >= top_k:
            # the least magnitude with k values up to it; the pivot above the list has less
            low = tl.where(pivot > 0, above, 0)
            last = lowest
            while low < last:
                middle = low + (last - low) // 2
                count = _weigh(line, length, middle, False, BLOCK)
                low = tl.where(count >= top_k, low, middle + 1)
                last = tl.where(count >= top_k, middle, last)
            total = _weigh(line, length, last, True, BLOCK)
        if top_p < 1.0:
            # the largest magnitude that has less than top_p strictly above it
            limit = top_p.to(tl.float64) * total * (1.0 - _BORDER)
            low = lowest * 0
            last = tl.minimum(last, lowest)
            middle = tl.minimum(above, last)
            while low < last:
                mass = _weigh(line, length, middle - 1, True, BLOCK)
                last = tl.where(mass < limit, last, middle - 1)
                low = tl.where(mass < limit, middle, low)
                middle = low + (last - low + 1) // 2
    cut = -last.to(tl.float32, bitcast=True)
    flag = tl.load(flags + row)
    min_p = tl.load(min_ps + row)
    if ((flag & FILTERED) != 0) & (min_p > 0):
        cut = tl.maximum(cut, (tl.log(min_p.to(tl.float64)) - _BORDER).to(tl.float32))
    tl.store(cuts + row, cut)
