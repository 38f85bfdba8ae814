"""Scope: a block of a program between two expressions."""

from __future__ import annotations

from types import TracebackType
from typing import Generic, TypeVar

from rtlang.core import Core
from rtlang.ir import RoleBegin, RoleEnd, ScopeBegin, ScopeEnd
from rtlang.where import caller

S = TypeVar("S")


class Scope(Generic[S]):
    """For ``with`` and ``async with``, which give the state. Closed even when an exception leaves
    the block."""

    def __init__(
        self,
        state: S,
        core: Core,
        begin: RoleBegin | ScopeBegin,
        end: RoleEnd | ScopeEnd,
    ) -> None:
        self._state = state
        self._core = core
        self._begin = begin
        self._end = end

    def __enter__(self) -> S:
        self._core.append(self._begin, caller(2))
        return self._state

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None or self._is_open():
            self._core.append(self._end, caller(2))

    async def __aenter__(self) -> S:
        self._core.append(self._begin, caller(2))
        return self._state

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None or self._is_open():
            self._core.append(self._end, caller(2))

    def _is_open(self) -> bool:
        outline = self._core.outline
        if isinstance(self._end, RoleEnd):
            return outline.role == self._end.role
        return outline.scopes[-1:] == (self._end.name,)
