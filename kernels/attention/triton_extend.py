"""Several queries a row over a paged pool, causal across the border of prefix and new tokens.

A tile is ``BLOCK_M // GROUP`` queries times the ``GROUP`` query heads of one KV head, so that few
queries of a model with shared KV heads still fill a matrix product. Items come from the plan of
``triton_decode``; a long prefix under few queries is cut and merged as there.
"""

from __future__ import annotations

import triton
import triton.language as tl

from rtlang.kernels.attention.triton_decode import (
    KV_START,
    KV_STOP,
    LINE,
    NUM_QUERIES,
    POSITION,
    QUERY,
    BlockConfig,
    to_log2_scores,
    write_or_merge,
)
from rtlang.kernels.triton.jit import jit

MIN_BLOCK_M, MAX_BLOCK_M = 16, 128
#: Work buffers for parts of large tiles grow with it.
EXTEND_WAVES = 2


def extend_block_m(
    num_tokens: int, num_rows: int, group: int, head_dim: int, element_size: int
) -> int:
    """Lines of a tile, from shapes alone: the mean row's queries times heads, a power of two.

    ``element_size`` in bytes of a query's element.
    """
    mean = -(-num_tokens * group // max(num_rows, 1))
    most = MIN_BLOCK_M if element_size == 4 else MAX_BLOCK_M if head_dim <= 128 else 64
    rounded: int = triton.next_power_of_2(mean)
    least: int = triton.next_power_of_2(group)
    return max(min(rounded, most), least, MIN_BLOCK_M)


def extend_config(block_m: int, head_dim: int, element_size: int) -> BlockConfig:
    if element_size == 4:
        return BlockConfig(32 if head_dim <= 128 else 16, 8, 2, 128, EXTEND_WAVES)
    if head_dim > 128:
        return BlockConfig(64, 8 if block_m >= 64 else 4, 3, 128, EXTEND_WAVES)
    return BlockConfig(64, 8 if block_m >= 128 else 4, 5, 128, EXTEND_WAVES)


@jit
def _attend(
    acc: tl.tensor,
    top: tl.tensor,
    weight: tl.tensor,
    queries: tl.tensor,  # [BLOCK_M, BLOCK_D]
    positions: tl.tensor,  # [BLOCK_M] of the queries in their row
    key_at: tl.tensor,
    value_at: tl.tensor,
    slots_at: tl.tensor,
    start: tl.tensor,
    stop: tl.tensor,
    kv_stop: tl.tensor,
    window: tl.tensor,
    score_scale: tl.tensor,
    cap: tl.tensor,
    key_stride: tl.tensor,
    value_stride: tl.tensor,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    WINDOW: tl.constexpr,
    PRECISION: tl.constexpr,
    MASKED: tl.constexpr,  # False: every query sees every key, and steps are full
) -> tl.tensor:
    """Online softmax over keys [start, stop)."""
    n = tl.arange(0, BLOCK_N)
    dims = (tl.arange(0, BLOCK_D) < HEAD_DIM)[None, :]
    for begin in range(start, stop, BLOCK_N):
        at = begin + n
        inside = at < kv_stop
        kv_mask = inside[:, None] & dims
        slots = tl.load(slots_at + at, mask=inside, other=0).to(tl.int64)
        k = tl.load(key_at + slots[:, None] * key_stride, mask=kv_mask, other=0.0)
        v = tl.load(value_at + slots[:, None] * value_stride, mask=kv_mask, other=0.0)
        dots = tl.dot(queries, k.to(queries.dtype).T, input_precision=PRECISION)
        scores = to_log2_scores(dots, score_scale, cap, SOFT_CAP)
        if MASKED:
            seen = inside[None, :] & (at[None, :] <= positions[:, None])
            if WINDOW:
                seen = seen & (at[None, :] > positions[:, None] - window)
            scores = tl.where(seen, scores, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, 1))
        base = higher
        if MASKED:  # a query may have seen nothing yet
            base = tl.where(higher == float("-inf"), 0.0, higher)
        shares = tl.exp2(scores - base[:, None])
        shrink = tl.exp2(top - base)
        weight = weight * shrink + tl.sum(shares, 1)
        acc = acc * shrink[:, None]
        acc = tl.dot(shares.to(queries.dtype), v.to(queries.dtype), acc, input_precision=PRECISION)
        top = higher
    return acc, top, weight


