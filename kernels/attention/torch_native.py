"""Attention over the paged pool in plain torch: the CPU's backend.

Rows of similar shape form a group, padded to its longest; a layer loops over groups, never over
rows. Slots that all rows of a group share at the front are attended once for the whole group.
Padding points at a row's own first slot, so memory that nobody wrote is never read: a masked NaN
would still poison a sum.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

from rtlang.kernels.attention.base import AttentionLayer, AttentionRows, Int32s

#: A shared front shorter than this is not worth a product of its own.
MIN_SHARED_LEN = 32
#: Scores held at once, in elements: queries are cut into blocks of at most so many.
MAX_SCORES = 1 << 23
NEG_INF = float("-inf")


@dataclasses.dataclass(slots=True)
class _Group:
    """Rows padded to ``q_len`` queries and ``kv_len`` keys behind ``shared``.

    tokens      [num_rows * q_len] indices into q; padding repeats the row's first
    out_tokens  [num_real] where in q the real ones go, and which of the padded they are
    shared      [shared_len] slots that all rows start with
    slots       [num_rows * kv_len] slots of the rest
    bias        [num_rows, q_len, kv_len] 0 or -inf
    """

    num_rows: int
    q_len: int
    kv_len: int
    tokens: torch.Tensor
    out_tokens: torch.Tensor
    real: torch.Tensor
    shared: torch.Tensor
    slots: torch.Tensor
    bias: torch.Tensor


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
        self, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, layer: AttentionLayer
    ) -> torch.Tensor:
        assert self._rows is not None, "plan first"
        groups = self._groups.get(layer.window)
        if groups is None:
            groups = _make_groups(self._rows, layer.window, share=self._share_prefix)
            self._groups[layer.window] = groups
        if len(groups) == 1 and groups[0].num_rows * groups[0].q_len == len(q):
            return _attend(q, keys, values, layer, groups[0])
        out = torch.empty_like(q)
        for group in groups:
            padded = _attend(q[group.tokens], keys, values, layer, group)
            out[group.out_tokens] = padded[group.real]
        return out


def _make_groups(rows: AttentionRows, window: int | None, *, share: bool) -> list[_Group]:
    starts = np.concatenate(([0], np.cumsum(rows.extend_lens)[:-1]))
    # Rows whose query and key counts have the same power of two are alike.
    shape = np.stack((_log2(rows.extend_lens), _log2(rows.seq_lens)), axis=1)
    if len(rows.seq_lens) * int(rows.seq_lens.max()) <= 2 * int(rows.seq_lens.sum()):
        shape[:, 1] = 0  # padding keys costs little: fewer groups
    _, kinds = np.unique(shape, axis=0, return_inverse=True)
    groups = []
    for kind in range(int(kinds.max()) + 1):
        members = np.flatnonzero(kinds.reshape(-1) == kind)
        groups.append(_make_group(rows, members, starts[members], window, share=share))
    return groups


def _log2(lens: Int32s) -> Int32s:
    return np.ceil(np.log2(lens)).astype(np.int32)


def _make_group(
    rows: AttentionRows, members: np.ndarray, starts: np.ndarray, window: int | None, *, share: bool
) -> _Group:
    seq, ext = rows.seq_lens[members], rows.extend_lens[members]
    q_len, max_len = int(ext.max()), int(seq.max())
    table = rows.slot_table[members, :max_len]
    shared_len = _shared_len(table, int((seq - ext).min())) if share and window is None else 0
    kv_len = max_len - shared_len
    columns = np.arange(shared_len, max_len)
    slots = np.where(columns < seq[:, None], table[:, shared_len:], table[:, :1])
    offsets = np.arange(q_len)
    is_real = offsets < ext[:, None]
    tokens = starts[:, None] + np.where(is_real, offsets, 0)
    positions = (seq - ext)[:, None] + np.where(is_real, offsets, 0)  # [rows, q_len]
    visible = columns <= positions[:, :, None]
    if window is not None:
        visible &= columns > positions[:, :, None] - window
    bias = np.where(visible, np.float32(0), np.float32(NEG_INF))
    return _Group(
        num_rows=len(members),
        q_len=q_len,
        kv_len=kv_len,
        tokens=torch.from_numpy(tokens.reshape(-1)),
        out_tokens=torch.from_numpy(tokens[is_real]),
        real=torch.from_numpy(np.flatnonzero(is_real.reshape(-1))),
        shared=torch.from_numpy(table[0, :shared_len].astype(np.int64)),
        slots=torch.from_numpy(slots.astype(np.int64).reshape(-1)),
        bias=torch.from_numpy(bias),
    )


def _shared_len(table: Int32s, limit: int) -> int:
    """Leading slots that all rows have, among the first ``limit`` (cached for all of them)."""
    if len(table) < 2 or limit < MIN_SHARED_LEN:
        return 0
    differ = (table[1:, :limit] != table[0, :limit]).any(axis=0)
    length = int(differ.argmax()) if differ.any() else limit
    return length if length >= MIN_SHARED_LEN else 0


def _attend(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    layer: AttentionLayer,
    group: _Group,
) -> torch.Tensor:
    """Padded q [rows * q_len, heads, dim] -> the same shape."""
    kv_heads, dim = keys.shape[0], q.shape[-1]
    rows, q_len = group.num_rows, group.q_len
    per_kv = q.shape[1] // kv_heads  # query heads of one KV head
    # [kv_heads, rows, per_kv, q_len, dim]: the heads of a group are rows of one product.
    grouped = q.view(rows, q_len, kv_heads, per_kv, dim).permute(2, 0, 3, 1, 4)
    shape = (kv_heads * rows, group.kv_len, dim)
    own_k = keys.index_select(1, group.slots).view(shape)
    own_v = values.index_select(1, group.slots).view(shape)
    shared_k = keys.index_select(1, group.shared)
    shared_v = values.index_select(1, group.shared)
    width = group.kv_len + len(group.shared)
    block = max(1, min(q_len, MAX_SCORES // (q.shape[1] * rows * width)))
    out = q.new_empty(kv_heads, rows, per_kv, q_len, dim)
    for at in range(0, q_len, block):
        part = grouped[:, :, :, at : at + block]
        bias = group.bias[:, at : at + block]
        # Keys behind the last one that any query of the block sees are skipped.
        last = group.kv_len if q_len == 1 else _last_visible(bias)
        out[:, :, :, at : at + block] = _attend_block(
            part, own_k[:, :last], own_v[:, :last], shared_k, shared_v, bias[..., :last], layer
        )
    return out.permute(1, 3, 0, 2, 4).reshape(q.shape)


def _last_visible(bias: torch.Tensor) -> int:
    """For one row; several rows end at different keys anyway."""
    if bias.shape[0] > 1:
        return bias.shape[-1]
    return int((bias[0, -1] == 0).nonzero()[-1]) + 1


def _attend_block(
    q: torch.Tensor,
    own_k: torch.Tensor,
    own_v: torch.Tensor,
    shared_k: torch.Tensor,
    shared_v: torch.Tensor,
    bias: torch.Tensor,
    layer: AttentionLayer,
) -> torch.Tensor:
    """q [kv_heads, rows, per_kv, block, dim] against shared and own keys, one softmax."""
    kv_heads, rows, per_kv, block, dim = q.shape
    flat = (q * layer.scale).reshape(kv_heads * rows, per_kv * block, dim)
    own = torch.bmm(flat, own_k.transpose(1, 2)).view(kv_heads, rows, per_kv, block, -1)
    if layer.soft_cap is not None:
        own = torch.tanh(own / layer.soft_cap) * layer.soft_cap
    own = own + bias[None, :, None].to(own.dtype)
    shared_len = shared_k.shape[1]
    if not shared_len:
        weights = torch.softmax(own, -1, dtype=torch.float32).to(q.dtype)
        out = torch.bmm(weights.view(kv_heads * rows, per_kv * block, -1), own_v)
        return out.view(q.shape)
    wide = flat.view(kv_heads, rows * per_kv * block, dim)
    shared = torch.bmm(wide, shared_k.transpose(1, 2)).view(*own.shape[:-1], shared_len)
    if layer.soft_cap is not None:
        shared = torch.tanh(shared / layer.soft_cap) * layer.soft_cap
    scores = torch.cat((shared, own), -1)
    weights = torch.softmax(scores, -1, dtype=torch.float32).to(q.dtype)
    first, rest = weights[..., :shared_len], weights[..., shared_len:]
    out = torch.bmm(first.reshape(kv_heads, -1, shared_len), shared_v).view(q.shape)
    own_out = torch.bmm(rest.reshape(kv_heads * rows, per_kv * block, -1), own_v)
    return out + own_out.view(q.shape)
