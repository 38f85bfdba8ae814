"""The device's row tables: bringing them up to date, and reading a step's tokens from them."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from rtlang.kernels.checks import check
from rtlang.kernels.triton.jit import await_earlier, jit_varying, pdl_options

_BLOCK = 1024


@jit_varying(ints=["num_runs"], pointers=["runs", "data"])
def _write_runs_kernel(
    runs: tl.tensor,
    data: tl.tensor,
    token_ids: tl.tensor,
    slot_table: tl.tensor,
    num_runs: tl.tensor,
    width: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    run = tl.program_id(0)
    row = tl.load(runs + run)
    start = tl.load(runs + num_runs + run)
    length = tl.load(runs + 2 * num_runs + run)
    ids_at = tl.load(runs + 3 * num_runs + run)
    slots_at = tl.load(runs + 4 * num_runs + run)
    first = tl.program_id(1) * BLOCK
    if first < length:
        i = first + tl.arange(0, BLOCK)
        inside = i < length
        place = row.to(tl.int64) * width + start + i
        tl.store(slot_table + place, tl.load(data + slots_at + i, mask=inside), mask=inside)
        if ids_at >= 0:
            tl.store(token_ids + place, tl.load(data + ids_at + i, mask=inside), mask=inside)


def write_runs(
    runs: torch.Tensor,
    data: torch.Tensor,
    longest: int,
    token_ids: torch.Tensor,
    slot_table: torch.Tensor,
) -> None:
    """Copy runs of ids and slots into the tables.

    runs  [5, num_runs] int32: row, first token, length, where its ids and its slots begin in
          ``data`` (ids at -1: the ids in the table stay)
    data  [n] int32
    longest  the largest length
    token_ids, slot_table  [num_lines, width] int32
    """
    check(runs, "runs", (5, None), torch.int32)
    num_runs = runs.shape[1]
    grid = (num_runs, triton.cdiv(longest, _BLOCK))
    _write_runs_kernel[grid](
        runs, data, token_ids, slot_table, num_runs, token_ids.shape[1], BLOCK=_BLOCK
    )


@jit_varying(ints=["num_rows"], pointers=["rows", "seq_lens", "new_slots"])
def _decode_tokens_kernel(
    rows: tl.tensor,
    seq_lens: tl.tensor,
    new_slots: tl.tensor,
    token_ids: tl.tensor,
    slot_table: tl.tensor,
    input_ids: tl.tensor,
    positions: tl.tensor,
    out_slots: tl.tensor,
    num_rows: tl.tensor,
    width: tl.tensor,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    await_earlier(PDL)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < num_rows
    # Capturing runs on empty tables: no place may be outside.
    position = tl.maximum(tl.load(seq_lens + i, mask=inside, other=1) - 1, 0)
    place = tl.load(rows + i, mask=inside, other=0).to(tl.int64) * width + position
    slot = tl.load(new_slots + i, mask=inside, other=0)
    tl.store(slot_table + place, slot, mask=inside)
    tl.store(out_slots + i, slot, mask=inside)
    tl.store(input_ids + i, tl.load(token_ids + place, mask=inside, other=0), mask=inside)
    tl.store(positions + i, position, mask=inside)


def decode_tokens(
    rows: torch.Tensor,
    seq_lens: torch.Tensor,
    new_slots: torch.Tensor,
    token_ids: torch.Tensor,
    slot_table: torch.Tensor,
    out: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
) -> None:
    """A decode step's tokens: the last one of each row, whose slot enters the table here.

    rows, seq_lens, new_slots  [num_rows] int32
    token_ids, slot_table      [num_lines, width] int32; padding rows share one line
    out  (input ids, positions, slots), each [num_rows] int32
    """
    num_rows = rows.shape[0]
    check(seq_lens, "seq_lens", (num_rows,), torch.int32)
    check(new_slots, "new_slots", (num_rows,), torch.int32)
    grid = (triton.cdiv(num_rows, 128),)
    _decode_tokens_kernel[grid](
        rows,
        seq_lens,
        new_slots,
        token_ids,
        slot_table,
        *out,
        num_rows,
        token_ids.shape[1],
        BLOCK=128,
        **pdl_options(),
    )


@jit_varying(ints=["num_tokens"], pointers=["row_of", "rows", "seq_lens", "q_starts"])
def _extend_tokens_kernel(
    row_of: tl.tensor,
    rows: tl.tensor,
    seq_lens: tl.tensor,
    q_starts: tl.tensor,
    token_ids: tl.tensor,
    slot_table: tl.tensor,
    input_ids: tl.tensor,
    positions: tl.tensor,
    out_slots: tl.tensor,
    num_tokens: tl.tensor,
    width: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    t = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = t < num_tokens
    i = tl.load(row_of + t, mask=inside, other=-1)
    real = i >= 0
    end = tl.load(q_starts + i + 1, mask=real, other=0)
    position = tl.load(seq_lens + i, mask=real, other=0) - (end - t)
    position = tl.minimum(tl.maximum(position, 0), width - 1)
    line = tl.load(rows + i, mask=real, other=0).to(tl.int64)
    place = line * width + position
    # A token that only fills up the graph: id 0 at position 0, its KV goes to the padding slot.
    tl.store(input_ids + t, tl.load(token_ids + place, mask=real, other=0), mask=inside)
    tl.store(out_slots + t, tl.load(slot_table + place, mask=real, other=0), mask=inside)
    tl.store(positions + t, tl.where(real, position, 0), mask=inside)


def extend_tokens(
    row_of: torch.Tensor,
    rows: torch.Tensor,
    seq_lens: torch.Tensor,
    q_starts: torch.Tensor,
    token_ids: torch.Tensor,
    slot_table: torch.Tensor,
    out: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
) -> None:
    """An extend step's tokens: row i's are the last ``q_starts[i + 1] - q_starts[i]`` it has.

    row_of         [num_tokens] int32, the token's row; -1: it only fills up a graph
    rows, seq_lens [num_rows] int32;  q_starts [num_rows + 1] int32
    out  (input ids, positions, slots), each [num_tokens] int32
    """
    num_tokens, num_rows = row_of.shape[0], rows.shape[0]
    check(seq_lens, "seq_lens", (num_rows,), torch.int32)
    check(q_starts, "q_starts", (num_rows + 1,), torch.int32)
    grid = (triton.cdiv(num_tokens, 256),)
    _extend_tokens_kernel[grid](
        row_of,
        rows,
        seq_lens,
        q_starts,
        token_ids,
        slot_table,
        *out,
        num_tokens,
        token_ids.shape[1],
        BLOCK=256,
    )
