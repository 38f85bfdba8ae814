"""Board: the last calls and the latencies of the last minute, for the page."""

from __future__ import annotations

import time
from collections import deque
from typing import Any

from rtlang.runtime.chunk import Chunk
from rtlang.runtime.server.record import CallRecord, now

#: Calls that are remembered; latencies of each kind that are, and for how many seconds.
NUM_CALLS = 100
NUM_TIMES = 20_000
WINDOW_S = 60.0
#: Characters of a prompt or an answer that are shown.
SHOWN_CHARS = 2000


class Board:
    """A ``Sink``. Touched by the event loop alone."""

    def __init__(self) -> None:
        self._calls: deque[dict[str, Any]] = deque(maxlen=NUM_CALLS)
        self._ttft: deque[tuple[float, float]] = deque(maxlen=NUM_TIMES)  # (when, seconds)
        self._gaps: deque[tuple[float, float]] = deque(maxlen=NUM_TIMES)

    def started(self, record: CallRecord) -> None:
        pass

    def tokens(self, record: CallRecord, chunk: Chunk, gap: float | None) -> None:
        time = now()
        if gap is not None:
            self._gaps.append((time, gap))
        elif record.stream:
            self._ttft.append((time, time - record.received))

    def ended(self, record: CallRecord) -> None:
        end, usage = record.finished or now(), record.usage
        self._calls.appendleft(
            {
                "time": time.time(),
                "id": record.request_id,
                "route": record.route,
                "key": record.key,
                "outcome": record.error.code if record.error else ", ".join(record.finish_reasons),
                "seconds": end - record.received,
                "cached": usage.cached_tokens,
                "computed": usage.computed_tokens,
                "completion": usage.completion_tokens,
                "forced": usage.forced_tokens,
                "prompt": record.prompt[:SHOWN_CHARS],
                "text": record.text[:SHOWN_CHARS],
            }
        )

    def latencies(self) -> dict[str, float | None]:
        """Medians and 99th percentiles of the last minute, in seconds; None: nothing came."""
        found: dict[str, float | None] = {}
        for name, values in (("ttft", self._ttft), ("itl", self._gaps)):
            while values and values[0][0] < now() - WINDOW_S:
                values.popleft()
            ordered = sorted(value for _, value in values)
            for percent in (50, 99):
                at = min(len(ordered) - 1, len(ordered) * percent // 100)
                found[f"{name}_p{percent}"] = ordered[at] if ordered else None
        return found

    def calls(self, key: str | None) -> list[dict[str, Any]]:
        """The latest first; of one key alone, or (None) of all."""
        return [call for call in self._calls if key is None or call["key"] == key]
