"""Sampler: one documented chain for every row.

fp32 -> raw log-probabilities -> repetition -> frequency and presence -> logit bias -> min tokens ->
mask -> row check -> greedy, or temperature -> top-k -> top-p -> min-p -> seeded draw.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from rtlang.grammar.vocab import Bitmask
from rtlang.runtime.batch import Batch, BatchResult, Int32s
from rtlang.runtime.mem.rows import ReqToTokenPool
from rtlang.runtime.messages import TokenLogprobs
from rtlang.runtime.req import Req
from rtlang.runtime.sampling.draw import TokenHash, draw
from rtlang.runtime.sampling.filters import filter_cut
from rtlang.runtime.sampling.logprobs import position_logprobs
from rtlang.runtime.sampling.penalties import apply_penalties, unpack_mask
from rtlang.runtime.sampling.row_params import RowParams

Float32s = npt.NDArray[np.float32]
Bools = npt.NDArray[np.bool_]


class Sampler:
    """Rows are independent: what a row gets depends on its logits, request and history alone.

    The logits may be on any device; the work is done on the host, after one copy.
    """

    def __init__(self, pool: ReqToTokenPool, vocab_size: int) -> None:
        self._pool = pool
        self._vocab_size = vocab_size
        self._params = RowParams(pool)
        self._hash = TokenHash(vocab_size)

    def sample(
        self, logits: torch.Tensor, batch: Batch, bitmask: Bitmask | None = None
    ) -> BatchResult:
        """One token for each of ``batch.sample_rows``.

        logits   [num_samples, vocab_size], any float dtype; not changed
        bitmask  [>= num_samples, ceil(vocab_size / 32)] int32, of which the rows
                 ``batch.masked`` are read: 0 bits are forbidden
        A row with NaN, +inf or nothing finite is reported in ``errors`` and gets id 0.
        """
        indices = batch.sample_rows.tolist()
        assert logits.shape == (len(indices), self._vocab_size), logits.shape
        reqs = [batch.reqs[i] for i in indices]
        rows = batch.rows[batch.sample_rows]
        self._params.refresh(reqs, rows.tolist())
        raw = logits.float()
        table: Float32s = raw.cpu().numpy()
        seq_lens = batch.seq_lens[batch.sample_rows]
        output_lens = seq_lens - self._pool.prompt_lens[rows]
        allowed: dict[int, Bools] = {}
        if batch.masked:
            assert bitmask is not None
            unpacked = unpack_mask(torch.from_numpy(bitmask[batch.masked]), self._vocab_size)
            allowed = dict(zip(batch.masked, unpacked, strict=True))
        scores = self._process(table, rows, seq_lens, output_lens, allowed)
        next_ids = scores.argmax(axis=1).astype(np.int32)  # the lowest id among equals
        # numpy's argmax stops at a NaN, so ``best`` shows every bad row.
        best = scores[np.arange(len(scores)), next_ids]
        good = np.isfinite(best)
        next_ids[~good] = 0
        errors = {
            indices[j]: self._error(best[j], table[j], masked=j in allowed)
            for j in np.flatnonzero(~good).tolist()
        }
        for j in np.flatnonzero(good & ~self._params.greedy[rows]).tolist():
            next_ids[j] = self._draw(scores[j], best[j], int(rows[j]), int(output_lens[j]))
        return BatchResult(next_ids, self._logprobs(raw, reqs, next_ids, good), {}, errors)

    def _process(
        self,
        raw: Float32s,
        rows: Int32s,
        seq_lens: Int32s,
        output_lens: Int32s,
        allowed: dict[int, Bools],
    ) -> Float32s:
        """Penalties, bias, minimum length, mask; ``raw`` itself where no row asks for any."""
        params = self._params
        penalised = np.flatnonzero(params.penalised[rows])
        biased = np.flatnonzero(params.biased[rows]).tolist()
        held = np.flatnonzero(output_lens < params.min_new_tokens[rows]).tolist()
        if not (len(penalised) or biased or held or allowed):
            return raw
        scores = raw.copy(order="C")
        if len(penalised):
            at = rows[penalised]
            tables = (params.repetition[at], params.frequency[at], params.presence[at])
            apply_penalties(scores, penalised, at, seq_lens[penalised], self._pool, *tables)
        for j in biased:
            token_ids, values = params.bias[int(rows[j])]
            scores[j, token_ids] += np.array(values, np.float32)
        for j in held:
            stop_ids = params.stop_ids[int(rows[j])]
            if j not in allowed or _leaves_others(allowed[j], stop_ids):
                scores[j, stop_ids] = -np.inf
        for j, mask in allowed.items():  # a fifth of the time that picking out the others takes
            scores[j] = np.where(mask, scores[j], np.float32(-np.inf))
        return scores

    def _error(self, best: np.float32, raw: Float32s, *, masked: bool) -> tuple[str, str]:
        """(code, message) of a row whose best score is not finite."""
        if masked and best == -np.inf and np.isfinite(raw).any():
            return "grammar_dead_end", "the constraint allows no token"
        return "numerical_error", f"the model's logits are not finite (best {best})"

    def _draw(self, scores: Float32s, best: np.float32, row: int, position: int) -> int:
        """Temperature, filters and draw of one row.

        scores [vocab_size], ``best`` their maximum; ``position``: index of the drawn output token
        """
        params = self._params
        # The maximum goes first: dividing by a tiny temperature can then only give -inf.
        with np.errstate(over="ignore"):
            logits: Float32s = (scores - best) / params.temperature[row]
        seed = int(params.seed[row])
        if not params.filtered[row]:
            return draw(logits, self._hash(seed, position))
        cut = filter_cut(
            logits, int(params.top_k[row]), float(params.top_p[row]), float(params.min_p[row])
        )
        kept = np.flatnonzero(logits >= cut)
        return int(kept[draw(logits[kept], self._hash(seed, position, kept))])

    def _logprobs(
        self, raw: torch.Tensor, reqs: list[Req], next_ids: Int32s, good: Bools
    ) -> list[TokenLogprobs | None] | None:
        if all(req.logprobs is None for req in reqs):
            return None
        found: list[TokenLogprobs | None] = []
        for j, req in enumerate(reqs):
            if req.logprobs is None or not good[j]:
                found.append(None)
            else:
                found += position_logprobs(raw[j : j + 1], [int(next_ids[j])], req.logprobs)
        return found


def _leaves_others(allowed: Bools, stop_ids: list[int]) -> bool:
    """Whether a constraint allows anything but ``stop_ids``. If not, it is complete, and the
    minimum length must not forbid the only way on."""
    return bool(allowed.sum() > allowed[stop_ids].sum())
