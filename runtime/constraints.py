"""Constraints of running requests: compiled beside the loop, turned into masks while it computes.

The scheduler's loop owns it. Compiles run in ``GrammarService``'s threads, whose callbacks only
put into a queue and wake the loop.
"""

from __future__ import annotations

import dataclasses
import queue
import statistics
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future

import numpy as np

from rtlang.errors import GrammarTooSlow, RtlangError
from rtlang.grammar.matcher import BATCH_FROM, Compiled, Matcher, fill_batch
from rtlang.grammar.service import GrammarService, ServiceStats
from rtlang.grammar.vocab import Bitmask
from rtlang.runtime.batch import Batch
from rtlang.runtime.req import Req, ReqState

#: Seconds for one request's mask; so many in a row above it end the request.
MAX_FILL_S, MAX_SLOW_FILLS = 0.05, 3

#: Words without one of their bits.
_ALL_BUT = ~(np.uint32(1) << np.arange(32, dtype=np.uint32)).view(np.int32)

Failure = tuple[Req, RtlangError]


@dataclasses.dataclass(frozen=True, slots=True)
class Ready:
    """A compile that is over: a matcher, or why there is none."""

    req: Req
    matcher: Matcher | None
    error: RtlangError | None = None


class Constraints:
    def __init__(
        self, make_service: Callable[[], GrammarService], wake: Callable[[], None]
    ) -> None:
        """``make_service``: called for the first constraint; ``wake``: from any thread, when
        ``ready`` has something new."""
        self._make_service, self._wake = make_service, wake
        self._service: GrammarService | None = None
        self._ready: queue.SimpleQueue[tuple[Req, Future[Compiled]]] = queue.SimpleQueue()
        self._fill_s: deque[float] = deque(maxlen=256)  # for a row, in the last steps
        self._time_each = 0  # masks filled one by one for so many steps: one of them was slow

    def submit(self, req: Req) -> None:
        """Compile the request's constraint; ``ready`` tells of it."""
        assert req.params.grammar is not None
        if self._service is None:
            self._service = self._make_service()
        future = self._service.submit(req.params.grammar)
        future.add_done_callback(lambda done: self._done(req, done))

    def _done(self, req: Req, future: Future[Compiled]) -> None:
        self._ready.put((req, future))
        self._wake()

    def ready(self) -> list[Ready]:
        """What was compiled, or failed to, since the last call."""
        found = []
        while not self._ready.empty():
            req, future = self._ready.get()
            error = future.exception()
            if error is None:
                found.append(Ready(req, future.result().matcher()))
            else:
                assert isinstance(error, RtlangError), error
                found.append(Ready(req, None, error))
        return found

    def fill(self, batch: Batch, bitmask: Bitmask) -> list[Failure]:
        """Write row j of ``bitmask`` for each sample j that is under a constraint; returns the
        requests that cannot go on. Rows of requests that have ended allow everything; a row that
        allows nothing is a dead end, which the sampler reports."""
        start = time.perf_counter()
        filled: list[int] = []
        reqs: list[Req] = []
        matchers: list[Matcher] = []
        at = batch.sample_rows.tolist()
        for j in batch.masked:
            req = batch.reqs[at[j]]
            if req.state is ReqState.FINISHED:
                bitmask[j] = -1
            elif req.knows_sample:
                _allow_only(bitmask[j], req.ids[batch.seq_lens[at[j]]])
            else:
                assert req.matcher is not None, req
                filled.append(j)
                reqs.append(req)
                matchers.append(req.matcher)
        if not reqs:
            return []
        failures = self._fill(reqs, matchers, bitmask, filled)
        for j, req, matcher in zip(filled, reqs, matchers, strict=True):
            output_len = len(req.ids) - req.prompt_len
            assert matcher.num_accepted == output_len, req
            if output_len < req.params.min_new_tokens:
                _hold_back(bitmask[j], req)
        self._fill_s.append((time.perf_counter() - start) / len(reqs))
        return failures

    def _fill(
        self,
        reqs: Sequence[Req],
        matchers: Sequence[Matcher],
        bitmask: Bitmask,
        rows: Sequence[int],
    ) -> list[Failure]:
        if len(reqs) >= BATCH_FROM and not self._time_each:
            start = time.perf_counter()
            fill_batch(matchers, bitmask, rows)
            if time.perf_counter() - start > MAX_FILL_S:
                self._time_each = MAX_SLOW_FILLS  # find out whose it is
            return []
        self._time_each = max(self._time_each - 1, 0)
        failures: list[Failure] = []
        for req, matcher, row in zip(reqs, matchers, rows, strict=True):
            start = time.perf_counter()
            matcher.fill(bitmask, row)
            slow = time.perf_counter() - start > MAX_FILL_S
            req.num_slow_fills = req.num_slow_fills + 1 if slow else 0
            if req.num_slow_fills >= MAX_SLOW_FILLS:
                message = f"{MAX_SLOW_FILLS} masks in a row took over {MAX_FILL_S * 1000:.0f} ms"
                failures.append((req, GrammarTooSlow(message)))
        return failures

    def stats(self) -> dict[str, int | float]:
        found = ServiceStats() if self._service is None else self._service.stats()
        stats = {f"grammar_{name}": value for name, value in dataclasses.asdict(found).items()}
        row_s = statistics.median(self._fill_s) if self._fill_s else 0.0
        return {**stats, "grammar_mask_us": row_s * 1e6}

    def close(self) -> None:
        if self._service is not None:
            self._service.close()


def _allow_only(words: Bitmask, token_id: int) -> None:
    words[:] = 0
    words[token_id // 32] = ~_ALL_BUT[token_id % 32]


def _hold_back(words: Bitmask, req: Req) -> None:
    """The minimum length: no stop id yet, unless nothing else may follow."""
    others = words.copy()
    for i in req.stop_ids:
        others[i // 32] &= _ALL_BUT[i % 32]
    if np.any(others):
        words[:] = others
