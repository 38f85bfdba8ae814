"""Attention over the paged pool in plain torch: the CPU's backend.

Rows of similar shape form a group, padded to its longest; a layer loops over groups, never over
rows. Slots that all rows of a group share at the front are attended once for the whole group.
Padding points at a slot of the row itself, so memory that nobody wrote is never read: a masked
NaN would still poison a sum.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from rtlang.kernels.attention.base import AttentionLayer, AttentionRows, Int32s, NewKV
from rtlang.kernels.checks import check

Int64s = npt.NDArray[np.int64]

#: A shared front is worth products of its own when it saves reading so many slots.
MIN_SAVED_SLOTS = 256
#: Slots that one group may gather per layer (a single row may need more).
MAX_GROUP_SLOTS = 1 << 15
#: Scores held at once, in elements: queries are cut into blocks of at most so many.
MAX_SCORES = 1 << 21
#: Queries of a block, since a block reads all keys that its last query sees.
MAX_BLOCK = 128
NEG_INF = float("-inf")


@dataclasses.dataclass(slots=True)
class _Group:
    """Rows padded to ``q_len`` queries and, behind ``shared``, ``kv_len`` keys.

    Padding repeats a row's last query and last key.
    """

    num_rows: int
    q_len: int
    kv_len: int
    tokens: torch.Tensor  # [num_rows * q_len] indices into q
    real: torch.Tensor  # [num_real] which of ``tokens`` are no padding
    out_tokens: torch.Tensor  # [num_real] those tokens
    shared: torch.Tensor  # [shared_len] slots that all rows start with
    slots: torch.Tensor  # [num_rows * kv_len] slots of the rest
    hidden: torch.Tensor | None  # [num_rows, q_len, kv_len] bool; None: every query sees every key
    first_key: list[int]  # [q_len] no row's query i sees a key before it
    end_key: list[int]  # [q_len] nor one from here on


class TorchAttention:
    """Implements ``AttentionBackend`` on any torch device; made for the CPU."""

    def __init__(self, *, share_prefix: bool = True) -> None:
        """``share_prefix=False``: the plain form, every row reads all its keys itself."""
        self._share_prefix = share_prefix
        self._rows: AttentionRows | None = None
        self._groups: dict[int | None, list[_Group]] = {}

    def plan(self, rows: AttentionRows) -> None:
        self._rows = rows
        self._groups = {}

    def run(
        self,
        q: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        layer: AttentionLayer,
        out: torch.Tensor | None = None,
        new: NewKV | None = None,
    ) -> torch.Tensor:
        assert self._rows is not None, "plan first"
        check(q, "q", (int(self._rows.extend_lens.sum()), None, keys.shape[2]), keys.dtype)
        check(values, "values", tuple(keys.shape), keys.dtype)
        groups = self._groups.get(layer.window)
        if groups is None:
            groups = _make_groups(self._rows, layer.window, q.device, share=self._share_prefix)
            self._groups[layer.window] = groups
        if len(groups) == 1 and len(groups[0].tokens) == len(q):
            whole = _attend(q, keys, values, layer, groups[0])
            return whole if out is None else out.copy_(whole)
        out = torch.empty_like(q) if out is None else out
        for group in groups:
            padded = _attend(q[group.tokens], keys, values, layer, group)
            out[group.out_tokens] = padded[group.real]
        return out


# -- plan -------------------------------------------------------------------------------------


def _make_groups(
    rows: AttentionRows, window: int | None, device: torch.device, *, share: bool
) -> list[_Group]:
    # Rows whose query and key counts have the same power of two are alike.
    shape = np.stack((_log2(rows.extend_lens), _log2(rows.seq_lens)), axis=1)
    if len(rows.seq_lens) * int(rows.seq_lens.max()) <= 2 * int(rows.seq_lens.sum()):
        shape[:, 1] = 0  # padding keys costs little: fewer groups
    _, kinds = np.unique(shape, axis=0, return_inverse=True)
    groups = []
    for kind in range(int(kinds.max()) + 1):
        members = np.flatnonzero(kinds.reshape(-1) == kind)
        shared_len = _shared_len(rows, members) if share and window is None else 0
        for part in _split(members, rows.seq_lens[members] - shared_len):
            groups.append(_make_group(rows, part, shared_len, window, device))
    return groups


def _log2(lens: Int32s) -> Int32s:
    return np.ceil(np.log2(lens)).astype(np.int32)


def _split(members: Int64s, lens: Int32s) -> list[Int64s]:
    """Parts whose padded keys fit into MAX_GROUP_SLOTS, similar lengths together."""
    if len(members) * int(lens.max()) <= MAX_GROUP_SLOTS:
        return [members]
    order = np.argsort(-lens, kind="stable")
    parts, at = [], 0
    while at < len(order):
        count = max(1, MAX_GROUP_SLOTS // int(lens[order[at]]))
        parts.append(members[order[at : at + count]])
        at += count
    return parts


def _shared_len(rows: AttentionRows, members: Int64s) -> int:
    """Leading slots that all members have, before any of their queries; 0 if too few to pay."""
    limit = int((rows.seq_lens - rows.extend_lens)[members].min())
    if (len(members) - 1) * limit < MIN_SAVED_SLOTS:
        return 0
    table = rows.slot_table[members, :limit]
    differ = (table[1:] != table[0]).any(axis=0)
    length = int(differ.argmax()) if differ.any() else limit
    return length if (len(members) - 1) * length >= MIN_SAVED_SLOTS else 0


def _make_group(
    rows: AttentionRows,
    members: Int64s,
    shared_len: int,
    window: int | None,
    device: torch.device,
) -> _Group:
    def move(array: npt.NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(array).to(device)

    seq = rows.seq_lens[members].astype(np.int64)[:, None]
    ext = rows.extend_lens[members].astype(np.int64)[:, None]
    starts = (np.cumsum(rows.extend_lens) - rows.extend_lens)[members][:, None]
    q_len = int(ext.max())
    # Column 0 of a row's own keys is position ``first``: behind the shared ones, or the first
    # that its window reaches.
    first = np.full_like(seq, shared_len)
    if window is not None:
        first = np.maximum(seq - ext - window + 1, 0)
    kv_len = int((seq - first).max())
    keys = first + np.arange(kv_len)  # [rows, kv_len] positions
    slots = rows.slot_table[members[:, None], np.minimum(keys, seq - 1)]
    offsets = np.minimum(np.arange(q_len), ext - 1)
    queries = seq - ext + offsets  # [rows, q_len] positions
    hidden = keys[:, None, :] > queries[:, :, None]
    first_key = np.zeros(q_len, np.int64)
    if window is not None:
        hidden |= keys[:, None, :] <= queries[:, :, None] - window
        first_key = np.maximum(queries - window + 1 - first, 0).min(axis=0)
    is_real = np.arange(q_len) < ext
    tokens = starts + offsets
    return _Group(
        num_rows=len(members),
        q_len=q_len,
        kv_len=kv_len,
        tokens=move(tokens.reshape(-1)),
        real=move(np.flatnonzero(is_real)),
        out_tokens=move(tokens[is_real]),
        shared=move(rows.slot_table[members[0], :shared_len].astype(np.int64)),
        slots=move(slots.astype(np.int64).reshape(-1)),
        hidden=move(hidden) if hidden.any() else None,
        first_key=first_key.tolist(),
        end_key=(queries - first + 1).max(axis=0).tolist(),
    )


# -- run --------------------------------------------------------------------------------------


def _attend(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    layer: AttentionLayer,
    group: _Group,
) -> torch.Tensor:
    """Padded q [rows * q_len, heads, dim] -> the same shape."""
    kv_heads, dim = keys.shape[1], q.shape[-1]
    rows, q_len = group.num_rows, group.q_len
    per_kv = q.shape[1] // kv_heads  # query heads of one KV head
    # [kv_heads, rows, per_kv, q_len, dim]: the heads of a group are rows of one product.
    # Scores and weights in 16 bits would lose more than all the rest: everything is fp32.
    wide = q.float() * layer.scale
    grouped = wide.view(rows, q_len, kv_heads, per_kv, dim).permute(2, 0, 3, 1, 4)
    own = _gather(keys, values, group.slots, (kv_heads, rows, group.kv_len, dim))
    shared = None
    if len(group.shared):
        shared = _gather(keys, values, group.shared, (kv_heads, len(group.shared), dim))
    width = group.kv_len + len(group.shared)
    block = max(1, min(MAX_BLOCK, MAX_SCORES // (q.shape[1] * rows * width)))
    blocks = []
    for at in range(0, q_len, block):
        end = min(at + block, q_len)
        first, last = group.first_key[at], group.end_key[end - 1]
        hidden = None if group.hidden is None else group.hidden[:, at:end, first:last]
        seen = own[0][:, :, first:last], own[1][:, :, first:last]
        blocks.append(_attend_block(grouped[:, :, :, at:end], seen, shared, hidden, layer))
    out = blocks[0] if len(blocks) == 1 else torch.cat(blocks, 3)
    return out.permute(1, 3, 0, 2, 4).reshape(q.shape).to(q.dtype)


def _gather(
    keys: torch.Tensor, values: torch.Tensor, slots: torch.Tensor, shape: tuple[int, ...]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Heads first, which is also how the CPU's pool lies in memory."""
    return (
        keys.transpose(0, 1).index_select(1, slots).view(shape).float(),
        values.transpose(0, 1).index_select(1, slots).view(shape).float(),
    )


