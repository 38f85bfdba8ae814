# Triton's functions and their arguments have no Python types.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""The seeded draw: argmax of scaled score + Gumbel noise, as ``runtime/sampling/draw.py`` has it.

u(token) = (murmur3_x86_32(seed low, seed high, output index, token) + 0.5) / 2^32, the noise is
-log(-log u); MurmurHash3 is Austin Appleby's (public domain).
"""

from __future__ import annotations

import triton
import triton.language as tl

from rtlang.kernels.triton.sampling_process import GREEDY, MASKED, UPLOADED

_C1 = tl.constexpr(0xCC9E2D51)
_C2 = tl.constexpr(0x1B873593)
_ADD = tl.constexpr(0xE6546B64)
_F1 = tl.constexpr(0x85EBCA6B)
_F2 = tl.constexpr(0xC2B2AE35)
_2_TO_MINUS_32 = tl.constexpr(2.0**-32)
_FLOAT_MAX = tl.constexpr(3.4028234663852886e38)
#: Bounds below this cannot win (see ``race_kernel``); e^-3.2.
_HOPELESS = tl.constexpr(0.0407)
#: Relative room for fp32 errors in the bounds.
_SLACK = tl.constexpr(1e-4)


@triton.jit
def _add_word(h, word):
    """One 32-bit word into the murmur state; both uint32."""
    k = word * _C1
    k = ((k << 15) | (k >> 17)) * _C2
    h = h ^ k
    return ((h << 13) | (h >> 19)) * 5 + _ADD


@triton.jit
def hash_state(low, high, position):
    """State after the row's three words (int32 scalars): shared by all its tokens."""
    h = _add_word(low.to(tl.uint32, bitcast=True) * 0, low.to(tl.uint32, bitcast=True))
    h = _add_word(h, high.to(tl.uint32, bitcast=True))
    return _add_word(h, position.to(tl.uint32, bitcast=True))


@triton.jit
def hash_tokens(state, tokens):
    """uint32 hashes of int32 ``tokens`` for a row's state."""
    h = _add_word(state, tokens.to(tl.uint32, bitcast=True))
    h = h ^ 16
    h = (h ^ (h >> 16)) * _F1
    h = (h ^ (h >> 13)) * _F2
    return h ^ (h >> 16)


@triton.jit
def gaps(h):
    """1 - u in fp32 for uint32 hashes, from the integer: to a relative 2^-23, and never 0."""
    return ((4294967295 - h).to(tl.float32) + 0.5) * _2_TO_MINUS_32


@triton.jit
def gumbel64(h):
    """The noise of a uint32 hash in fp64, as the CPU computes it."""
    u = (h.to(tl.float64) + 0.5) * _2_TO_MINUS_32
    return -tl.log(-tl.log(u))


@triton.jit
def row_best(block_best, row, num_blocks, NUM_BLOCKS: tl.constexpr):
    """Largest score of a row from those of its blocks; NUM_BLOCKS: power of two >= num_blocks."""
    blocks = tl.arange(0, NUM_BLOCKS)
    at = block_best + row.to(tl.int64) * num_blocks + blocks
    return tl.max(tl.load(at, mask=blocks < num_blocks, other=float("-inf")), axis=0)


@triton.jit
def exact_score(line, token, best, temperature, state):
    """What ``draw_plain`` compares: fp32 scaled score + fp64 noise, of one token."""
    scaled = tl.math.div_rn(tl.load(line + token).to(tl.float32) - best, temperature)
    return scaled.to(tl.float64) + gumbel64(hash_tokens(state, token))


