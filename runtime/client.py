"""SchedulerClient: one caller's side of the conversation with a scheduler."""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
import uuid
from collections.abc import Callable
from typing import Any

import zmq

from rtlang.errors import DeadlineExceeded, EngineClosed, RtlangError, SchedulerDied, from_wire
from rtlang.runtime.messages import (
    Abort,
    CloseBranches,
    Control,
    Died,
    Failed,
    Generate,
    Hello,
    Outputs,
    Reply,
    Request,
    decode_response,
    encode,
)
from rtlang.runtime.stream import EngineStream, Waiter, wake

logger = logging.getLogger(__name__)

#: How often the receiver looks whether the scheduler still lives, in milliseconds.
LIFE_CHECK_MS = 200


class _Call:
    """One control call that a thread waits for."""

    def __init__(self) -> None:
        self.event = threading.Event()
        self.value: Any = None
        self.error: RtlangError | None = None


class SchedulerClient:
    """Sends from any thread; one receiver thread hands answers to streams and callers.

    When the scheduler is gone every waiter fails at once, and so does every later request.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        endpoint: str,
        reply_endpoint: str,
        death: Callable[[], str | None],
    ) -> None:
        """``death`` tells why the scheduler's thread or process has ended, None while it lives."""
        self.id = uuid.uuid4().bytes
        self._death = death
        self._lock = threading.Lock()  # guards the socket, the tables and ``_dead``
        self._streams: dict[str, EngineStream] = {}
        self._calls: dict[str, _Call] = {}
        self._dead: RtlangError | None = None
        self._numbers = itertools.count()
        self._out = context.socket(zmq.PUSH)
        self._out.setsockopt(zmq.SNDHWM, 0)
        self._out.connect(endpoint)
        self._in = context.socket(zmq.PULL)
        self._in.setsockopt(zmq.RCVHWM, 0)
        self._in.bind(reply_endpoint)
        self._receiver = threading.Thread(target=self._receive, name="rtlang-client", daemon=True)
        self._receiver.start()
        self.limits: dict[str, Any] = self._call(lambda call_id: Hello(call_id, reply_endpoint))

    def new_rid(self) -> str:
        return f"r{next(self._numbers)}"

    def start(self, message: Generate, stream: EngineStream) -> None:
        """Register the stream and send its request."""
        with self._lock:
            self._raise_if_dead()
            assert stream.rid not in self._streams
            self._streams[stream.rid] = stream  # before the answer can come
            try:
                self._send(message)
            except BaseException:
                del self._streams[stream.rid]
                raise

    def abort(self, rid: str) -> None:
        self._tell(Abort(rid))

    def close_branches(self, fork_id: str, count: int) -> None:
        self._tell(CloseBranches(fork_id, count))

    def call(self, op: str, timeout: float | None = None, **args: Any) -> Any:
        """Ask the scheduler; blocks. Raises what it answers, ``SchedulerDied``, or (after
        ``timeout`` seconds) ``DeadlineExceeded``."""
        return self._call(lambda call_id: Control(call_id, op, args), timeout)

    @property
    def num_streams(self) -> int:
        return len(self._streams)

    @property
    def dead(self) -> RtlangError | None:
        return self._dead

    def close(self) -> None:
        """End every request of this client and its thread. Idempotent."""
        self._tell(Control("", "leave"))
        self._fail_all(EngineClosed("the engine was closed"))
        if threading.current_thread() is not self._receiver:
            self._receiver.join()

    def _tell(self, message: Request) -> None:
        """Say something that needs no answer; a scheduler that is gone need not hear it."""
        with self._lock:
            if self._dead is None:
                with contextlib.suppress(SchedulerDied):
                    self._send(message)

    def _send(self, message: Request) -> None:
        # The queue is unbounded, so this only fails when nobody is at the other end any more. A
        # blocking send would then wait for ever, with the lock held.
        try:
            self._out.send_multipart([self.id, encode(message)], zmq.NOBLOCK)
        except zmq.Again as error:
            raise SchedulerDied("the scheduler has ended") from error

    def _call(self, make: Callable[[str], Request], timeout: float | None = None) -> Any:
        call = _Call()
        with self._lock:
            self._raise_if_dead()
            call_id = f"c{next(self._numbers)}"
            self._calls[call_id] = call
            self._send(make(call_id))
        if not call.event.wait(timeout):
            with self._lock:
                self._calls.pop(call_id, None)
            raise DeadlineExceeded(f"the scheduler did not answer within {timeout} s")
        if call.error is not None:
            raise call.error
        return call.value

    def _raise_if_dead(self) -> None:
        if self._dead is not None:
            raise type(self._dead)(self._dead.message)

    # -- the receiver's thread --------------------------------------------------------------

    def _receive(self) -> None:
        try:
            while self._dead is None:
                if self._in.poll(LIFE_CHECK_MS):
                    self._dispatch(self._in.recv())
                elif (cause := self._death()) is not None:
                    self._fail_all(SchedulerDied(cause))
        except Exception as error:
            logger.exception("the client's receiver failed")
            self._fail_all(SchedulerDied(f"the client's receiver failed: {error}"))
        finally:
            with self._lock:
                self._in.close(linger=0)
                self._out.close(linger=100)

    def _dispatch(self, data: bytes) -> None:
        message = decode_response(data)
        waiters: list[Waiter | None] = []
        match message:
            case Outputs():
                for output in message.outputs:
                    stream = self._streams.get(output.rid)
                    if stream is not None:
                        waiters.append(stream.push(output))
                        if output.finish is not None:
                            self._forget(output.rid)
            case Failed():
                stream = self._forget(message.rid)
                if stream is not None:
                    error = from_wire(message.code, message.message, message.data)
                    error.data |= {"usage": message.usage, "timings": message.timings}
                    waiters.append(stream.fail(error))
            case Reply():
                self._answer(message)
            case Died():
                self._fail_all(_death_error(message.message))
        wake([w for w in waiters if w is not None])

    def _forget(self, rid: str) -> EngineStream | None:
        with self._lock:
            return self._streams.pop(rid, None)

    def _answer(self, reply: Reply) -> None:
        with self._lock:
            call = self._calls.pop(reply.call_id, None)
        if call is not None:
            call.value = reply.value
            call.error = from_wire(*reply.error) if reply.error else None
            call.event.set()

    def _fail_all(self, error: RtlangError) -> None:
        with self._lock:
            if self._dead is None:
                self._dead = error
            streams, self._streams = list(self._streams.values()), {}
            calls, self._calls = list(self._calls.values()), {}
        wake([w for s in streams if (w := s.fail(type(error)(error.message))) is not None])
        for call in calls:
            call.error = type(error)(error.message)
            call.event.set()


def _death_error(message: str) -> RtlangError:
    return EngineClosed(message) if message == "the engine was closed" else SchedulerDied(message)
