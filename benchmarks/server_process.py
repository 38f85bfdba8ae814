"""A server in processes of its own, for benchmarks: started, watched, ended."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil

ROOT = Path(__file__).parent.parent
START_S = 120.0


class ServerProcess:
    """``url`` without a slash at its end; ``main`` is the process that speaks HTTP (or starts
    those that do)."""

    def __init__(self, port: int, process: subprocess.Popen[bytes]) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.main = psutil.Process(process.pid)

    def cpu_s(self) -> float:
        """CPU seconds of the HTTP process so far, without its children."""
        times = self.main.cpu_times()
        return float(times.user + times.system)

    def rss_mib(self) -> dict[str, float]:
        """Resident memory by process: "http", and "scheduler" for what it started."""
        children = self.main.children(recursive=True)
        return {
            "http": self.main.memory_info().rss / 2**20,
            "scheduler": sum(child.memory_info().rss for child in children) / 2**20,
        }

    def settled(self) -> dict[str, int]:
        """The engine's statistics, once nothing runs or waits."""
        while True:
            stats = httpx.get(f"{self.url}/server_info", timeout=30).json()["internal_states"][0]
            if not any(stats["queue"].values()):
                return dict(stats)
            time.sleep(0.05)


@contextlib.contextmanager
def server_process(model: str, *options: str) -> Iterator[ServerProcess]:
    """``rtlang serve`` with this model and these options, when it answers."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "rtlang", "serve", "--model", model, "--port", str(port)]
    path = os.pathsep.join([str(ROOT / "benchmarks"), str(ROOT)])
    process = subprocess.Popen(
        [*command, *options], env={**os.environ, "PYTHONPATH": path}, stderr=subprocess.DEVNULL
    )
    try:
        server = ServerProcess(port, process)
        until = time.monotonic() + START_S
        while True:
            with contextlib.suppress(httpx.HTTPError):
                if httpx.get(f"{server.url}/health").status_code == 200:
                    break
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError("the server did not start")
            time.sleep(0.1)
        yield server
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
