"""One query a row over a paged pool: split-KV attention, planned and merged on the device.

The plan cuts every row's visible keys into items of about equal length; an item and one KV head
are one program. Programs of a row that was cut leave a normalised part and the log2 of its sum of
weights; whichever of them comes last merges: out = sum_s 2^(lse_s - max) o_s / sum_s 2^(lse_s -
max). Nothing here depends on a length that the host knows, so a captured graph stays valid.
"""

from __future__ import annotations

import dataclasses

import torch
import triton
import triton.language as tl

from rtlang.kernels.triton.jit import await_earlier, jit, jit_varying, pdl_options

#: Lines of the item table, [NUM_FIELDS, max_items] int32.
NUM_FIELDS = 9
LINE = tl.constexpr(0)  # line of the slot table
QUERY = tl.constexpr(1)  # first query's index in q
NUM_QUERIES = tl.constexpr(2)
POSITION = tl.constexpr(3)  # first query's position in its row
KV_START = tl.constexpr(4)
KV_STOP = tl.constexpr(5)
PART = tl.constexpr(6)  # place of the tile's first part; -1: the tile is not cut
SPLIT = tl.constexpr(7)  # which of the tile's parts this item is
NUM_SPLITS = tl.constexpr(8)


@dataclasses.dataclass(frozen=True, slots=True)
class BlockConfig:
    """What may be tuned; ``waves`` is the aimed-at number of programs per multiprocessor."""

    block_n: int  # keys a step
    num_warps: int
    num_stages: int
    min_tokens: int  # an item is not cut below this
    waves: int

    def num_targets(self, num_kv_heads: int, num_sms: int) -> int:
        """Items beyond one a tile that a plan may make."""
        return -(-self.waves * num_sms // num_kv_heads)


def decode_config(head_dim: int, element_size: int, num_programs: int, num_sms: int) -> BlockConfig:
    """``element_size`` in bytes of a stored key's element, 4 where the products are in fp32;
    ``num_programs`` is rows x KV heads. Key tiles are fetched (num_stages - 1) // 2 steps ahead,
    slots as many steps before them."""
    if element_size == 4:
        wide = head_dim > 128
        return BlockConfig(16, 8 if wide else 4, 2 if wide else 3, 64, 4)
    if head_dim > 128:
        return BlockConfig(32, 4, 3 if num_programs < num_sms else 5, 64, 4)
    # Measured on an H200 with 1,024 keys a row, see benchmarks/attention_decode.py.
    if num_programs < num_sms:  # latency counts
        return BlockConfig(128, 4, 5, 128, 8)
    if head_dim > 64 or num_programs < 2 * num_sms:
        # Six programs fit a multiprocessor; where not all run at once, long rows are cut, so that
        # the last ones do not run alone.
        return BlockConfig(64, 4, 3, 64, 4 if num_programs <= 6 * num_sms else 16)
    return BlockConfig(128, 4, 5, 128, 8)


@jit
def _cdiv(a: tl.tensor, b: tl.tensor) -> tl.tensor:
    return (a + b - 1) // b


@jit
def _num_parts(reach: tl.tensor, chunk: tl.tensor, block_n: tl.tensor) -> tl.tensor:
    """reach / chunk, rounded; less where parts of whole blocks would leave the last ones empty."""
    parts = tl.maximum((reach + chunk // 2) // chunk, 1)
    step = tl.maximum(_cdiv(_cdiv(reach, parts), block_n) * block_n, 1)
    return tl.maximum(_cdiv(reach, step), 1)


@jit_varying(ints=["num_rows", "target"], pointers=["seq_lens", "q_starts", "lines"])
def plan_kernel(
    seq_lens: tl.tensor,  # [num_rows] int32
    q_starts: tl.tensor,  # [num_rows + 1] int32
    lines: tl.tensor,  # [num_rows] int32
    items: tl.tensor,  # [NUM_FIELDS, max_items] int32, written
    count: tl.tensor,  # [1] int32, written: number of items
    num_rows: tl.tensor,
    max_items: tl.tensor,
    target: tl.tensor,
    window: tl.tensor,
    block_q: tl.tensor,  # queries a tile
    min_tokens: tl.tensor,
    block_n: tl.tensor,
    ROWS: tl.constexpr,
    ITEMS: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    """Program i writes row i's items: tiles of ``block_q`` queries, the last (longest) first.

    All tiles of a row are cut into the same number of parts: keys they may see / chunk, rounded,
    and never so many that the longest tile had an empty one; with chunk = all keys of all tiles /
    target. So there are at most tiles + target items, and at most 2 target of them belong to tiles
    that were cut.
    """
    await_earlier(PDL)
    row = tl.program_id(0)
    index = tl.arange(0, ROWS)
    inside = index < num_rows
    seqs = tl.load(seq_lens + index, mask=inside, other=0)
    first = tl.load(q_starts + index, mask=inside, other=0)
    last = tl.load(q_starts + index + 1, mask=inside, other=0)
    tiles = _cdiv(last - first, block_q)
    reach = tl.minimum(seqs, window + block_q - 1)
    total = tl.sum(tiles.to(tl.int64) * reach)
    chunk = tl.maximum(_cdiv(total, target), min_tokens).to(tl.int32)
    chunk = _cdiv(chunk, block_n) * block_n
    splits = _num_parts(reach, chunk, block_n)
    sizes = tiles * splits
    before = tl.sum(tl.where(index < row, sizes, 0))
    cut_before = tl.sum(tl.where((index < row) & (splits > 1), sizes, 0))
    if row == 0:
        tl.store(count, tl.sum(sizes))

    seq = tl.load(seq_lens + row)
    query = tl.load(q_starts + row)
    num_queries = tl.load(q_starts + row + 1) - query
    line = tl.load(lines + row)
    num_tiles = _cdiv(num_queries, block_q)
    num_splits = _num_parts(tl.minimum(seq, window + block_q - 1), chunk, block_n)
    for begin in range(0, num_tiles * num_splits, ITEMS):
        i = begin + tl.arange(0, ITEMS)
        mask = i < num_tiles * num_splits
        tile = num_tiles - 1 - i // num_splits
        token = tile * block_q
        in_tile = tl.minimum(num_queries - token, block_q)
        position = seq - num_queries + token
        left = tl.maximum(position - window + 1, 0)
        step = _cdiv(_cdiv(position + in_tile - left, num_splits), block_n) * block_n
        start = left + i % num_splits * step
        stop = tl.minimum(start + step, position + in_tile)
        part = tl.where(num_splits > 1, cut_before + i // num_splits * num_splits, -1)
        at = items + before + i
        tl.store(at + LINE * max_items, tl.zeros_like(i) + line, mask=mask)
        tl.store(at + QUERY * max_items, query + token, mask=mask)
        tl.store(at + NUM_QUERIES * max_items, in_tile, mask=mask)
        tl.store(at + POSITION * max_items, position, mask=mask)
        tl.store(at + KV_START * max_items, start, mask=mask)
        tl.store(at + KV_STOP * max_items, stop, mask=mask)
        tl.store(at + PART * max_items, part, mask=mask)
        tl.store(at + SPLIT * max_items, i % num_splits, mask=mask)
        tl.store(at + NUM_SPLITS * max_items, tl.zeros_like(i) + num_splits, mask=mask)


@jit
def to_log2_scores(
    dots: tl.tensor, score_scale: tl.tensor, cap: tl.tensor, SOFT_CAP: tl.constexpr
) -> tl.tensor:
    """Scores times log2(e). With a soft cap c: c tanh(x / c) = c (1 - 2 / (1 + e^(2 x / c))); then
    ``score_scale`` is scale 2 log2(e) / c and ``cap`` c log2(e)."""
    scores = dots * score_scale
    if SOFT_CAP:
        scores = cap * (1.0 - 2.0 / (1.0 + tl.exp2(scores)))
    return scores


@jit
def write_or_merge(
    result: tl.tensor,  # [BLOCK_M, BLOCK_D] fp32, normalised
    lse: tl.tensor,  # [BLOCK_M] fp32, log2; -inf where nothing was seen
    out: tl.tensor,  # pointer to the tile's first query and head
    out_stride: tl.tensor,
    out_head_stride: tl.tensor,
    num_queries: tl.tensor,
    parts: tl.tensor,  # [max_parts, NUM_KV_HEADS, BLOCK_M, BLOCK_D] fp32
    part_lses: tl.tensor,  # [max_parts, NUM_KV_HEADS, BLOCK_M] fp32
    arrivals: tl.tensor,  # [max_parts, NUM_KV_HEADS] int32, all 0 between launches
    item: tl.tensor,  # pointer to the item's first field
    max_items: tl.tensor,
    v_scale: tl.tensor,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_D: tl.constexpr,
    MERGE: tl.constexpr,  # parts read at once
    MERGE_M: tl.constexpr,  # lines that may be queries: BLOCK_M, or GROUP rounded up
) -> None:
    """Writes a tile's result, or leaves it as a part and merges if it is the tile's last.

    Line m of a tile is query m // GROUP, head m % GROUP.
    """
    part = tl.load(item + PART * max_items)
    d = tl.arange(0, BLOCK_D)[None, :]
    m = tl.arange(0, BLOCK_M)
    mask = (m // GROUP < num_queries)[:, None] & (d < HEAD_DIM)
    if part < 0:
        at = (m // GROUP * out_stride + m % GROUP * out_head_stride)[:, None] + d
        tl.store(out + at, (result * v_scale).to(out.dtype.element_ty), mask=mask)
    else:
        head = tl.program_id(0)
        split = tl.load(item + SPLIT * max_items)
        num_splits = tl.load(item + NUM_SPLITS * max_items)
        own = ((part + split) * NUM_KV_HEADS + head).to(tl.int64) * BLOCK_M
        tl.store(parts + own * BLOCK_D + m[:, None] * BLOCK_D + d, result, mask=mask)
        tl.store(part_lses + own + m, lse)
        tl.debug_barrier()  # all of this program's stores come before its arrival
        arrival = arrivals + part * NUM_KV_HEADS + head
        if tl.atomic_add(arrival, 1, sem="acq_rel") == num_splits - 1:
            lines = tl.arange(0, MERGE_M)
            wanted = (lines // GROUP < num_queries)[:, None] & (d < HEAD_DIM)
            top = tl.full([MERGE_M], float("-inf"), tl.float32)
            weight = tl.zeros([MERGE_M], tl.float32)
            merged = tl.zeros([MERGE_M, BLOCK_D], tl.float32)
            for begin in range(0, num_splits, MERGE):
                s = begin + tl.arange(0, MERGE)
                inside = (s < num_splits)[:, None]
                place = ((part + s) * NUM_KV_HEADS + head).to(tl.int64) * BLOCK_M
                place = place[:, None] + lines[None, :]
                lses = tl.load(
                    part_lses + place, mask=inside, other=float("-inf"), cache_modifier=".cg"
                )
                values = tl.load(
                    parts + place[:, :, None] * BLOCK_D + d[None, :, :],
                    mask=inside[:, :, None] & wanted[None, :, :],
                    other=0.0,
                    cache_modifier=".cg",
                )
                higher = tl.maximum(top, tl.max(lses, 0))
                base = tl.where(higher == float("-inf"), 0.0, higher)
                shares = tl.exp2(lses - base[None, :])
                shrink = tl.exp2(top - base)
                weight = weight * shrink + tl.sum(shares, 0)
                merged = merged * shrink[:, None] + tl.sum(values * shares[:, :, None], 0)
                top = higher
            merged = merged * (v_scale / tl.where(weight == 0.0, 1.0, weight))[:, None]
            at = (lines // GROUP * out_stride + lines % GROUP * out_head_stride)[:, None] + d
            tl.store(out + at, merged.to(out.dtype.element_ty), mask=wanted)
            tl.store(arrival, 0)


@jit
def decode_kernel(
    q: tl.tensor,  # [num_rows, num_heads, HEAD_DIM]
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
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,  # query heads of one KV head
    HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,  # >= GROUP: a tile of products has at least 16 lines
    BLOCK_D: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    PRECISION: tl.constexpr,
    MERGE: tl.constexpr,
    MERGE_M: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    """Program (KV head, item): all query heads of the KV head over the item's keys.

    All keys of an item are visible: the plan starts at the window's first.
    """
    await_earlier(PDL)
    kv_head = tl.program_id(0)
    item = items + tl.program_id(1)
    if tl.program_id(1) >= tl.load(count):
        return
    line = tl.load(item + LINE * max_items).to(tl.int64)
    query = tl.load(item + QUERY * max_items).to(tl.int64)
    kv_start = tl.load(item + KV_START * max_items)
    kv_stop = tl.load(item + KV_STOP * max_items)

    m = tl.arange(0, BLOCK_M)
    d = tl.arange(0, BLOCK_D)
    n = tl.arange(0, BLOCK_N)
    heads = kv_head * GROUP + m
    mask = (m < GROUP)[:, None] & (d < HEAD_DIM)[None, :]
    q_at = q + query * q_stride + heads[:, None] * q_head_stride + d[None, :]
    queries = tl.load(q_at, mask=mask, other=0.0)
    key_at = keys + kv_head * key_head_stride + d[None, :]
    value_at = values + kv_head * value_head_stride + d[None, :]
    slots_at = slot_table + line * table_stride

    top = tl.full([BLOCK_M], float("-inf"), tl.float32)
    weight = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    for begin in range(kv_start, kv_stop, BLOCK_N):
        seen = begin + n < kv_stop
        kv_mask = seen[:, None] & (d < HEAD_DIM)[None, :]
        slots = tl.load(slots_at + begin + n, mask=seen, other=0).to(tl.int64)
        k = tl.load(key_at + slots[:, None] * key_stride, mask=kv_mask, other=0.0)
        v = tl.load(value_at + slots[:, None] * value_stride, mask=kv_mask, other=0.0)
        dots = tl.dot(queries, k.to(queries.dtype).T, input_precision=PRECISION)
        scores = to_log2_scores(dots, score_scale, cap, SOFT_CAP)
        scores = tl.where(seen[None, :], scores, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, 1))  # finite: each step sees a key
        shares = tl.exp2(scores - higher[:, None])
        shrink = tl.exp2(top - higher)
        weight = weight * shrink + tl.sum(shares, 1)
        acc = acc * shrink[:, None]
        acc = tl.dot(shares.to(queries.dtype), v.to(queries.dtype), acc, input_precision=PRECISION)
        top = higher

    out += query * out_stride + kv_head * GROUP * out_head_stride
    write_or_merge(
        acc / weight[:, None], top + tl.log2(weight), out, out_stride, out_head_stride, 1, parts,
        part_lses, arrivals, item, max_items, v_scale,
        NUM_KV_HEADS, GROUP, HEAD_DIM, BLOCK_M, BLOCK_D, MERGE, MERGE_M,
    )  # fmt: skip


def plan(
    seq_lens: torch.Tensor,
    q_starts: torch.Tensor,
    lines: torch.Tensor,
    items: torch.Tensor,
    count: torch.Tensor,
    *,
    target: int,
    window: int | None,
    block_q: int,
    config: BlockConfig,
) -> None:
    """Launches the plan; ``items`` and ``count`` are written."""
    num_rows = len(seq_lens)
    plan_kernel[(num_rows,)](
        seq_lens, q_starts, lines, items, count, num_rows, items.stride(0), target,
        1 << 30 if window is None else window, block_q, config.min_tokens, config.block_n,
        ROWS=max(16, triton.next_power_of_2(num_rows)), ITEMS=128, num_warps=4,
        **pdl_options(),
    )  # fmt: skip
