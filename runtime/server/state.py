"""ServerState: what all routes of one frontend process share."""

from __future__ import annotations

import asyncio
import enum
import logging
import os
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from starlette.requests import Request

from rtlang.errors import ModelNotFound, RtlangError, SchedulerStalled, ServerUnavailable
from rtlang.runtime.engine import Engine
from rtlang.runtime.server.board import Board
from rtlang.runtime.server.config import ServerConfig
from rtlang.runtime.server.keys import KeyStore, Principal
from rtlang.runtime.server.limits import Limiter
from rtlang.runtime.server.record import CallRecord, Sink

if TYPE_CHECKING:
    from rtlang.runtime.server.generation import Generation
    from rtlang.runtime.server.observability import Observability

logger = logging.getLogger(__name__)


class Phase(enum.Enum):
    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"  # running requests may end, new ones are refused
    DEAD = "dead"  # the scheduler is gone


class ServerState:
    """Owned by one event loop; everything here is touched from it alone."""

    def __init__(self, config: ServerConfig, keys: KeyStore, limiter: Limiter) -> None:
        self.config = config
        self.keys = keys
        self.limiter = limiter
        self.board = Board()
        self.sinks: list[Sink] = [self.board]
        self.phase = Phase.LOADING
        self.is_stalled = False  # the scheduler lives, and does not answer
        self.is_suspect = False  # somebody waits for it: the watchdog asks
        #: Tells the other frontends of an abort: (id, who, everything).
        self.relay_abort: Callable[[str | None, Principal, bool], None] | None = None
        self.started = time.time()
        self.index = 0  # of this frontend
        self.metrics_dir: str | None = None  # where several frontends keep what they count
        self.observability: Observability | None = None
        self.running: dict[str, Generation] = {}  # by ``own_name``
        self.on_idle: asyncio.Event = asyncio.Event()
        self.on_idle.set()
        self._engine: Engine | None = None
        self._broken_sinks: set[str] = set()

    def set_engine(self, engine: Engine) -> None:
        self._engine = engine
        if self.phase is Phase.LOADING:
            self.phase = Phase.READY

    @property
    def engine(self) -> Engine:
        """Raises ``ServerUnavailable`` before the model is loaded."""
        if self._engine is None:
            raise ServerUnavailable("the model is being loaded", retry_after=2)
        return self._engine

    def accepting(self) -> Engine:
        """The engine, for a new generation. Raises ``ServerUnavailable`` while loading, draining
        or dead, ``SchedulerStalled`` while the scheduler is silent."""
        engine = self.engine
        if self.phase is Phase.DRAINING:
            raise ServerUnavailable("the server is shutting down", retry_after=5)
        if self.phase is Phase.DEAD or not engine.is_alive:
            raise ServerUnavailable("the scheduler has ended", retry_after=5)
        if self.is_stalled:
            raise SchedulerStalled("the scheduler does not answer", retry_after=5)
        return engine

    @property
    def model_name(self) -> str:
        name = self.config.served_model_name
        return name if name is not None else _short_name(self.engine.config.model)

    def check_model(self, name: str | None) -> str:
        """The name to answer with. Raises ``ModelNotFound`` that lists what is served."""
        served = self.model_name
        if name is None or name == served:
            return served
        if not self.config.accept_any_model:
            raise ModelNotFound(
                f"the model {name!r} does not exist; served: {served!r}", param="model"
            )
        return name

    def tell(self, event: str, record: CallRecord, *args: Any) -> None:
        """Tell all sinks. One that raises is logged once, and goes on being told."""
        for sink in self.sinks:
            try:
                getattr(sink, event)(record, *args)
            except Exception:
                where = f"{type(sink).__name__}.{event}"
                if where not in self._broken_sinks:
                    self._broken_sinks.add(where)
                    logger.exception("%s failed; further failures of it are not logged", where)

    def enter(self, rid: str, generation: Generation) -> None:
        self.running[rid] = generation
        self.on_idle.clear()

    def abort(self, rid: str | None, by: Principal, *, everything: bool = False) -> None:
        """End the request of this id, if it is the key's own or ``by`` is an operator; in
        whichever frontend it runs."""
        self.abort_here(rid, by, everything=everything)
        if self.relay_abort is not None:
            self.relay_abort(rid, by, everything)

    def abort_here(self, rid: str | None, by: Principal, *, everything: bool = False) -> None:
        for name, found in list(self.running.items()):
            key = found.record.key
            if (by.operator or key == by.name) and (everything or name == own_name(key, rid or "")):
                found.abort(name)

    def fail_all(self, error: Callable[[], RtlangError]) -> None:
        """Every running generation ends with an error of its own."""
        for generation in set(self.running.values()):
            generation.fail(error())

    def leave(self, rid: str) -> None:
        self.running.pop(rid, None)
        if not self.running:
            self.on_idle.set()


def own_name(key: str, rid: str) -> str:
    """A caller's id for a request among those of all keys, whose names have no slash."""
    return f"{key}/{rid}" if key else rid


def server_of(request: Request) -> ServerState:
    """What the frontend that a request came to shares among its routes."""
    state: ServerState = request.app.state.server
    return state


def principal_of(scope: Mapping[str, Any]) -> Principal:
    """Who asks: set by the access middleware."""
    found: Principal = scope["state"]["principal"]
    return found


def _short_name(model: str) -> str:
    return os.path.basename(model.rstrip("/")) if os.path.exists(model) else model
