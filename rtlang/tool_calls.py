"""Running the calls of one turn, all at the same time."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import inspect
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rtlang import loop
from rtlang.errors import ToolError
from rtlang.runtime.tools.formats import ToolCall

if TYPE_CHECKING:
    from rtlang.tools import Tool


@dataclasses.dataclass(frozen=True, slots=True)
class ToolResult:
    """What came of a call: ``text`` for the model; ``error``, if the tool has failed."""

    call: ToolCall
    text: str
    value: Any = None
    error: BaseException | None = None

    def entry(self) -> dict[str, Any]:
        """As ``get_meta_info`` tells it."""
        return {
            "name": self.call.name,
            "arguments": self.call.arguments,
            "result": self.value,
            "error": self.error,
        }

    def raise_error(self) -> None:
        """Raises ``ToolError`` if the tool has failed, from what it raised."""
        if self.error is not None:
            name = self.call.name
            raise ToolError(f"tool {name!r} failed: {_told(self.error)}", name=name) from self.error


async def run_calls(
    calls: Sequence[ToolCall],
    tools: Mapping[str, Tool],
    timeout_s: float | None,
    gone: Callable[[], Coroutine[Any, Any, None]],
) -> list[ToolResult] | None:
    """The results in the order of the calls; None if ``gone()`` ends before they are there: then
    nobody wants them, async tools are cancelled, and threads of sync ones are left alone."""
    running = [asyncio.ensure_future(_run(call, tools[call.name], timeout_s)) for call in calls]
    watch = asyncio.ensure_future(gone())
    pending: set[asyncio.Future[Any]] = {*running, watch}
    try:
        while watch in pending and len(pending) > 1:
            _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        return [task.result() for task in running] if watch in pending else None
    finally:
        for task in (watch, *running):
            task.cancel()


async def _run(call: ToolCall, tool: Tool, timeout_s: float | None) -> ToolResult:
    """One call. Whatever the tool raises is its result: nothing of it may reach our loop."""
    value: Any = None
    try:
        async with asyncio.timeout(timeout_s), _no_stray_cancel():
            value = await _value(tool, tool.values(call.arguments))
        return ToolResult(call, as_text(value), value)
    except TimeoutError as error:
        if not str(error):
            error = TimeoutError(f"no result within {timeout_s} s")
        return ToolResult(call, _told(error), value, error)
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        return ToolResult(call, _told(error), value, error)


@contextlib.asynccontextmanager
async def _no_stray_cancel() -> AsyncIterator[None]:
    """Cancellation that nobody has asked of us is the tool's own doing: an error of it."""
    task = asyncio.current_task()
    assert task is not None
    try:
        yield
    except asyncio.CancelledError as error:
        if task.cancelling():
            raise
        raise ToolError("the tool cancelled itself") from error


async def _value(tool: Tool, arguments: Mapping[str, Any]) -> Any:
    if _is_async(tool.function):
        return await tool.function(**arguments)
    found: list[Any] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            found.append(tool.function(**arguments))
        except BaseException as error:
            errors.append(error)  # not through the future: it has no place for StopIteration

    await loop.in_thread(work)
    if errors:
        _raise(errors[0])
    return found[0]


def _raise(error: BaseException) -> None:
    if isinstance(error, StopIteration | StopAsyncIteration | asyncio.CancelledError):
        raise ToolError(f"the tool raised {type(error).__name__}") from error
    raise error


def _is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004
    )


def as_text(value: Any) -> str:
    """A result for the model: text as it is, anything else as JSON. Raises ``TypeError``."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=_bare)


def _bare(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    raise TypeError(f"a result of type {type(value).__name__} has no JSON form")


def _told(error: BaseException) -> str:
    text = str(error)
    return f"error: {type(error).__name__}: {text}" if text else f"error: {type(error).__name__}"
