"""Frontend: one process' HTTP side, from its first connection to its last answer."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Iterator

import uvicorn

from rtlang.errors import ServerUnavailable
from rtlang.runtime.engine import Engine
from rtlang.runtime.server.app import create_app
from rtlang.runtime.server.config import ServerConfig
from rtlang.runtime.server.keys import KeyStore
from rtlang.runtime.server.limits import Limiter, LocalLimiter
from rtlang.runtime.server.listen import BACKLOG
from rtlang.runtime.server.observability import attach_observability
from rtlang.runtime.server.state import Phase, ServerState
from rtlang.runtime.server.threads import in_thread
from rtlang.runtime.server.watchdog import Watchdog

logger = logging.getLogger(__name__)

#: Seconds for what is written when a request has failed, until connections are closed.
LAST_WORDS_S = 2
#: Seconds that a frontend without a scheduler still says so, before it ends.
DEAD_S = 1.0
#: Connections that one process takes at once, where others accept from the same socket.
ACCEPT_AT_ONCE = 4


class _Uvicorn(uvicorn.Server):
    """Signals are the supervisor's to handle; and the queue of connections keeps its length,
    however many are accepted at once."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for each in sockets or []:
            each.listen(BACKLOG)


class Frontend:
    """Application, uvicorn, and what happens around them. Its loop is the one that ``run`` is
    called in; everything else is called from there."""

    def __init__(
        self,
        config: ServerConfig,
        listener: socket.socket,
        *,
        keys: KeyStore | None = None,
        limiter: Limiter | None = None,
    ) -> None:
        self.config = config
        self.listener = listener
        self.state = ServerState(config, keys or KeyStore(config), limiter or LocalLimiter())
        self.app = create_app(self.state)
        self.has_died = False  # the scheduler has
        self._engine: Engine | None = None
        self._stop_observing: Callable[[], None] | None = None
        options = uvicorn.Config(
            self.app,
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=LAST_WORDS_S,
            backlog=BACKLOG if config.frontends == 1 else ACCEPT_AT_ONCE,
            ssl_certfile=config.tls_cert,
            ssl_keyfile=config.tls_key,
        )
        self.server: uvicorn.Server = _Uvicorn(options)

    @property
    def port(self) -> int:
        port: int = self.listener.getsockname()[1]
        return port

    def observe(self) -> None:
        """Count, trace and keep usage, as the configuration says; before ``run``. Raises
        ``ConfigError``."""
        self._stop_observing = attach_observability(self.state)

    async def run(self, load: Callable[[], Engine]) -> None:
        """Serve until ``shut_down``, or until the scheduler has died. ``load`` runs in a thread
        meanwhile; raises what it raises."""
        loading = asyncio.create_task(self._load(load))
        try:
            await self.server.serve(sockets=[self.listener])
        finally:
            loading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await loading

    async def shut_down(self, patience_s: float, hurry: asyncio.Event) -> bool:
        """Refuse what is new, let what runs come to its end; fail what is left after
        ``patience_s`` seconds or at ``hurry``. Returns whether all had their end."""
        self.state.phase = Phase.DRAINING
        waiters = [asyncio.ensure_future(e.wait()) for e in (self.state.on_idle, hurry)]
        await asyncio.wait(waiters, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
        for waiter in waiters:
            waiter.cancel()
        left = len(self.state.running)
        if left:
            logger.warning("%d requests are cut: the server shuts down", left)
            self.state.fail_all(lambda: ServerUnavailable("the server shuts down", retry_after=5))
            await self._until_idle()
        self.server.should_exit = True
        return left == 0

    def close(self) -> None:
        """After ``run``: leave the scheduler, if it was found, and write what is left to write.
        Blocks."""
        if self._engine is not None:
            self._engine.close()
        if self._stop_observing is not None:
            self._stop_observing()

    async def _until_idle(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS_S):
                await self.state.on_idle.wait()

    async def _load(self, load: Callable[[], Engine]) -> None:
        """The model, and then the watch over its scheduler."""
        try:
            self._engine = engine = await in_thread(load)
            self.state.set_engine(engine)
            await Watchdog(self.state, engine).run()
        except BaseException:
            self.server.should_exit = True
            raise
        self.has_died = True
        logger.error("the scheduler has ended; so does the server")
        await self._until_idle()
        await asyncio.sleep(DEAD_S)
        self.server.should_exit = True


def new_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """What makes event loops: uvloop, where it is installed."""
    return uvicorn.Config("", log_config=None).get_loop_factory()
