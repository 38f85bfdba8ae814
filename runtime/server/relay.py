"""Relay: a frontend's end of the conversation with the supervisor."""

from __future__ import annotations

import asyncio
import concurrent.futures
import itertools
from collections.abc import Callable

from rtlang.errors import from_wire
from rtlang.runtime.engine import Engine
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
    Ready,
    SchedulerGone,
)
from rtlang.runtime.server.keys import Principal
from rtlang.runtime.server.state import ServerState


class Relay:
    """The limiter of a frontend that is not alone (a ``Limiter``), and what it hears: the
    scheduler's place, aborts for others' requests, the end. Made and used in one event loop, but
    for ``load``."""

    def __init__(self, channel: Channel) -> None:
        self.hurry = asyncio.Event()
        self.draining = asyncio.Event()
        self.patience_s = 0.0
        self._channel = channel
        self._loop = asyncio.get_running_loop()
        self._numbers = itertools.count()
        self._waiting: dict[int, tuple[Principal, asyncio.Future[Entered]]] = {}
        self._place: concurrent.futures.Future[Attach] = concurrent.futures.Future()
        self._ready: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._cause: str | None = None  # why the scheduler has ended

    async def enter(self, principal: Principal, num_tokens: int) -> None:
        if not principal.is_limited:
            return
        call = next(self._numbers)
        future: asyncio.Future[Entered] = self._loop.create_future()
        self._waiting[call] = principal, future
        self._channel.send(Enter(call=call, principal=principal, num_tokens=num_tokens))
        answer = await future
        if answer.code:
            raise from_wire(answer.code, answer.message, answer.data)

    def leave(self, principal: Principal, num_tokens: int) -> None:
        if principal.is_limited:
            self._channel.send(Leave(principal=principal, num_tokens=num_tokens))

    def abort(self, rid: str | None, by: Principal, everything: bool) -> None:
        self._channel.send(AbortRid(rid=rid, by=by, everything=everything))

    def load(self) -> Engine:
        """Waits until the model is loaded, and all frontends know it; from a thread."""
        place = self._place.result()
        engine = Engine.attach(place.config, place.endpoint, lambda: self._cause)
        attached = Attached(engine.client_id.hex())
        self._loop.call_soon_threadsafe(self._channel.send, attached)
        self._ready.result()
        return engine

    async def listen(self, state: ServerState, on_end: Callable[[], None]) -> None:
        """Until the supervisor is gone: then ``on_end`` is called, at once."""
        while (message := await self._channel.receive()) is not None:
            match message:
                case Attach():
                    self._place.set_result(message)
                case Ready():
                    self._ready.set_result(None)
                case Entered():
                    self._entered(message)
                case AbortRid():
                    state.abort_here(message.rid, message.by, everything=message.everything)
                case SchedulerGone():
                    self._cause = message.cause
                case Drain():
                    self.patience_s = message.patience_s
                    self.draining.set()
                case Hurry():
                    self.hurry.set()
                case _:
                    raise AssertionError(message)
        on_end()

    def _entered(self, answer: Entered) -> None:
        principal, future = self._waiting.pop(answer.call)
        if not future.done():
            future.set_result(answer)
        elif not answer.code:  # whoever asked has gone meanwhile
            self.leave(principal, 0)
