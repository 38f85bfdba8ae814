"""A server that says what a test has written, byte by byte: for what a real one never says."""

from __future__ import annotations

import contextlib
import json
import socketserver
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

#: (path, body) of a request -> the parts of the answer, each sent at once. An Event among them:
#: nothing more is sent until it is set.
Play = Callable[[str, Any], Sequence["bytes | threading.Event"]]


class FakeServer:
    """``requests``: (path, headers, body) of all that came, in order."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.requests: list[tuple[str, dict[str, str], Any]] = []


@contextlib.contextmanager
def fake_server(play: Play) -> Iterator[FakeServer]:
    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            _, path, _ = self.rfile.readline().decode().split()
            headers: dict[str, str] = {}
            while line := self.rfile.readline().decode().strip():
                name, _, value = line.partition(":")
                headers[name.lower()] = value.strip()
            raw = self.rfile.read(int(headers.get("content-length", 0)))
            body = json.loads(raw) if raw else None
            server.requests.append((path, headers, body))
            for part in play(path, body):
                if isinstance(part, threading.Event):
                    part.wait(30)
                else:
                    self.wfile.write(part)
                    self.wfile.flush()

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as listener:
        server = FakeServer(f"http://127.0.0.1:{listener.server_address[1]}")
        thread = threading.Thread(target=listener.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            listener.shutdown()
            thread.join()


def head(status: int = 200, **headers: str) -> bytes:
    """The beginning of an answer that ends where the connection does."""
    lines = [f"HTTP/1.1 {status} said", "Connection: close"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def json_answer(payload: Any, status: int = 200, **headers: str) -> list[bytes]:
    return [head(status, content_type="application/json", **headers), json.dumps(payload).encode()]


def event(payload: Any) -> bytes:
    text = payload if isinstance(payload, str) else json.dumps(payload, ensure_ascii=False)
    return f"data: {text}\n\n".encode()
