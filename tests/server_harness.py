"""A server in this process, on a free port, with an engine of the test's choice."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from conftest import assert_balanced

from rtlang.runtime.engine import Engine
from rtlang.runtime.server.config import ServerConfig
from rtlang.runtime.server.listen import bind
from rtlang.runtime.server.serve import Frontend
from rtlang.runtime.server.state import ServerState

#: Seconds for anything to happen that is bound to.
PATIENCE_S = 30.0


def wait_until(ready: Callable[[], object]) -> None:
    until = time.monotonic() + PATIENCE_S
    while not ready():
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.005)


class RunningServer:
    """``url`` without a slash at its end; ``state`` belongs to the server's own thread."""

    def __init__(self, frontend: Frontend, engine: Engine) -> None:
        self.frontend = frontend
        self.engine = engine
        self.url = f"http://127.0.0.1:{frontend.port}"

    @property
    def state(self) -> ServerState:
        return self.frontend.state

    def wait_idle(self) -> None:
        """Until no request runs, neither in the frontend nor in the engine."""
        until = time.monotonic() + PATIENCE_S
        while self.state.running or any(self.engine.stats()["queue"].values()):
            assert time.monotonic() < until, (self.state.running, self.engine.stats())
            time.sleep(0.01)


@contextlib.contextmanager
def serving(
    model: Any, *, engine: dict[str, Any] | None = None, **config: Any
) -> Iterator[RunningServer]:
    """``serving(ScriptedModel(...), concurrency=2)``. At the end nothing may run or be held, and
    the scheduler lives."""
    options = ServerConfig(**{"port": 0, **config})
    listener = bind(options)
    with Engine(model, **{"debug": True, **(engine or {})}) as running:
        frontend = Frontend(options, listener)
        thread = threading.Thread(
            target=lambda: asyncio.run(frontend.run(lambda: running)), name="server"
        )
        thread.start()
        server = RunningServer(frontend, running)
        try:
            wait_until(lambda: frontend.server.started and frontend.state.phase.value == "ready")
            yield server
            assert running.is_alive
            server.wait_idle()
            assert_balanced(running)
        finally:
            frontend.server.should_exit = True
            thread.join(PATIENCE_S)
            assert not thread.is_alive(), "the server did not end"