@triton.jit(do_not_specialize_on_alignment=UPLOADED)
def race_kernel(
    scores,  # [B, vocab_size] processed scores (the logits themselves where nothing changes them)
    row_stride,
    block_best,  # [B, num_blocks] f32
    temperatures,  # [B] f32
    seed_lows,  # [B] i32
    seed_highs,  # [B] i32
    positions,  # [B] i32
    flags,  # [B] i32
    cuts,  # [B] f32, least scaled score that the filters keep; read if FULL
    winner_scores,  # [B, num_blocks] f64: scaled score + noise of each block's winner
    winner_ids,  # [B, num_blocks] i32
    vocab_size,
    num_blocks,
    FULL: tl.constexpr,
    NUM_BLOCKS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Winner of each block, by the exact fp64 comparison. Nothing is done for greedy or bad rows.

    The winner has the largest e^scaled / -log u. As -log u >= 1 - u, e^scaled / (1 - u) bounds it:
    cheap in fp32. Only a token whose bound reaches the exact value of some good token (the pilot,
    the one with the largest bound) can win. Mostly no other does; those that do are compared in
    fp64.

    The noise is at least -3.131 and the row's best token has scaled 0, so a winner's value is at
    least 0.0436, and scaled at least -26.1. There, fp32 makes relative errors of at most 3e-6 by
    a rounded 1 / temperature, 3e-6 by exp, 4e-7 by the rest, and 3e-6 in the pilot's value: 1e-5
    together, and the slack is 1e-4.
    """
    row = tl.program_id(0)
    block = tl.program_id(1)
    best = row_best(block_best, row, num_blocks, NUM_BLOCKS)
    if (tl.load(flags + row) & GREEDY) == 0 and tl.abs(best) < float("inf"):
        ids = block * BLOCK + tl.arange(0, BLOCK)
        line = scores + row.to(tl.int64) * row_stride
        x = tl.load(line + ids, mask=ids < vocab_size, other=float("-inf")).to(tl.float32)
        temperature = tl.load(temperatures + row)
        if FULL:
            scaled = tl.math.div_rn(x - best, temperature)
            scaled = tl.where(scaled >= tl.load(cuts + row), scaled, float("-inf"))
        else:
            scaled = (x - best) * tl.minimum(tl.math.div_rn(1.0, temperature), _FLOAT_MAX)
        state = hash_state(
            tl.load(seed_lows + row), tl.load(seed_highs + row), tl.load(positions + row)
        )
        bounds = tl.exp(scaled) / gaps(hash_tokens(state, ids))
        leader = tl.max(bounds, axis=0)
        winner = tl.full([], 0, tl.int32)
        top = tl.full([], float("-inf"), tl.float64)
        if leader >= _HOPELESS:
            winner = tl.min(tl.where(bounds == leader, ids, 2147483647), axis=0)
            top = exact_score(line, winner, best, temperature, state)
            least = tl.exp(top.to(tl.float32)) * (1.0 - _SLACK)
            rival = (bounds >= least) & (ids != winner)
            left = tl.sum(rival.to(tl.int32), axis=0)
            token = tl.full([], -1, tl.int32)
            while left > 0:
                token = tl.min(tl.where(rival & (ids > token), ids, 2147483647), axis=0)
                score = exact_score(line, token, best, temperature, state)
                is_ahead = (score > top) | ((score == top) & (token < winner))
                winner = tl.where(is_ahead, token, winner)
                top = tl.where(is_ahead, score, top)
                left -= 1
        out = row.to(tl.int64) * num_blocks + block
        tl.store(winner_scores + out, top)
        tl.store(winner_ids + out, winner)


@triton.jit(do_not_specialize_on_alignment=UPLOADED)
def finish_kernel(
    block_best,  # [B, num_blocks] f32
    block_arg,  # [B, num_blocks] i32
    block_finite,  # [B, num_blocks] i32; read if FULL
    winner_scores,  # [B, num_blocks] f64
    winner_ids,  # [B, num_blocks] i32
    flags,  # [B] i32
    lines,  # [B] i32
    seq_lens,  # [B] i32
    token_ids,  # [num_lines, width] i32: the id is written to [line, seq_len]
    line_stride,
    width,
    out_ids,  # [B] i32
    out_status,  # [B] i32
    num_blocks,
    FULL: tl.constexpr,
    NUM_BLOCKS: tl.constexpr,
):
    """Id and status of each row from its blocks' results. Grid (B)."""
    row = tl.program_id(0)
    blocks = tl.arange(0, NUM_BLOCKS)
    inside = blocks < num_blocks
    at = row.to(tl.int64) * num_blocks + blocks
    flag = tl.load(flags + row)
    bests = tl.load(block_best + at, mask=inside, other=float("-inf"))
    best = tl.max(bests, axis=0)
    status = tl.full([], 0, tl.int32)
    token = tl.full([], 0, tl.int32)
    if tl.abs(best) < float("inf"):
        if flag & GREEDY:
            args = tl.load(block_arg + at, mask=inside, other=2147483647)
            token = tl.min(tl.where(bests == best, args, 2147483647), axis=0)
        else:
            tops = tl.load(winner_scores + at, mask=inside, other=float("-inf"))
            ids = tl.load(winner_ids + at, mask=inside, other=2147483647)
            token = tl.min(tl.where(tops == tl.max(tops, axis=0), ids, 2147483647), axis=0)
    else:
        status += 1
        if FULL:
            is_emptied = ((flag & MASKED) != 0) & (best < 0)
            if is_emptied:
                finite = tl.max(tl.load(block_finite + at, mask=inside, other=0), axis=0)
                status += tl.where(finite > 0, 1, 0)
    tl.store(out_ids + row, token)
    tl.store(out_status + row, status)
    seq_len = tl.load(seq_lens + row)
    if seq_len < width:
        line = tl.load(lines + row).to(tl.int64)
        tl.store(token_ids + line * line_stride + seq_len, token)
