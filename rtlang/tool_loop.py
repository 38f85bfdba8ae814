"""A generation with tools: the model's turns and the tools' results, until a turn calls none."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from rtlang.chat import ChatPrompt
from rtlang.errors import ToolError, ToolLoopLimit, TruncatedOutput
from rtlang.meta import gen_meta
from rtlang.prompt import Prompt
from rtlang.run import Run
from rtlang.runtime.result import GenerateResult
from rtlang.runtime.tools.formats import BadCall, ToolCall
from rtlang.tool_calls import ToolResult, run_calls
from rtlang.tool_plan import ToolPlan, Turn

if TYPE_CHECKING:
    from rtlang.plan import Op


class Host(Protocol):
    """The state to which the turns belong."""

    run: Run
    prompt: Prompt
    error: BaseException | None

    async def turn(self, op: Op, turn: Turn, number: int) -> GenerateResult:
        """One generation; its text, behind the turn's lead, goes into the prompt."""
        ...

    def update_feed(self) -> None: ...


class ToolLoop:
    """A gen with tools, ready to run: its plan for one model."""

    def __init__(self, plan: ToolPlan) -> None:
        self.plan = plan

    async def run(self, host: Host, op: Op) -> None:
        """Sets the variable to the text of the last turn. Raises ``ToolLoopLimit``, ``ToolError``
        and ``TruncatedOutput``, besides what a call of the model raises."""
        assert op.slot is not None
        plan, history = self.plan, list[ToolResult]()
        with host.run.signal.lock:
            if plan.describes and isinstance(host.prompt, ChatPrompt):
                host.prompt.describe_tools(plan.tools.schemas())
        for number in itertools.count():
            turn = plan.turn(number)
            result = await host.turn(op, turn, number)
            text = turn.lead_text + result.text
            calls = _calls(turn, text, result, op.slot.name)
            if not calls:
                _finish(host, op, text, result, history)
                return
            if host.error is not None:
                return
            if number >= plan.tools.max_rounds:
                _refuse(plan.tools.max_rounds, text)
            results = await self._results(host, calls)
            if results is None:
                return
            history += results
            with host.run.signal.lock:
                _append(host.prompt, plan, results)
                host.update_feed()

    async def _results(self, host: Host, calls: Sequence[ToolCall]) -> list[ToolResult] | None:
        """None: the state has failed, or was cancelled, meanwhile."""
        tools = self.plan.tools
        results = await run_calls(calls, self.plan.by_name, tools.timeout, lambda: _failed(host))
        if results is None or host.error is not None:
            return None
        if tools.on_error == "raise":
            for one in results:
                one.raise_error()
        return results


def _refuse(limit: int, text: str) -> NoReturn:
    message = f"the model called tools in more than {limit} turns"
    raise ToolLoopLimit(message, limit=limit, text=text)


def _calls(turn: Turn, text: str, result: GenerateResult, name: str) -> list[ToolCall]:
    try:
        return turn.calls(text)
    except BadCall as error:
        reason = result.finish_reason
        if reason.type == "length" or isinstance(reason.matched, str):
            cause = "its length limit" if reason.type == "length" else f"stop {reason.matched!r}"
            raise TruncatedOutput(
                f"a tool call in {name!r} was cut by {cause}", text=text, name=name
            ) from error
        raise ToolError(f"no tool was called properly in {name!r}: {error}", text=text) from error


async def _failed(host: Host) -> None:
    await host.run.signal.async_wait(lambda: host.error is not None)


def _append(prompt: Prompt, plan: ToolPlan, results: Sequence[ToolResult]) -> None:
    """The results, and what the model's next turn needs before it."""
    texts = [plan.result_text(result.call.name, result.text) for result in results]
    if not isinstance(prompt, ChatPrompt):
        prompt.add_text("".join(texts), control=False)
        return
    prompt.end_role()
    # Templates without a role for tools may insist that user and assistant take turns.
    for content in texts if plan.role == "tool" else ["\n".join(texts)]:
        prompt.begin_role(plan.role, {})
        prompt.add_text(content, control=False)
        prompt.end_role()
    prompt.begin_role("assistant", {})


def _finish(
    host: Host, op: Op, text: str, result: GenerateResult, history: Sequence[ToolResult]
) -> None:
    assert op.slot is not None
    wants = op.logprobs is not None
    meta: dict[str, Any] = gen_meta(
        result, result.usage, host.run.tokenizer, logprobs=wants, with_text=op.with_text
    )
    meta["tool_calls"] = [one.entry() for one in history]
    with host.run.signal.lock:
        if host.error is None:
            op.slot.finish(text, meta)
    host.run.signal.changed()
