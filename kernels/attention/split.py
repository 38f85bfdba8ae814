"""Attention of mixed steps: each kind of row through the backend that is best at it."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

from rtlang.kernels.attention.base import AttentionBackend, AttentionLayer, AttentionRows, NewKV


class SplitAttention:
    """Implements ``AttentionBackend``. A prefill kernel spends a whole tile of queries on a row
    that has one; so the leading rows with one query go to ``decode``. Rows at the end that have
    nothing before their new tokens go to ``fresh``, where there is one; all others to ``extend``.
    """

    def __init__(
        self,
        decode: AttentionBackend,
        extend: AttentionBackend,
        fresh: AttentionBackend | None = None,
    ) -> None:
        self._backends = (decode, extend, fresh or extend)
        self._has_fresh = fresh is not None
        self._parts: list[tuple[AttentionBackend, int, int]] = []  # and first and last query

    def plan(self, rows: AttentionRows) -> None:
        num_rows = len(rows.extend_lens)
        longer = np.flatnonzero(rows.extend_lens > 1)
        first = int(longer[0]) if len(longer) else num_rows
        fresh = num_rows
        if self._has_fresh:
            old = np.flatnonzero(rows.seq_lens > rows.extend_lens)
            fresh = max(first, int(old[-1]) + 1 if len(old) else 0)
        q_starts = np.concatenate(([0], np.cumsum(rows.extend_lens)))
        borders = (0, first, fresh, num_rows)
        self._parts = []
        for backend, start, end in zip(self._backends, borders, borders[1:], strict=False):
            if start < end:
                queries = int(q_starts[start]), int(q_starts[end])
                backend.plan(_part(rows, start, end, queries[0], decode=end <= first))
                self._parts.append((backend, *queries))

    def run(
        self,
        q: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        layer: AttentionLayer,
        out: torch.Tensor | None = None,
        new: NewKV | None = None,
    ) -> torch.Tensor:
        out = torch.empty_like(q) if out is None else out
        for backend, start, end in self._parts:
            part = None if new is None else (new[0][start:end], new[1][start:end])
            backend.run(q[start:end], keys, values, layer, out[start:end], part)
        return out


def _part(
    rows: AttentionRows, start: int, end: int, first_query: int, *, decode: bool
) -> AttentionRows:
    """Rows ``start:end`` as a batch of their own."""
    device = rows.device
    assert device is not None
    q_starts = device.q_starts[start : end + 1]
    device = dataclasses.replace(
        device,
        seq_lens=device.seq_lens[start:end],
        q_starts=q_starts - first_query if first_query else q_starts,
        rows=device.rows[start:end],
        decode=decode,
    )
    return AttentionRows(
        rows.seq_lens[start:end], rows.extend_lens[start:end], rows.slot_table[start:end], device
    )