def _attend_block(
    q: torch.Tensor,
    own: tuple[torch.Tensor, torch.Tensor],
    shared: tuple[torch.Tensor, torch.Tensor] | None,
    hidden: torch.Tensor | None,
    layer: AttentionLayer,
) -> torch.Tensor:
    """Scaled q [kv_heads, rows, per_kv, block, dim] against shared and own keys, one softmax."""
    kv_heads, rows, per_kv, block, dim = q.shape
    flat = q.reshape(kv_heads * rows, per_kv * block, dim)
    own_k, own_v = own[0].flatten(0, 1), own[1].flatten(0, 1)
    scores = _scores(flat, own_k, layer).view(kv_heads, rows, per_kv, block, -1)
    if hidden is not None:
        scores = scores.masked_fill_(hidden[None, :, None], NEG_INF)
    if shared is None:
        weights = torch.softmax(scores, -1, dtype=torch.float32).to(q.dtype)
        return torch.bmm(weights.view(kv_heads * rows, per_kv * block, -1), own_v).view(q.shape)
    wide = flat.view(kv_heads, rows * per_kv * block, dim)
    front = _scores(wide, shared[0], layer).view(*scores.shape[:-1], -1)
    shared_len = front.shape[-1]
    weights = torch.softmax(torch.cat((front, scores), -1), -1, dtype=torch.float32).to(q.dtype)
    of_shared = weights[..., :shared_len].reshape(kv_heads, -1, shared_len)
    of_own = weights[..., shared_len:].reshape(kv_heads * rows, per_kv * block, -1)
    return torch.bmm(of_shared, shared[1]).view(q.shape) + torch.bmm(of_own, own_v).view(q.shape)


def _scores(q: torch.Tensor, k: torch.Tensor, layer: AttentionLayer) -> torch.Tensor:
    """[n, queries, dim] x [n, keys, dim] -> [n, queries, keys]"""
    scores = torch.bmm(q, k.transpose(1, 2))
    if layer.soft_cap is None:
        return scores
    return scores.div_(layer.soft_cap).tanh_().mul_(layer.soft_cap)
