"""ForkGroup: the branches of one fork."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, Generic, Literal, TypeVar

from rtlang.core import Core
from rtlang.errors import ProgramError, RequestAborted
from rtlang.ir import Expr, as_expr
from rtlang.join import Join
from rtlang.where import caller

S = TypeVar("S")
Mode = Literal["gather", "gather_variable", "first", "concate_and_append"]
OnError = Literal["raise", "keep", "cancel"]


class ForkGroup(Generic[S]):
    """A sequence of states. As a block (``with s.fork(3) as forks:``) it joins at the end."""

    def __init__(self, parent: Core, cores: Sequence[Core], states: Sequence[S]) -> None:
        self._parent = parent
        self._cores = cores
        self._states = states
        self._joined = False

    def __repr__(self) -> str:
        return f"<ForkGroup of {len(self._states)} branches>"

    def __len__(self) -> int:
        return len(self._states)

    def __iter__(self) -> Iterator[S]:
        return iter(self._states)

    def __getitem__(self, index: int) -> S:
        return self._states[index]

    def __iadd__(
        self, other: Expr | str | Sequence[Expr | str] | Callable[[int], Expr | str]
    ) -> ForkGroup[S]:
        """Append to every branch: the same, an item of a list each, or what a function of the
        branch's index gives. Raises ``ProgramError`` for a list of another length."""
        where = caller(2)
        count = len(self._cores)
        if isinstance(other, str | Expr):
            each = [as_expr(other)] * count
        elif callable(other):
            each = [as_expr(other(i)) for i in range(count)]
        elif isinstance(other, Sequence):
            if len(other) != count:
                raise ProgramError(f"{len(other)} expressions for {count} branches")
            each = [as_expr(item) for item in other]
        else:
            each = [as_expr(other)]  # raises
        for core, expr in zip(self._cores, each, strict=True):
            core.append(expr, where)
        return self

    def join(
        self, mode: Mode = "gather", *, on_error: OnError = "raise", k: int | None = None
    ) -> dict[str, list[Any]]:
        """Wait for the branches; gather what they have set, into lists in branch order.

        Every name that a branch has set since the fork becomes a variable of the parent, whether
        or not the parent had it: the list of the branches' values, None where a branch has not
        set it. Returns these lists by name.

        ``on_error``: "raise" waits for all, then raises ``ForkErrors`` with the branches' own
        exceptions (``index`` is the branch); "keep" puts a ``Failed`` into the lists; "cancel" is
        "raise" without waiting: the first failure aborts the other branches.

        ``mode="first"``: the first ``k`` (1) branches that have finished win; the lists hold
        theirs alone, in branch order, and the others are aborted. Branches that fail do not
        count; ``ForkErrors`` if fewer than ``k`` are left.
        """
        join = self._join(mode, on_error, k)
        self._parent.run.wait(join.ready)
        return join.finish(caller(2))

    async def async_join(
        self, mode: Mode = "gather", *, on_error: OnError = "raise", k: int | None = None
    ) -> dict[str, list[Any]]:
        """``join``, awaited."""
        join = self._join(mode, on_error, k)
        await self._parent.run.signal.async_wait(join.ready)
        return join.finish(caller(2))

    def _join(self, mode: str, on_error: str, k: int | None) -> Join:
        join = Join(self._parent, self._cores, mode, on_error, k)
        self._joined = True
        join.kick()
        return join

    def __enter__(self) -> ForkGroup[S]:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self._cancel()
        elif not self._joined:
            self.join()

    async def __aenter__(self) -> ForkGroup[S]:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self._cancel()
        elif not self._joined:
            await self.async_join()

    def _cancel(self) -> None:
        for core in self._cores:
            core.fail(RequestAborted("an exception left the fork's block"))
            core.error_seen = True
