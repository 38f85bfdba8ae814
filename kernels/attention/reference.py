"""Attention row by row, as the formula says: what every backend is compared with in tests."""

from __future__ import annotations

import torch

from rtlang.kernels.attention.base import AttentionLayer, AttentionRows, NewKV


class ReferenceAttention:
    """Implements ``AttentionBackend``, slowly."""

    def __init__(self) -> None:
        self._rows: AttentionRows | None = None

    def plan(self, rows: AttentionRows) -> None:
        self._rows = rows

    def run(
        self,
        q: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        layer: AttentionLayer,
        out: torch.Tensor | None = None,
        new: NewKV | None = None,
    ) -> torch.Tensor:
        rows = self._rows
        assert rows is not None, "plan first"
        out = torch.empty_like(q) if out is None else out
        at = 0
        for i in range(len(rows.seq_lens)):
            seq, ext = int(rows.seq_lens[i]), int(rows.extend_lens[i])
            slots = torch.from_numpy(rows.slot_table[i, :seq].astype("int64"))
            groups = q.shape[1] // keys.shape[1]
            k = keys[slots].double().repeat_interleave(groups, 1)
            v = values[slots].double().repeat_interleave(groups, 1)
            scores = torch.einsum("qhd,khd->hqk", q[at : at + ext].double(), k) * layer.scale
            if layer.soft_cap is not None:
                scores = torch.tanh(scores / layer.soft_cap) * layer.soft_cap
            q_pos = torch.arange(seq - ext, seq)[:, None]
            k_pos = torch.arange(seq)[None, :]
            hidden = k_pos > q_pos
            if layer.window is not None:
                hidden |= k_pos <= q_pos - layer.window
            scores = scores.masked_fill(hidden, float("-inf"))
            result = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v)
            out[at : at + ext] = result.to(q.dtype)
            at += ext
        return out
