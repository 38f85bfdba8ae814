"""BatchMaker: a step's tables, from who decodes in it and which chunks of prompts it computes."""

from __future__ import annotations

import numpy as np

from rtlang.runtime.batch import Batch, ForwardMode, Int32s
from rtlang.runtime.mem.rows import ReqToTokenPool
from rtlang.runtime.req import Req


class BatchMaker:
    """Nobody writes to a batch's arrays: decode steps of the same requests share those that do not
    change, ``rows`` among them, by which others recognise such a step."""

    def __init__(self, pool: ReqToTokenPool) -> None:
        self._pool = pool
        self._ones: Int32s = np.ones(pool.num_rows, np.int32)
        self._iota: Int32s = np.arange(pool.num_rows, dtype=np.int32)
        self._rows: Int32s = np.zeros(0, np.int32)
        self._masked: list[int] = []  # of ``_rows``

    def make(
        self,
        decode: list[Req],
        rows: Int32s,
        chunks: list[tuple[Req, int]],
        sampled: list[int],
    ) -> Batch:
        """The step is planned from now on: rows that are sampled know one token more.

        rows     of ``decode``
        sampled  batch indices of the requests in ``chunks`` that get a token
        """
        batch = (
            self._extend(decode, rows, chunks, sampled) if chunks else self._decode(decode, rows)
        )
        for req in batch.reqs:
            req.num_inflight += 1
        return batch

    def _decode(self, reqs: list[Req], rows: Int32s) -> Batch:
        count, pool = len(reqs), self._pool
        if rows is not self._rows:
            self._rows, self._masked = rows, np.flatnonzero(pool.constrained[rows]).tolist()
        seq_lens = pool.lens[rows]
        pool.lens[rows] = seq_lens + 1
        tables = rows, seq_lens, self._ones[:count], count, self._iota[:count], pool
        return Batch(ForwardMode.DECODE, reqs.copy(), *tables, self._masked)

    def _extend(
        self,
        decode: list[Req],
        decode_rows: Int32s,
        chunks: list[tuple[Req, int]],
        sampled: list[int],
    ) -> Batch:
        pool, num_decode = self._pool, len(decode)
        reqs = decode + [req for req, _ in chunks]
        rows = np.empty(len(reqs), np.int32)
        seq_lens, extend_lens = np.empty_like(rows), np.ones_like(rows)
        rows[:num_decode] = decode_rows
        seq_lens[:num_decode] = pool.lens[decode_rows]
        for i, (req, length) in enumerate(chunks, num_decode):
            rows[i], seq_lens[i], extend_lens[i] = req.row, req.computed_len, length
        samples = np.array([*range(num_decode), *sampled], np.int32)
        masked = np.flatnonzero(pool.constrained[rows[samples]]).tolist()
        pool.lens[rows[samples]] = seq_lens[samples] + 1
        mode = ForwardMode.MIXED if decode else ForwardMode.EXTEND
        return Batch(mode, reqs, rows, seq_lens, extend_lens, num_decode, samples, pool, masked)
