"""Watchdog: does the scheduler live, and does it answer?"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time

from rtlang.errors import DeadlineExceeded, EngineError, SchedulerStalled
from rtlang.runtime.engine import Engine
from rtlang.runtime.server.state import Phase, ServerState
from rtlang.runtime.server.threads import in_thread

logger = logging.getLogger(__name__)

#: How often it looks, in seconds.
LOOK_S = 0.25
#: How often it asks at most, while requests run.
ASK_S = 5.0


class Watchdog:
    """Asks the scheduler only while requests run, or when somebody doubts it.

    One that does not answer within ``stall_timeout_s`` fails the running requests, and none is
    accepted until it does. The question waits in the scheduler's inbox like any other message:
    it is answered between two steps, however many requests there are.
    """

    def __init__(self, state: ServerState, engine: Engine) -> None:
        self._state = state
        self._engine = engine
        limit = state.config.stall_timeout_s
        self._every_s = min(ASK_S, limit / 4)
        self._patience_s = limit - self._every_s

    async def run(self) -> None:
        """Returns when the scheduler is dead; the phase says so then."""
        asked = 0.0
        state = self._state
        asking: asyncio.Task[None] | None = None
        try:
            while self._engine.is_alive:
                await asyncio.sleep(LOOK_S)
                wanted = bool(state.running) or state.is_suspect or state.is_stalled
                due = time.monotonic() - asked >= self._every_s
                if wanted and due and (asking is None or asking.done()):
                    asked = time.monotonic()
                    asking = asyncio.create_task(self._ask())
        finally:
            if asking is not None:
                asking.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await asking
        state.phase = Phase.DEAD

    async def _ask(self) -> None:
        state = self._state
        try:
            await in_thread(lambda: self._engine.stats(self._patience_s))
        except DeadlineExceeded:
            if not state.is_stalled:
                logger.error("the scheduler is silent; %d requests fail", len(state.running))
            state.is_stalled = True
            state.fail_all(lambda: SchedulerStalled("the scheduler does not answer"))
        except EngineError:
            return  # it has died: the loop sees that
        else:
            if state.is_stalled:
                logger.warning("the scheduler answers again")
            state.is_stalled = state.is_suspect = False
