"""SchedulerProcess: the one scheduler of a server, owned by its supervisor."""

from __future__ import annotations

import os
import signal
import threading

import zmq

from rtlang.errors import DeadlineExceeded, EngineClosed, EngineError
from rtlang.runtime.config import EngineConfig
from rtlang.runtime.engine import Engine
from rtlang.runtime.launch import Launched, launch, load_source, resolve_config
from rtlang.runtime.messages import Control, encode

#: Seconds that it gets to show that it can end by itself.
ANSWER_S = 2.0


class SchedulerProcess:
    """Starts and ends it; frontends attach to it. Thread-safe."""

    def __init__(self, config: EngineConfig) -> None:
        assert config.scheduler_process, "a server's scheduler has its own process"
        self.config = config
        self._launched: Launched | None = None
        self._lock = threading.Lock()
        self._is_closed = False

    def start(self) -> None:
        """Load the model; blocks. Raises what loading it raises."""
        config = resolve_config(self.config, None)
        launched = launch(config, load_source(config))
        with self._lock:
            self.config, self._launched = config, launched
            is_closed = self._is_closed
        if is_closed:
            launched.close()
            raise EngineClosed("the server ended while the model was loaded")

    def connect(self) -> Engine:
        """A handle for this process' own frontend."""
        return Engine.attach(self.config, self.endpoint, self.death)

    @property
    def endpoint(self) -> str:
        assert self._launched is not None, "not started"
        return self._launched.endpoint

    def death(self) -> str | None:
        """Why it has ended; None while it lives, or loads."""
        dead = self._launched.client.dead if self._launched is not None else None
        return dead.message if dead is not None else None

    def drop(self, client: bytes) -> None:
        """Tell it that a frontend is gone: nobody reads that one's answers."""
        if self._launched is None or self.death() is not None:
            return
        with zmq.Context() as context, context.socket(zmq.PUSH) as teller:
            teller.setsockopt(zmq.LINGER, 1000)
            teller.connect(self.endpoint)
            teller.send_multipart([client, encode(Control("", "leave"))])

    def close(self) -> None:
        """End it, also one that does not answer. Blocks, for seconds at most."""
        with self._lock:
            self._is_closed = True
            launched = self._launched
        if launched is None:
            return
        try:
            launched.client.call("stats", ANSWER_S)
        except DeadlineExceeded:
            os.kill(launched.pid, signal.SIGKILL)
        except EngineError:
            pass  # it has ended already
        launched.close()
