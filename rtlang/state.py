"""ProgramState: what a program appends to and reads from."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from rtlang.api import role
from rtlang.core import Core
from rtlang.errors import ProgramError, RequestAborted, Unsupported
from rtlang.forks import ForkGroup
from rtlang.ir import Concat, Expr, RoleBegin, RoleEnd, ScopeBegin, ScopeEnd, SetVar, as_expr
from rtlang.plan import Slot
from rtlang.readers import Reader, TextReader, VariableReader
from rtlang.scope import Scope
from rtlang.unknown import unknown_variable
from rtlang.usage import ProgramUsage
from rtlang.where import Where, caller

T = TypeVar("T")


class ProgramState:
    """The text and the variables of one program run, or of one branch of it.

    ``state += expression`` checks at once and runs in the background. Reads wait for what they
    need. When an operation has failed, every read raises its exception, the same object each
    time. In async bodies only the awaitable reads may wait: ``get``, ``async_sync``,
    ``async_text`` and ``text_async_iter``; after ``async_sync`` the others need not.
    """

    _live = False  # whether the program's body may still set variables that are not known yet

    def __init__(self, core: Core) -> None:
        self._core = core

    def __repr__(self) -> str:
        core = self._core
        state = "failed" if core.error else "idle" if core.settled else "running"
        return f"<ProgramState of {core.run.name!r}, {state}, variables {list(core.slots)}>"

    # -- appending ------------------------------------------------------------------------------

    def __iadd__(self, other: Expr | str) -> Self:
        self._append(other, caller(2))
        return self

    def system(
        self,
        expr: Expr | str | None = None,
        *,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """A turn as an expression; without ``expr`` a block: ``with s.system(): s += ...``."""
        return self._role("system", expr, chat_template_kwargs)

    def user(
        self,
        expr: Expr | str | None = None,
        *,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """See ``system``."""
        return self._role("user", expr, chat_template_kwargs)

    def assistant(
        self,
        expr: Expr | str | None = None,
        *,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """See ``system``."""
        return self._role("assistant", expr, chat_template_kwargs)

    def var_scope(self, name: str) -> Scope[ProgramState]:
        """A block: the text appended inside becomes the variable ``name`` at its end."""
        _check_name(name)
        return Scope(self, self._core, ScopeBegin(name), ScopeEnd(name))

    def set_var(self, name: str, value: Any) -> None:
        """Set a variable when its turn has come: after all that was appended before."""
        _check_name(name)
        self._append(SetVar(name, value), caller(2))

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        self._append(SetVar(name, value), caller(2))

    def fork(self, branches: int | Sequence[Expr | str] = 1) -> ForkGroup[ProgramState]:
        """Branches that begin with what has been appended so far, and then go their own ways.

        What they share is computed once. A number, or a list with what to append to each branch.
        """
        return self._fork(branches, caller(2))

    def copy(self) -> Copy:
        """One branch, to try something out; also for ``with s.copy() as twin:``. Its variables
        stay its own."""
        return Copy(self._core.fork(1, caller(2))[0])

    def cancel(self) -> None:
        """Abort what runs on this state; reading it raises ``RequestAborted`` then."""
        self._core.fail(RequestAborted("the state was cancelled"))
        self._core.error_seen = True

    # -- reading --------------------------------------------------------------------------------

    def __getitem__(self, name: str) -> Any:
        """The variable's value. Raises ``UnknownVariable`` for a name that nothing sets."""
        return self._read(name).value

    get_var = __getitem__

    def __contains__(self, name: str) -> bool:
        """Whether the variable is set; waits for a pending one."""
        self._core.kick()
        self._core.run.wait(lambda: self._known(name))
        with self._core.run.signal.lock:
            self._raise_error()
            return name in self._core.slots

    def get_meta_info(self, name: str) -> Any:
        """What the call that set the variable tells: see ``docs/language.md``. A list for a
        variable that is a list (``n`` > 1, or gathered by a join); None for one set by hand."""
        return self._read(name).meta

    def sync(self) -> None:
        """Wait until all that was appended is executed."""
        self._core.kick()
        self._core.run.wait(self._settled)
        self._raise_error()

    def text(self) -> str:
        """All text so far, with the chat template's markers."""
        self.sync()
        with self._core.run.signal.lock:
            return self._core.prompt.text()

    def messages(self) -> list[dict[str, str]]:
        """The turns so far, an open one included; contents exactly as appended and generated."""
        self.sync()
        with self._core.run.signal.lock:
            return self._core.prompt.messages()

    def token_ids(self) -> list[int]:
        """The ids of the text so far, as the next call would send them. Changes nothing. Raises
        ``Unsupported`` where the backend takes no ids."""
        self.sync()
        if not self._core.run.takes_ids:
            backend = type(self._core.run.backend).__name__
            raise Unsupported(f"{backend} knows no token ids", param="token_ids")
        with self._core.run.signal.lock:
            return self._core.prompt.copy().sync(caller(2))

    def text_iter(self, name: str | None = None) -> Iterator[str]:
        """The chunks of a variable, or (without ``name``) of all text, as they come."""
        reader = self._reader(name)
        while True:
            self._core.kick()
            self._core.run.wait(reader.ready, chunks=True)
            with self._core.run.signal.lock:
                chunk = reader.take()
            if chunk is None:
                return
            yield chunk

    @property
    def usage(self) -> ProgramUsage:
        """What the calls of this state have cost so far."""
        with self._core.run.signal.lock:
            return ProgramUsage(self._core.calls)

    # -- reading, in event loops ----------------------------------------------------------------

    async def get(self, name: str) -> Any:
        """``state[name]``, awaited."""
        self._core.kick()
        await self._core.run.signal.async_wait(lambda: self._known(name))
        return self._found(name).value

    async def async_sync(self) -> None:
        self._core.kick()
        await self._core.run.signal.async_wait(self._settled)
        self._raise_error()

    async def async_text(self) -> str:
        await self.async_sync()
        return self.text()

    async def text_async_iter(self, name: str | None = None) -> AsyncIterator[str]:
        """``text_iter``, for ``async for``."""
        reader = self._reader(name)
        while True:
            self._core.kick()
            await self._core.run.signal.async_wait(reader.ready, chunks=True)
            with self._core.run.signal.lock:
                chunk = reader.take()
            if chunk is None:
                return
            yield chunk

    # -- inside ---------------------------------------------------------------------------------

    def _append(self, other: Any, where: Where) -> None:
        self._core.append(as_expr(other), where)

    def _fork(self, branches: int | Sequence[Expr | str], where: Where) -> ForkGroup[ProgramState]:
        count = branches if isinstance(branches, int) else len(branches)
        if isinstance(branches, bool | str) or count < 1:
            raise ProgramError(f"fork takes a positive number or a list, got {branches!r}")
        expressions = [] if isinstance(branches, int) else [as_expr(b) for b in branches]
        cores = self._core.fork(count, where)
        for core, expr in zip(cores, expressions, strict=False):
            core.append(expr, where)
        return ForkGroup(self._core, cores, [ProgramState(core) for core in cores])

    def _role(
        self, name: str, expr: Expr | str | None, template_kwargs: Mapping[str, Any] | None
    ) -> Scope[ProgramState] | Concat:
        if expr is not None:
            return role(name, expr, template_kwargs)
        return Scope(self, self._core, RoleBegin(name, dict(template_kwargs or {})), RoleEnd(name))

    def _read(self, name: str) -> Slot:
        self._core.kick()
        self._core.run.wait(lambda: self._known(name))
        return self._found(name)

    def _known(self, name: str) -> bool:
        """Whether it is certain what a read of ``name`` gives."""
        core = self._core
        if core.error is not None:
            return True
        slot = core.slots.get(name)
        if slot is not None:
            return slot.ended
        return not self._live or core.run.ended

    def _found(self, name: str) -> Slot:
        with self._core.run.signal.lock:
            self._raise_error()
            slot = self._core.slots.get(name)
            if slot is None:
                raise unknown_variable(name, self._core.slots)
            return slot

    def _settled(self) -> bool:
        return self._core.error is not None or self._core.settled

    def _raise_error(self) -> None:
        if self._core.error is not None:
            self._core.error_seen = True
            raise self._core.error

    def _reader(self, name: str | None) -> Reader:
        if name is None:
            return TextReader(self._core, live=self._live)
        return VariableReader(self._core, name, live=self._live)


