"""Execution: one run of a program's body, here, in the background, or in an event loop."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from rtlang import loop
from rtlang.backends.base import Backend
from rtlang.core import Core
from rtlang.defaults import Defaults
from rtlang.errors import ProgramError, RequestAborted
from rtlang.run import Run
from rtlang.state import ProgramRun, ProgramState

T = TypeVar("T")


class Execution(Generic[T]):
    """One body on its state, in whichever way it is run. Used once."""

    def __init__(
        self,
        name: str,
        body: Callable[..., Any],
        is_async: bool,
        backend: Backend,
        defaults: Defaults,
        args: tuple[Any, ...],
        arguments: Mapping[str, Any],
    ) -> None:
        self._run = Run(name, backend, defaults)
        self._core = Core(self._run)
        self._body = functools.partial(body, ProgramState(self._core), *args, **arguments)
        self._is_async = is_async
        self._task: asyncio.Task[None] | None = None
        self.result: ProgramRun[T] = ProgramRun(self._core)

    def stream(self) -> None:
        """Before it starts: its text is wanted token by token."""
        self._run.streams = True

    def run_here(self) -> None:
        """To the end, in this thread; an async body in the background loop."""
        if self._is_async:
            if loop.in_loop_thread():
                raise ProgramError("run() inside an async body would wait for ever: await arun()")
            future = loop.submit(self.run_async())
            try:
                future.result()
            except BaseException:
                self.cancel()
                future.cancel()
                raise
            return
        try:
            value = self._body()
        except Exception as error:
            self._run.end_body(self._core, None, error)
        except BaseException as error:
            self._interrupt(error)
            raise
        else:
            self._run.end_body(self._core, value, None)
        try:
            self._run.wait(self._run.settled)
        except BaseException:
            self.cancel()
            raise
        self._run.close(self._core)

    def run_quietly(self) -> None:
        """``run_here`` in a thread of its own: what it raises is in the state."""
        try:
            self.run_here()
        except BaseException as error:  # nobody waits for this thread: the state tells
            self._interrupt(error)

    async def run_async(self) -> None:
        """To the end, in this loop; another than an async body in a thread."""
        if not self._is_async:
            try:
                await loop.in_thread(self.run_here)
            except asyncio.CancelledError:
                self.cancel()
                raise
            return
        self._run.async_thread = threading.get_ident()
        try:
            value = await self._body()
        except Exception as error:
            self._run.end_body(self._core, None, error)
        except BaseException as error:
            self._interrupt(error)
            raise
        else:
            self._run.end_body(self._core, value, None)
        try:
            await self._run.signal.async_wait(self._run.settled)
        except BaseException:
            self.cancel()
            raise
        self._run.close(self._core)

    def start_task(self) -> None:
        """``run_async``, without waiting; its errors are in the state."""

        async def quietly() -> None:
            try:
                await self.run_async()
            except Exception as error:  # a bug of ours: readers must not wait for ever
                self._interrupt(error)
                raise

        self._task = asyncio.get_running_loop().create_task(quietly())
        self.result._task = self._task  # whoever has the result keeps the task alive

    def raise_error(self) -> None:
        if self._run.error is not None:
            raise self._run.error

    def cancel(self) -> None:
        """Abort what runs; from any thread. The body ends at its next read."""
        self.result.cancel()

    def _interrupt(self, error: BaseException) -> None:
        """The body was stopped from outside: nothing of it is wanted, nobody waits for it. What
        stopped it (Ctrl-C, a cancelled task) is not for those who read the state."""
        if not isinstance(error, Exception):
            error = RequestAborted(f"the program was stopped by {type(error).__name__}")
        self._run.end_body(self._core, None, error)
        self._run.close(self._core)
