"""What the supervisor and its frontends say to each other, and the pipe between them."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Any

import msgspec

from rtlang.runtime.config import EngineConfig
from rtlang.runtime.server.config import ServerConfig
from rtlang.runtime.server.keys import Principal

#: Longest message, in bytes.
MAX_MESSAGE = 1 << 22


class Setup(msgspec.Struct, tag=True, kw_only=True):
    """To a frontend, first of all."""

    config: ServerConfig
    index: int
    is_late: bool  # the others serve already: listen when there is an engine, not before
    metrics_dir: str  # what PROMETHEUS_MULTIPROC_DIR says in its environment, too


class Attach(msgspec.Struct, tag=True, kw_only=True):
    """To a frontend: the model is loaded. ``config``: resolved."""

    config: EngineConfig
    endpoint: str


class Ready(msgspec.Struct, tag=True):
    """To a frontend: all of them are attached, so requests may come to any."""


class Drain(msgspec.Struct, tag=True):
    """To a frontend: end, when what runs has ended or after so many seconds."""

    patience_s: float


class Hurry(msgspec.Struct, tag=True):
    """To a frontend that drains: end now."""


class SchedulerGone(msgspec.Struct, tag=True):
    """To a frontend: why the scheduler's process has ended."""

    cause: str


class AbortRid(msgspec.Struct, tag=True, kw_only=True):
    """From a frontend to all others: end the request of this id, or everything."""

    rid: str | None
    by: Principal
    everything: bool


class Enter(msgspec.Struct, tag=True, kw_only=True):
    """From a frontend: may this call begin? Answered by ``Entered`` with the same number."""

    call: int
    principal: Principal
    num_tokens: int


class Entered(msgspec.Struct, tag=True, kw_only=True):
    """``code``: empty for yes, else that of the error."""

    call: int
    code: str = ""
    message: str = ""
    data: dict[str, Any] = {}


class Leave(msgspec.Struct, tag=True, kw_only=True):
    """From a frontend: a call that had entered has ended, with so many completion tokens."""

    principal: Principal
    num_tokens: int


class Attached(msgspec.Struct, tag=True):
    """From a frontend: how the scheduler knows it (``Engine.client_id``, in hexadecimal)."""

    client: str


Message = (
    Setup
    | Attach
    | Ready
    | Drain
    | Hurry
    | SchedulerGone
    | AbortRid
    | Enter
    | Entered
    | Leave
    | Attached
)

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Message).decode


class Channel:
    """One end of a pair of sockets; a line of JSON for each message. It breaks when the process
    at its other end ends, however it does."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, end: socket.socket) -> Channel:
        return cls(*await asyncio.open_unix_connection(sock=end, limit=MAX_MESSAGE))

    def send(self, message: Message) -> None:
        """Never waits. What is said to a process that is gone is lost."""
        with contextlib.suppress(ConnectionError):
            self._writer.write(_encode(message) + b"\n")

    async def receive(self) -> Message | None:
        """None: the other process has ended."""
        try:
            line = await self._reader.readline()
        except ConnectionError:
            return None
        return _decode(line) if line.endswith(b"\n") else None

    def close(self) -> None:
        self._writer.close()
