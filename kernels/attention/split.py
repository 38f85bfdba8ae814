"""Attention of mixed steps: rows with one query through one backend, the others through another."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

from rtlang.kernels.attention.base import AttentionBackend, AttentionLayer, AttentionRows


class SplitAttention:
    """Implements ``AttentionBackend``. A prefill kernel spends a whole tile of queries on a row
    that has one; so the leading rows with one query go to ``decode``."""

    def __init__(self, decode: AttentionBackend, extend: AttentionBackend) -> None:
        self._decode = decode
        self._extend = extend
        self._num_decode = 0
        self._has_extend = True

    def plan(self, rows: AttentionRows) -> None:
        longer = np.flatnonzero(rows.extend_lens > 1)
        n = int(longer[0]) if len(longer) else len(rows.extend_lens)
        self._num_decode, self._has_extend = n, len(longer) > 0
        if n:
            self._decode.plan(_part(rows, 0, n))
        if self._has_extend:
            self._extend.plan(_part(rows, n, len(rows.extend_lens)) if n else rows)

    def run(
        self,
        q: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        layer: AttentionLayer,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        n = self._num_decode
        out = torch.empty_like(q) if out is None else out
        if n:
            self._decode.run(q[:n], keys, values, layer, out[:n])
        if self._has_extend:
            self._extend.run(q[n:], keys, values, layer, out[n:])
        return out


def _part(rows: AttentionRows, start: int, end: int) -> AttentionRows:
    """Rows ``start:end`` as a batch of their own; the rows before have one query each."""
    device = rows.device
    assert device is not None
    q_starts = device.q_starts[start : end + 1]
    device = dataclasses.replace(
        device,
        seq_lens=device.seq_lens[start:end],
        q_starts=q_starts - start if start else q_starts,
        rows=device.rows[start:end],
        decode=start == 0,
    )
    return AttentionRows(
        rows.seq_lens[start:end], rows.extend_lens[start:end], rows.slot_table[start:end], device
    )
