"""The server's first process: owns the scheduler, and is the frontend or starts several."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import rtlang.errors
from rtlang.errors import EngineError
from rtlang.runtime.config import EngineConfig
from rtlang.runtime.engine import Engine
from rtlang.runtime.server.channel import Attach, Channel, Setup
from rtlang.runtime.server.config import ServerConfig
from rtlang.runtime.server.coordinator import Coordinator
from rtlang.runtime.server.keys import KeyStore, environment_key
from rtlang.runtime.server.limits import LocalLimiter
from rtlang.runtime.server.logs import configure_logging
from rtlang.runtime.server.metrics import forget_process
from rtlang.runtime.server.scheduler_process import SchedulerProcess
from rtlang.runtime.server.serve import LAST_WORDS_S, Frontend, new_loop
from rtlang.runtime.server.threads import in_thread

logger = logging.getLogger(__name__)

#: How often it looks whether the scheduler and the frontends live, in seconds.
LOOK_S = 0.25
#: A frontend that ends sooner than so many seconds after its start has failed to start.
START_S = 30.0
#: So many failures to start in a row, and the server ends.
MAX_FAILURES = 3


def run_server(config: ServerConfig, engine: EngineConfig, listener: socket.socket) -> int:
    """Serve until a signal or until the scheduler dies; the exit status. Raises ``ConfigError``
    for what is only seen now: the keys, the model."""
    configure_logging(config)
    keys = KeyStore(config, environment_key())
    if not keys.is_open or config.host in ("127.0.0.1", "::1", "localhost"):
        logger.info("listening on %s:%d", config.host, listener.getsockname()[1])
    else:
        where = f"{config.host}:{listener.getsockname()[1]}"
        logger.warning("listening on %s; without API keys, anybody may call", where)
    scheduler = SchedulerProcess(engine)
    with asyncio.Runner(loop_factory=new_loop()) as runner:
        if config.frontends == 1:
            return runner.run(_serve_alone(config, keys, scheduler, listener))
        return runner.run(_Several(config, scheduler, listener).run())


class _Signals:
    """The first SIGTERM or SIGINT asks for the end, the second for a quick one."""

    def __init__(self) -> None:
        self.end = asyncio.Event()
        self.hurry = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._heard)

    def _heard(self) -> None:
        (self.hurry if self.end.is_set() else self.end).set()


async def _serve_alone(
    config: ServerConfig, keys: KeyStore, scheduler: SchedulerProcess, listener: socket.socket
) -> int:
    signals = _Signals()
    frontend = Frontend(config, listener, keys=keys)
    frontend.observe()

    def load() -> Engine:
        scheduler.start()
        return scheduler.connect()

    serving = asyncio.create_task(frontend.run(load))
    ending = asyncio.create_task(signals.end.wait())
    try:
        await asyncio.wait({serving, ending}, return_when=asyncio.FIRST_COMPLETED)
        all_ended = serving.done() or await frontend.shut_down(
            config.shutdown_timeout_s, signals.hurry
        )
        await serving
    finally:
        await in_thread(frontend.close)
        await in_thread(scheduler.close)
    return 0 if all_ended and not frontend.has_died else 1


class _Several:
    """Frontends as processes of their own, which share the listening socket and the scheduler."""

    def __init__(
        self, config: ServerConfig, scheduler: SchedulerProcess, listener: socket.socket
    ) -> None:
        self._config = config
        self._scheduler = scheduler
        self._listener = listener
        self._coordinator = Coordinator(LocalLimiter(), scheduler.drop, config.frontends)
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._metrics_dir = ""
        self._is_ending = False
        self._status = 0

    async def run(self) -> int:
        with tempfile.TemporaryDirectory(prefix="rtlang-metrics-") as folder:
            self._metrics_dir = folder
            return await self._run()

    async def _run(self) -> int:
        signals = _Signals()
        tending = [asyncio.create_task(self._tend(i)) for i in range(self._config.frontends)]
        watching = asyncio.create_task(self._watch())
        ending = asyncio.create_task(signals.end.wait())
        try:
            await asyncio.wait({watching, ending, *tending}, return_when=asyncio.FIRST_COMPLETED)
            self._is_ending = True
            if ending.done():
                await self._drain(signals, tending)
            else:
                self._status = 1
                self._coordinator.hurry()
                self._coordinator.drain(LAST_WORDS_S)
                await asyncio.wait(tending, timeout=3 * LAST_WORDS_S)
            for task in (watching, *tending):
                if task.done():
                    task.result()  # raises what loading the model raised, or a bug of ours
        finally:
            for process in self._processes.values():
                process.kill()
            watching.cancel()
            await in_thread(self._scheduler.close)
        return self._status

    async def _drain(self, signals: _Signals, tending: list[asyncio.Task[None]]) -> None:
        patience = self._config.shutdown_timeout_s
        self._coordinator.drain(patience)
        hurrying: asyncio.Future[Any] = asyncio.create_task(signals.hurry.wait())
        ended: asyncio.Future[Any] = asyncio.gather(*tending)
        await asyncio.wait({hurrying, ended}, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
        if not ended.done():
            self._coordinator.hurry()
            await asyncio.wait({ended}, timeout=3 * LAST_WORDS_S)
        hurrying.cancel()
        if not ended.done():
            self._status = 1

    async def _watch(self) -> None:
        """Load the model, tell the frontends; returns when the scheduler has ended."""
        await in_thread(self._scheduler.start)
        place = Attach(config=self._scheduler.config, endpoint=self._scheduler.endpoint)
        self._coordinator.attach(place)
        while (cause := self._scheduler.death()) is None:
            await asyncio.sleep(LOOK_S)
        logger.error("the scheduler has ended, and so does the server: %s", cause)
        self._coordinator.scheduler_gone(cause)
        await asyncio.sleep(LAST_WORDS_S)  # the frontends tell their clients, and end

    async def _tend(self, index: int) -> None:
        """Keep one frontend running; returns when all shall end. Raises ``EngineError`` when it
        cannot be kept."""
        failures = 0
        while not self._is_ending:
            started = time.monotonic()
            ours, theirs = socket.socketpair()
            with theirs:
                process = self._spawn(theirs)
            self._processes[index] = process
            channel = await Channel.open(ours)
            folder, is_late = self._metrics_dir, self._coordinator.is_open
            channel.send(
                Setup(config=self._config, index=index, is_late=is_late, metrics_dir=folder)
            )
            await self._coordinator.serve(channel)
            status = await in_thread(process.wait)
            del self._processes[index]
            forget_process(folder, process.pid)
            if self._is_ending or self._scheduler.death() is not None:
                self._status = self._status or int(status != 0)
                return
            failures = failures + 1 if time.monotonic() - started < START_S else 1
            logger.error("frontend %d ended with status %d; another one starts", index, status)
            if failures >= MAX_FAILURES:
                raise EngineError(f"frontend {index} has failed {failures} times in a row")

    def _spawn(self, end: socket.socket) -> subprocess.Popen[bytes]:
        root = str(Path(rtlang.errors.__file__).parents[1])
        paths = [root, *filter(None, sys.path)]  # whatever this process can import, the child can
        inherited = (self._listener.fileno(), end.fileno())
        return subprocess.Popen(
            [sys.executable, "-m", "rtlang.runtime.server.frontend_main", *map(str, inherited)],
            stdin=subprocess.DEVNULL,
            pass_fds=inherited,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(paths),
                "PROMETHEUS_MULTIPROC_DIR": self._metrics_dir,
            },
        )
