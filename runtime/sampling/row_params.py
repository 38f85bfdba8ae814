"""RowParams: sampling parameters by pool row, so that a step reads tables and no requests."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rtlang.runtime.mem.rows import ReqToTokenPool
from rtlang.runtime.req import Req

#: Hotter rows are uniform anyway, and fp32 divides by it without inf / inf.
MAX_TEMPERATURE = 1e30


class RowParams:
    """Tables of [num_rows]; a row's entries are rewritten when it has a new owner."""

    def __init__(self, pool: ReqToTokenPool) -> None:
        n = pool.num_rows
        self._owner: list[Req | None] = [None] * n
        self.seed: npt.NDArray[np.int64] = np.zeros(n, np.int64)
        self.temperature: npt.NDArray[np.float32] = np.ones(n, np.float32)
        self.top_k: npt.NDArray[np.int64] = np.full(n, -1, np.int64)
        self.top_p: npt.NDArray[np.float64] = np.ones(n, np.float64)
        self.min_p: npt.NDArray[np.float64] = np.zeros(n, np.float64)
        self.repetition: npt.NDArray[np.float32] = np.ones(n, np.float32)
        self.frequency: npt.NDArray[np.float32] = np.zeros(n, np.float32)
        self.presence: npt.NDArray[np.float32] = np.zeros(n, np.float32)
        self.min_new_tokens: npt.NDArray[np.int64] = np.zeros(n, np.int64)
        self.greedy: npt.NDArray[np.bool_] = np.zeros(n, np.bool_)
        self.filtered: npt.NDArray[np.bool_] = np.zeros(n, np.bool_)
        self.penalised: npt.NDArray[np.bool_] = np.zeros(n, np.bool_)
        self.biased: npt.NDArray[np.bool_] = np.zeros(n, np.bool_)
        self.bias: dict[int, tuple[list[int], list[float]]] = {}  # row -> token ids, values
        self.stop_ids: dict[int, list[int]] = {}  # row -> what min_new_tokens holds back

    def refresh(self, reqs: list[Req], rows: list[int]) -> list[int]:
        """Rows whose entries were rewritten."""
        changed: list[int] = []
        for req, row in zip(reqs, rows, strict=True):
            if self._owner[row] is not req:
                self._owner[row] = req
                changed.append(row)
                self._write(req, row)
        return changed

    def _write(self, req: Req, row: int) -> None:
        p = req.params
        assert p.temperature is not None and p.repetition_penalty is not None, "not resolved"
        assert p.top_p is not None and p.top_k is not None and p.min_p is not None, "not resolved"
        self.seed[row] = req.seed
        self.temperature[row] = min(p.temperature, MAX_TEMPERATURE)
        self.top_k[row] = p.top_k
        self.top_p[row] = p.top_p
        self.min_p[row] = p.min_p
        self.repetition[row] = p.repetition_penalty
        self.frequency[row] = p.frequency_penalty
        self.presence[row] = p.presence_penalty
        self.min_new_tokens[row] = p.min_new_tokens if req.stop_ids else 0
        self.greedy[row] = p.greedy
        self.filtered[row] = p.top_k > 0 or p.top_p < 1.0 or p.min_p > 0.0
        penalties = (p.frequency_penalty, p.presence_penalty, p.repetition_penalty)
        self.penalised[row] = penalties != (0.0, 0.0, 1.0)
        self.biased[row] = bool(p.logit_bias)
        if p.logit_bias:
            self.bias[row] = list(p.logit_bias), list(p.logit_bias.values())
        if self.min_new_tokens[row]:
            self.stop_ids[row] = sorted(req.stop_ids)
