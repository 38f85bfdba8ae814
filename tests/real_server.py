"""`rtlang serve` as a process, with everything that it starts."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import psutil
from project_tree import ROOT

#: Seconds for anything to happen that is bound to, on a machine that does other things too.
PATIENCE_S = 60.0


def wait_until(ready: Callable[[], object], timeout: float = PATIENCE_S) -> float:
    """Seconds that it took."""
    start = time.monotonic()
    while not ready():
        assert time.monotonic() - start < timeout, "it did not happen in time"
        time.sleep(0.02)
    return time.monotonic() - start


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class ServerProcess:
    """``url`` without a slash at its end; ``log``: what it and its children write."""

    def __init__(self, log: Path, *options: str, model: str, env: dict[str, str]) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = log
        paths = [str(ROOT), str(ROOT / "tests")]
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "rtlang", "serve", "--model", f"process_models:{model}",
                 "--port", str(self.port), *options],
                stderr=out, stdout=out,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), **env},
            )  # fmt: skip
        self.tree = psutil.Process(self.process.pid)

    def children(self) -> list[psutil.Process]:
        found: list[psutil.Process] = self.tree.children(recursive=True)
        return found

    def scheduler(self) -> psutil.Process:
        (found,) = self._running("rtlang.runtime.worker_main")
        return found

    def frontends(self) -> list[psutil.Process]:
        return self._running("rtlang.runtime.server.frontend_main")

    def _running(self, module: str) -> list[psutil.Process]:
        found = []
        for child in self.children():
            with contextlib.suppress(psutil.NoSuchProcess):  # or a zombie, by now
                if module in child.cmdline():
                    found.append(child)
        return found

    def status(self, path: str = "/health", **options: object) -> int:
        """Of an answer; 0 where there is none."""
        try:
            return httpx.get(self.url + path, timeout=PATIENCE_S, **options).status_code  # type: ignore[arg-type]
        except httpx.TransportError:
            return 0

    def wait_ready(self) -> None:
        def ready() -> bool:
            assert self.process.poll() is None, self.log.read_text()
            return self.status() == 200

        wait_until(ready)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self) -> int:
        """Its exit status."""
        return self.process.wait(PATIENCE_S)


@contextlib.contextmanager
def server_process(
    folder: Path, *options: str, model: str = "long_answers", env: dict[str, str] | None = None
) -> Iterator[ServerProcess]:
    """Nothing that it started is left at the end."""
    server = ServerProcess(folder / "server.log", *options, model=model, env=env or {})
    try:
        yield server
    finally:
        left = server.children() if server.process.poll() is None else []
        server.process.kill()
        server.process.wait()
        psutil.wait_procs(left, PATIENCE_S)


class Stream(threading.Thread):
    """A streamed /generate, read to its end. ``events``: what came; ``failure``: how reading
    ended, None when the stream was closed in order."""

    def __init__(self, server: ServerProcess, num_tokens: int, **options: object) -> None:
        super().__init__(daemon=True)
        headers = options.pop("headers", None)
        self._options: dict[str, object] = {
            "headers": headers,
            "json": {
                "text": "tell me", "stream": True, "incremental": True,
                "sampling_params": {"max_new_tokens": num_tokens}, **options,
            },
        }  # fmt: skip
        self._url = f"{server.url}/generate"
        self.status = 0
        self.events: list[str] = []
        self.failure: Exception | None = None
        self.start()

    def run(self) -> None:
        try:
            with httpx.stream("POST", self._url, timeout=PATIENCE_S, **self._options) as answer:  # type: ignore[arg-type]
                self.status = answer.status_code
                for line in answer.iter_lines():
                    if line:
                        self.events.append(line.removeprefix("data: "))
        except httpx.TransportError as error:
            self.failure = error

    def wait_started(self) -> None:
        wait_until(lambda: self.events)

    def finish(self) -> None:
        self.join(PATIENCE_S)
        assert not self.is_alive(), "the client was left hanging"