class Copy(ProgramState):
    """A state of its own that began as another's copy. Left by an exception, it is cancelled."""

    def __enter__(self) -> Copy:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self.cancel()


class ProgramRun(ProgramState, Generic[T]):
    """What ``run`` returns: the program's state, seen from outside of its body.

    While the body runs (``stream=True``), reads also wait for variables that it may yet set.
    """

    _live = True
    _task: asyncio.Task[None] | None = None  # of an async body that streams

    @property
    def value(self) -> T:
        """What the body returned; waits. Raises what the program failed with."""
        run = self._core.run
        run.wait(lambda: run.done)
        if run.error is not None:
            raise run.error
        value: T = run.value
        return value

    ret_value = value

    @property
    def error(self) -> BaseException | None:
        """What the program failed with, or None; waits for its end."""
        run = self._core.run
        run.wait(lambda: run.done)
        return run.error

    @property
    def usage(self) -> ProgramUsage:
        """What all calls of the program, forks included, have cost so far."""
        with self._core.run.signal.lock:
            return ProgramUsage(self._core.run.calls)

    async def async_wait(self) -> None:
        """Wait for the program's end; raise what it failed with."""
        run = self._core.run
        await run.signal.async_wait(lambda: run.done)
        if run.error is not None:
            raise run.error

    def cancel(self) -> None:
        """Abort the whole program."""
        super().cancel()
        self._core.run.cancel()


def _check_name(name: Any) -> None:
    if not isinstance(name, str) or not name:
        raise ProgramError(f"a variable's name must be a text, got {name!r}")
