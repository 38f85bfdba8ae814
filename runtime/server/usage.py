"""Usage: a row for each call, written by one thread to a database that may be slow or gone."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import exc

from rtlang.runtime.chunk import Chunk
from rtlang.runtime.server.record import CallRecord
from rtlang.runtime.server.usage_rows import (
    BUSY_S,
    cause_of,
    open_database,
    parse_since,
    row_of,
    rows,
    total_of,
    totals,
)

logger = logging.getLogger(__name__)

#: Rows that wait to be written; of more, the newest are lost.
MAX_WAITING = 100_000
MAX_BATCH = 500
#: Seconds between attempts to write: doubled from the first to the last.
RETRY_S, MAX_RETRY_S = 0.1, 5.0
#: Seconds that ``close`` waits for rows to be written.
CLOSE_S = 5.0
#: Seconds that a reader waits for rows on their way.
FLUSH_S = 1.0

Count = Callable[[int], object]


class Usage:
    """A ``Sink``. Rows go through a bounded queue to one thread, which writes them in batches,
    for as long as it takes. Raises ``ConfigError`` for a database that cannot be opened."""

    def __init__(
        self,
        database: str,
        *,
        on_lost: Count = lambda num: None,
        on_retry: Count = lambda num: None,
        max_waiting: int = MAX_WAITING,
    ) -> None:
        """``database``: an SQLAlchemy URL, or the path of a SQLite file."""
        self._engine = open_database(database)
        self._on_lost, self._on_retry = on_lost, on_retry
        self._waiting: queue.Queue[dict[str, Any] | None] = queue.Queue(max_waiting)
        self._changed = threading.Condition()  # guards the next two
        self._num_given = self._num_settled = 0  # settled: written, or lost
        self._closing = threading.Event()
        self._deadline = float("inf")  # of the thread, when closing
        self._full = self._failing = False
        self._thread = threading.Thread(target=self._run, name="rtlang-usage", daemon=True)
        self._thread.start()

    # -- Sink -------------------------------------------------------------------------------

    def started(self, record: CallRecord) -> None:
        """Nothing: the row is written when the call has ended."""

    def tokens(self, record: CallRecord, chunk: Chunk, gap: float | None) -> None:
        """Nothing, likewise."""

    def ended(self, record: CallRecord) -> None:
        row = row_of(record)
        try:
            self._waiting.put_nowait(row)
        except queue.Full:
            self._on_lost(1)
            if not self._full:
                logger.error("usage rows come faster than they are written; some are lost")
            self._full = True
            return
        self._full = False
        with self._changed:
            self._num_given += 1

    # -- reading ----------------------------------------------------------------------------

    def report(self, since: str | None, by: str, key: str | None) -> dict[str, Any]:
        """Sums by ``by``: "key", "model" or "route", and over all; ``since``: a time as text;
        ``key``: only this key's. Blocks. Raises ``InvalidParameter`` and ``ServerUnavailable``."""
        start = parse_since(since)
        self.flush(FLUSH_S)
        found = totals(self._engine, by, since=start, key=key)
        shown = None if start is None else start.isoformat()
        return {"since": shown, "by": by, "data": found, "total": total_of(found)}

    def flush(self, timeout_s: float) -> bool:
        """Wait until what was given so far is settled; False: it took too long."""
        with self._changed:
            goal = self._num_given
            return self._changed.wait_for(lambda: self._num_settled >= goal, timeout_s)

    def close(self) -> None:
        """Write what is left, for at most ``CLOSE_S`` seconds, and end the thread. Idempotent."""
        if self._closing.is_set():
            return
        self._deadline = time.monotonic() + CLOSE_S
        self._closing.set()
        with contextlib.suppress(queue.Full):  # the thread waits for nothing, then
            self._waiting.put_nowait(None)
        self._thread.join(CLOSE_S + BUSY_S + 1)
        left = self._num_given - self._num_settled
        if left:
            self._on_lost(left)
            logger.error("%d usage rows could not be written in time and are lost", left)
        self._engine.dispose()

    # -- the thread -------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            batch = self._take()
            if batch and not self._write_all(batch):
                return  # closing, and the time is up
            if self._closing.is_set() and self._waiting.empty():
                return

    def _take(self) -> list[dict[str, Any]]:
        """All rows that are there, up to a batch; waits for the first one."""
        taken = [self._waiting.get()]
        while len(taken) < MAX_BATCH:
            try:
                taken.append(self._waiting.get_nowait())
            except queue.Empty:
                break
        return [row for row in taken if row is not None]

    def _write_all(self, batch: list[dict[str, Any]]) -> bool:
        """Until it is done; False: it was not, and the time for closing is up."""
        wait = RETRY_S
        while not self._write(batch):
            self._on_retry(1)
            if self._closing.wait(wait):
                if time.monotonic() > self._deadline:
                    return False
                time.sleep(RETRY_S)
            wait = min(wait * 2, MAX_RETRY_S)
        self._settle(len(batch))
        return True

    def _write(self, batch: Sequence[dict[str, Any]]) -> bool:
        """False: try again later."""
        try:
            with self._engine.begin() as connection:
                connection.execute(rows.insert(), batch)
        except Exception as error:
            if _may_pass(error):
                if not self._failing:
                    logger.error("usage rows cannot be written, trying again: %s", cause_of(error))
                self._failing = True
                return False
            if len(batch) > 1:  # one of them is wrong, or was written before a failure was told
                return all(self._write([row]) for row in batch)
            if not isinstance(error, exc.IntegrityError):  # that: it is there already
                self._on_lost(1)
                logger.error("usage row %s is refused: %s", batch[0]["id"], cause_of(error))
        if self._failing:
            logger.info("usage rows are written again")
        self._failing = False
        return True

    def _settle(self, count: int) -> None:
        with self._changed:
            self._num_settled += count
            self._changed.notify_all()


def _may_pass(error: Exception) -> bool:
    """Whether the database was not there or not able, and the row may be fine."""
    wrong = exc.DataError | exc.IntegrityError
    return isinstance(error, exc.SQLAlchemyError) and not isinstance(error, wrong)
