"""Deadlines of requests, the earliest first."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from rtlang.runtime.req import Req, ReqState


class Deadlines:
    """On the scheduler's clock. A request that ends before its own is forgotten when it comes."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Req]] = []

    def add(self, req: Req) -> None:
        if req.deadline is not None:
            heapq.heappush(self._heap, (req.deadline, req.arrival, req))

    def first(self) -> float | None:
        while self._heap and self._heap[0][2].state is ReqState.FINISHED:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def passed(self, now: float) -> Iterator[Req]:
        """Requests whose deadline is over; each must be ended before the next one is taken."""
        while (first := self.first()) is not None and first <= now:
            yield heapq.heappop(self._heap)[2]
