"""Run: one execution of a program; what its state, its forks and their calls share."""

from __future__ import annotations

import hashlib
import itertools
import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from rtlang import loop
from rtlang.backends.base import Backend
from rtlang.defaults import Defaults
from rtlang.errors import ProgramError, RequestAborted, Unsupported
from rtlang.runtime.tokenizer import Tokenizer
from rtlang.signals import Signal
from rtlang.usage import CallUsage


class Member(Protocol):
    """A state of the run, the root's or a branch's."""

    error: BaseException | None
    error_seen: bool  # somebody was told of the error

    @property
    def settled(self) -> bool:
        """Nothing that was appended is still to be executed."""
        ...

    def kick(self) -> None:
        """Execute what has been appended."""
        ...

    def fail(self, error: BaseException) -> None:
        """End with this error: abort calls, drop what was appended. Only the first one counts."""
        ...

    def close(self) -> None:
        """No call will come of it: give an announced branch back."""
        ...


class Run:
    """``ended``: the body has returned or raised. ``done``: all that it had appended is executed
    as well, and ``error`` stands. Guarded by ``signal.lock``."""

    def __init__(self, name: str, backend: Backend, defaults: Defaults) -> None:
        """Raises ``Unsupported`` for options that a backend without token ids cannot have."""
        self.name = name
        self.backend = backend
        self.takes_ids = backend.capabilities.token_ids
        if not self.takes_ids:
            for option in ("priority", "chat_template_kwargs"):
                if getattr(defaults, option):
                    raise Unsupported(
                        f"{type(backend).__name__} does not support {option}", param=option
                    )
        self.defaults = defaults
        self.signal = Signal()
        self.calls: list[CallUsage] = []
        self.value: Any = None
        self.error: BaseException | None = None
        self.ended = self.done = False
        self.streams = False  # somebody follows its text as it comes
        #: Where an async body runs: a blocking read there could wait for ever.
        self.async_thread: int | None = None
        self._pid = os.getpid()
        self._num_active = 0
        self._numbers = itertools.count()
        self._members: weakref.WeakSet[Member] = weakref.WeakSet()
        self._failed: list[Member] = []

    @property
    def tokenizer(self) -> Tokenizer:
        """Raises ``Unsupported`` where the backend takes no token ids."""
        return self.backend.tokenizer

    # -- its states -------------------------------------------------------------------------

    def add(self, member: Member) -> None:
        with self.signal.lock:
            self._members.add(member)

    def members(self) -> list[Member]:
        with self.signal.lock:
            return list(self._members)

    def failed(self, member: Member) -> None:
        """Keep the failed state until somebody is told, even if the program drops it."""
        self._failed.append(member)

    def add_call(self, kind: str, name: str, choice: int = 0) -> CallUsage:
        entry = CallUsage(kind, name, choice)
        with self.signal.lock:
            self.calls.append(entry)
        return entry

    def derive_seed(self, path: tuple[int, ...], index: int) -> int | None:
        """The seed of the ``index``-th call of a branch, an int64; None where none was given."""
        if self.defaults.seed is None:
            return None
        place = f"{self.defaults.seed}:{path}:{index}".encode()
        return int.from_bytes(hashlib.blake2b(place, digest_size=8).digest(), signed=True)

    def next_number(self) -> int:
        """Numbers events of this run, in the order in which they happen."""
        return next(self._numbers)

    def spawn(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run ``work()`` in the background loop; the run is not done before it is."""

        async def tracked() -> None:
            try:
                await work()
            finally:
                with self.signal.lock:
                    self._num_active -= 1
                self.signal.changed()

        with self.signal.lock:
            self._num_active += 1
        loop.spawn(tracked)

    # -- waiting ----------------------------------------------------------------------------

    def wait(self, ready: Callable[[], bool], *, chunks: bool = False) -> None:
        """Block until ``ready()``. Raises ``ProgramError`` where that could never come true."""
        with self.signal.lock:
            if ready():
                return
        if loop.in_loop_thread() or threading.get_ident() == self.async_thread:
            raise ProgramError(
                "a blocking read in the event loop: use its awaitable twin, such as "
                "await s.get(name), await s.async_sync() or async for ... in s.text_async_iter()"
            )
        if os.getpid() != self._pid:
            raise ProgramError("this state belongs to the process that was forked")
        self.signal.wait(ready, chunks=chunks)

    def settled(self) -> bool:
        return self._num_active == 0 and all(m.settled for m in self.members())

    # -- the end ----------------------------------------------------------------------------

    def end_body(self, root: Member, value: Any, error: BaseException | None) -> None:
        """The body has returned ``value`` or raised ``error``. If the program failed, what still
        runs is unwanted."""
        if error is not None:
            root.fail(error)
        with self.signal.lock:
            self.value, self.ended = value, True
        if root.error is not None:
            self.cancel()
        for member in self.members():
            member.kick()
        self.signal.changed()

    def cancel(self) -> None:
        """Abort whatever still runs."""
        for member in self.members():
            if not member.settled:
                member.fail(RequestAborted("the program was cancelled"))
                member.error_seen = True

    def close(self, root: Member) -> None:
        """All is executed: the error is the root's, or a branch's that nobody was told of."""
        unseen = [m.error for m in self._failed if not m.error_seen]
        for member in self.members():
            member.close()
        with self.signal.lock:
            self.error = root.error or (unseen[0] if unseen else None)
            self.done = True
            self._failed.clear()
        self.signal.changed()
