"""Sampler: one documented chain for every row.

fp32 -> raw log-probabilities -> repetition -> frequency and presence -> logit bias -> min tokens ->
mask -> row check -> greedy, or temperature -> top-k -> top-p -> min-p -> seeded draw.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from rtlang.runtime.batch import Batch, BatchResult, Int32s
from rtlang.runtime.mem.rows import ReqToTokenPool
from rtlang.runtime.messages import TokenLogprobs
from rtlang.runtime.req import Req
from rtlang.runtime.sampling.draw import TokenHash, draw_among, draw_row
from rtlang.runtime.sampling.filters import filter_row
from rtlang.runtime.sampling.logprobs import position_logprobs
from rtlang.runtime.sampling.penalties import apply_mask_bits, apply_penalties

Bools = npt.NDArray[np.bool_]


class RowParams:
    """Sampling parameters by pool row, rewritten when a row has a new owner."""

    def __init__(self, num_rows: int) -> None:
        self._owner: list[Req | None] = [None] * num_rows
        self.temperature = np.ones(num_rows, np.float32)
        self.repetition = torch.ones(num_rows)
        self.frequency = torch.zeros(num_rows)
        self.presence = torch.zeros(num_rows)
        self.greedy: Bools = np.zeros(num_rows, np.bool_)
        self.penalised: Bools = np.zeros(num_rows, np.bool_)
        self.biased: Bools = np.zeros(num_rows, np.bool_)
        self.has_minimum: Bools = np.zeros(num_rows, np.bool_)
        self.filtered: Bools = np.zeros(num_rows, np.bool_)

    def refresh(self, reqs: list[Req], rows: list[int]) -> None:
        for req, row in zip(reqs, rows, strict=True):
            if self._owner[row] is not req:
                self._owner[row] = req
                self._write(req, row)

    def _write(self, req: Req, row: int) -> None:
        p = req.params
        assert p.temperature is not None and p.repetition_penalty is not None, "not resolved"
        assert p.top_p is not None and p.top_k is not None and p.min_p is not None
        self.temperature[row] = p.temperature
        self.repetition[row] = p.repetition_penalty
        self.frequency[row] = p.frequency_penalty
        self.presence[row] = p.presence_penalty
        self.greedy[row] = p.greedy
        penalties = (p.frequency_penalty, p.presence_penalty, p.repetition_penalty)
        self.penalised[row] = penalties != (0.0, 0.0, 1.0)
        self.biased[row] = bool(p.logit_bias)
        self.has_minimum[row] = p.min_new_tokens > 0
        self.filtered[row] = p.top_k > 0 or p.top_p < 1.0 or p.min_p > 0.0


class Sampler:
    def __init__(self, pool: ReqToTokenPool, vocab_size: int) -> None:
        self._pool = pool
        self._rows = RowParams(pool.num_rows)
        self._hash = TokenHash(vocab_size)

    def sample(
        self, logits: torch.Tensor, batch: Batch, mask_bits: torch.Tensor | None = None
    ) -> BatchResult:
        """One token for each of ``batch.sample_rows``.

        logits     [num_samples, vocab_size], any float dtype; not changed
        mask_bits  [num_samples, ceil(vocab_size / 32)] int32, 0 bits are forbidden
        A row with NaN, +inf or nothing finite is reported in ``errors`` and gets id 0.
        """
        indices = batch.sample_rows.tolist()
        reqs = [batch.reqs[i] for i in indices]
        rows = batch.rows[batch.sample_rows]
        self._rows.refresh(reqs, rows.tolist())
        raw = logits.float()
        scores = self._process(raw, reqs, rows)
        if mask_bits is not None:
            scores = scores.clone() if scores is raw else scores
            apply_mask_bits(scores, mask_bits)
        table = scores.cpu().numpy()
        next_ids = table.argmax(axis=1).astype(np.int32)  # the lowest id among equals
        best = table[np.arange(len(table)), next_ids]
        errors = self._check_rows(best, indices, masked=mask_bits is not None)
        for j in np.flatnonzero(~self._rows.greedy[rows] & np.isfinite(best)).tolist():
            next_ids[j] = self._draw(table[j], float(best[j]), reqs[j], int(rows[j]))
        next_ids[~np.isfinite(best)] = 0
        return BatchResult(next_ids, self._logprobs(raw, reqs, next_ids), {}, errors)

    def _process(self, raw: torch.Tensor, reqs: list[Req], rows: Int32s) -> torch.Tensor:
        """Penalties, bias and minimum length; ``raw`` itself where no row asks for any."""
        params = self._rows
        penalised = np.flatnonzero(params.penalised[rows])
        biased = np.flatnonzero(params.biased[rows]).tolist()
        minimum = np.flatnonzero(params.has_minimum[rows]).tolist()
        held = [j for j in minimum if reqs[j].output_len < reqs[j].params.min_new_tokens]
        if not (len(penalised) or biased or held):
            return raw
        scores = raw.clone()
        if len(penalised):
            at = rows[penalised]
            where = torch.from_numpy(at.astype(np.int64))
            scores[torch.from_numpy(penalised)] = apply_penalties(
                scores[torch.from_numpy(penalised)],
                at,
                self._pool,
                params.repetition[where].to(scores.device),
                params.frequency[where].to(scores.device),
                params.presence[where].to(scores.device),
            )
        for j in biased:
            bias = reqs[j].params.logit_bias or {}
            values = torch.tensor(list(bias.values()), device=scores.device)
            scores[j, list(bias)] += values
        for j in held:
            scores[j, list(reqs[j].stop_ids)] = float("-inf")
        return scores

    def _check_rows(
        self, best: npt.NDArray[np.float32], indices: list[int], *, masked: bool
    ) -> dict[int, tuple[str, str]]:
        """numpy's argmax stops at a NaN, so ``best`` shows every bad row."""
        errors: dict[int, tuple[str, str]] = {}
        for j in np.flatnonzero(~np.isfinite(best)).tolist():
            if masked and best[j] == -np.inf:
                errors[indices[j]] = ("grammar_dead_end", "the constraint allows no token")
            else:
                message = f"the model's logits are not finite (best {best[j]})"
                errors[indices[j]] = ("numerical_error", message)
        return errors

    def _draw(self, row: npt.NDArray[np.float32], best: float, req: Req, at: int) -> int:
        # The maximum goes first: dividing by a tiny temperature can then only give -inf.
        with np.errstate(over="ignore"):
            shifted = (row - np.float32(best)) / self._rows.temperature[at]
        if not self._rows.filtered[at]:
            return draw_row(shifted, self._hash, req.seed, req.output_len)
        p = req.params
        assert p.top_k is not None and p.top_p is not None and p.min_p is not None
        tokens, logp = filter_row(shifted, p.top_k, p.top_p, p.min_p)
        return draw_among(logp, tokens, self._hash(req.seed, req.output_len, tokens))

    def _logprobs(
        self, raw: torch.Tensor, reqs: list[Req], next_ids: Int32s
    ) -> list[TokenLogprobs | None] | None:
        if all(req.logprobs is None for req in reqs):
            return None
        found: list[TokenLogprobs | None] = []
        for j, req in enumerate(reqs):
            if req.logprobs is None:
                found.append(None)
            else:
                found += position_logprobs(raw[j : j + 1], [int(next_ids[j])], req.logprobs)
        return found