@jit
def extend_kernel(
    q: tl.tensor,  # [num_tokens, num_heads, HEAD_DIM]
    keys: tl.tensor,  # [num_slots, NUM_KV_HEADS, HEAD_DIM]
    values: tl.tensor,
    out: tl.tensor,  # as q
    slot_table: tl.tensor,  # [num_lines, width] int32
    items: tl.tensor,
    count: tl.tensor,
    parts: tl.tensor,
    part_lses: tl.tensor,
    arrivals: tl.tensor,
    score_scale: tl.tensor,
    cap: tl.tensor,
    v_scale: tl.tensor,
    max_items: tl.tensor,
    table_stride: tl.tensor,
    q_stride: tl.tensor,
    q_head_stride: tl.tensor,
    key_stride: tl.tensor,
    key_head_stride: tl.tensor,
    value_stride: tl.tensor,
    value_head_stride: tl.tensor,
    out_stride: tl.tensor,
    out_head_stride: tl.tensor,
    window: tl.tensor,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    WINDOW: tl.constexpr,
    PRECISION: tl.constexpr,
    MERGE: tl.constexpr,
    MERGE_M: tl.constexpr,
) -> None:
    """Program (KV head, item): line m of the tile is query m // GROUP, head m % GROUP."""
    kv_head = tl.program_id(0)
    item = items + tl.program_id(1)
    if tl.program_id(1) >= tl.load(count):
        return
    line = tl.load(item + LINE * max_items).to(tl.int64)
    query = tl.load(item + QUERY * max_items).to(tl.int64)
    num_queries = tl.load(item + NUM_QUERIES * max_items)
    position = tl.load(item + POSITION * max_items)
    kv_start = tl.load(item + KV_START * max_items)
    kv_stop = tl.load(item + KV_STOP * max_items)

    m = tl.arange(0, BLOCK_M)
    d = tl.arange(0, BLOCK_D)
    tokens = m // GROUP
    heads = kv_head * GROUP + m % GROUP
    mask = (tokens < num_queries)[:, None] & (d < HEAD_DIM)[None, :]
    q_at = (query + tokens) * q_stride + heads * q_head_stride
    queries = tl.load(q + q_at[:, None] + d[None, :], mask=mask, other=0.0)
    key_at = keys + kv_head * key_head_stride + d[None, :]
    value_at = values + kv_head * value_head_stride + d[None, :]
    slots_at = slot_table + line * table_stride
    positions = position + tokens

    top = tl.full([BLOCK_M], float("-inf"), tl.float32)
    weight = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    middle = kv_start
    if not WINDOW:  # full steps that the tile's first query sees whole
        whole = tl.minimum(kv_stop, position + 1) - kv_start
        middle += tl.maximum(whole, 0) // BLOCK_N * BLOCK_N
        acc, top, weight = _attend(
            acc, top, weight, queries, positions, key_at, value_at, slots_at,
            kv_start, middle, kv_stop, window, score_scale, cap, key_stride, value_stride,
            HEAD_DIM, BLOCK_D, BLOCK_N, SOFT_CAP, WINDOW, PRECISION, False,
        )  # fmt: skip
    acc, top, weight = _attend(
        acc, top, weight, queries, positions, key_at, value_at, slots_at,
        middle, kv_stop, kv_stop, window, score_scale, cap, key_stride, value_stride,
        HEAD_DIM, BLOCK_D, BLOCK_N, SOFT_CAP, WINDOW, PRECISION, True,
    )  # fmt: skip

    some = weight > 0.0
    weight = tl.where(some, weight, 1.0)
    lse = tl.where(some, top + tl.log2(weight), float("-inf"))
    out += query * out_stride + kv_head * GROUP * out_head_stride
    write_or_merge(
        acc / weight[:, None], lse, out, out_stride, out_head_stride, num_queries, parts,
        part_lses, arrivals, item, max_items, v_scale,
        NUM_KV_HEADS, GROUP, HEAD_DIM, BLOCK_M, BLOCK_D, MERGE, MERGE_M,
    )  # fmt: skip
