"""Coordinator: what all frontends share, kept by the supervisor."""

from __future__ import annotations

from collections.abc import Callable

from rtlang.errors import RtlangError
from rtlang.runtime.server.channel import (
    AbortRid,
    Attach,
    Attached,
    Channel,
    Drain,
    Enter,
    Entered,
    Hurry,
    Leave,
    Message,
    Ready,
    SchedulerGone,
)
from rtlang.runtime.server.keys import Principal
from rtlang.runtime.server.limits import LocalLimiter


class _Member:
    """One frontend: its channel, and what must be given back when it is gone."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.client: bytes | None = None  # how the scheduler knows it
        self.running: list[Principal] = []  # of the calls that have entered


class Coordinator:
    """Counts limits over all frontends, passes aborts on, and tells newcomers how things stand.

    ``drop``: called with the scheduler's name of a frontend that is gone, whose requests nobody
    reads any more. Everything runs in one event loop.
    """

    def __init__(
        self, limiter: LocalLimiter, drop: Callable[[bytes], None], num_frontends: int
    ) -> None:
        self._limiter = limiter
        self._drop = drop
        self._members: list[_Member] = []
        self._num_frontends = num_frontends
        self.is_open = False  # all were attached once: those that come now are replacements
        self._place: Attach | None = None
        self._last: list[Message] = []  # what ends frontends; for those that come late, too

    async def serve(self, channel: Channel) -> None:
        """Speak with one frontend until it is gone; then give back what it held."""
        member = _Member(channel)
        self._members.append(member)
        for message in ([self._place] if self._place is not None else []) + self._last:
            channel.send(message)
        try:
            while (heard := await channel.receive()) is not None:
                self._handle(member, heard)
        finally:
            self._members.remove(member)
            channel.close()
            for principal in member.running:
                self._limiter.leave(principal, 0)
            if member.client is not None:
                self._drop(member.client)

    def attach(self, place: Attach) -> None:
        self._place = place
        self._tell(place)

    def drain(self, patience_s: float) -> None:
        self._end(Drain(patience_s))

    def hurry(self) -> None:
        self._end(Hurry())

    def scheduler_gone(self, cause: str) -> None:
        self._end(SchedulerGone(cause))

    def _end(self, message: Message) -> None:
        self._last.append(message)
        self._tell(message)

    def _tell(self, message: Message, without: _Member | None = None) -> None:
        for member in self._members:
            if member is not without:
                member.channel.send(message)

    def _handle(self, member: _Member, message: Message) -> None:
        match message:
            case Enter():
                member.channel.send(self._enter(member, message))
            case Leave():
                member.running.remove(message.principal)
                self._limiter.leave(message.principal, message.num_tokens)
            case AbortRid():
                self._tell(message, without=member)
            case Attached():
                member.client = bytes.fromhex(message.client)
                self._attached(member)
            case _:
                raise AssertionError(message)

    def _attached(self, member: _Member) -> None:
        if self.is_open:
            member.channel.send(Ready())
        elif sum(m.client is not None for m in self._members) == self._num_frontends:
            self.is_open = True
            self._tell(Ready())

    def _enter(self, member: _Member, asked: Enter) -> Entered:
        try:
            self._limiter.admit(asked.principal, asked.num_tokens)
        except RtlangError as error:
            return Entered(call=asked.call, code=error.code, message=error.message, data=error.data)
        member.running.append(asked.principal)
        return Entered(call=asked.call)
