"""Acceptance program 11, the tool loop: exact token counts on the real scheduler and cache.

Byte tokenizer (one byte, one token, no BOS), page size 1, an empty cache, ample memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from conftest import MakeEngine
from served_engines import engines_of_both_kinds

import rtlang as rt
from rtlang.errors import ToolError, ToolLoopLimit
from rtlang.runtime.tokenizer import Message
from rtlang.testing import ByteTokenizer, ScriptedModel

CALL = '<add>{"a":2,"b":3}</add>'
FINAL = "2 + 3 = 5"
FORMAT = rt.ToolFormat(begin="<{name}>", end="</{name}>")
QUESTION = "What is two plus three? ".ljust(75, ".")


class ShortTemplate(ByteTokenizer):
    """``U:question\\nA:answer\\nT: result\\n``, so that the sizes are those of the program."""

    def render_chat(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **template_kwargs: Any,
    ) -> str:
        names = {"user": "U:", "assistant": "A:", "tool": "Tool:  "}
        turns = [f"{names[m['role']]}{self.defuse(m['content'])}\n" for m in messages]
        text = "".join(turns)
        return text + "A:" if add_generation_prompt else text


#: Every program here does the same, to the last count, with a server in between.
engines = engines_of_both_kinds


@rt.function
def calculate(s: rt.ProgramState, tools: Any) -> None:
    s += rt.user(QUESTION)
    s += rt.assistant(rt.gen("answer", tools=tools))


def counts(run: rt.ProgramState) -> list[tuple[int, int]]:
    return [(c.computed_tokens, c.cached_tokens) for c in run.usage.calls]


def test_program_11_the_second_call_computes_only_the_result(make_engine: MakeEngine) -> None:
    calls: list[tuple[Any, Any]] = []

    def add(a: int, b: int) -> int:
        calls.append((a, b))
        return a + b

    engine = make_engine(ScriptedModel([CALL, FINAL], tokenizer=ShortTemplate()))
    run = calculate.run(rt.Tools([add], format=FORMAT), backend=engine)
    assert len(CALL) == 24 and len(FINAL) == 9
    assert counts(run) == [(80, 0), (12, 104)]
    assert calls == [(2, 3)] and all(type(n) is int for n in calls[0])
    assert run["answer"] == FINAL
    assert run.messages()[1:] == [
        {"role": "assistant", "content": CALL},
        {"role": "tool", "content": "5"},
        {"role": "assistant", "content": FINAL},
    ]
    meta = run.get_meta_info("answer")["tool_calls"]
    assert meta == [{"name": "add", "arguments": {"a": 2, "b": 3}, "result": 5, "error": None}]
    stats = engine.stats()
    assert (run.usage.computed_tokens, run.usage.cached_tokens) == (92, 104)
    assert (stats["computed_tokens"], stats["cached_tokens"]) == (92, 104)


def test_program_11_without_roles(make_engine: MakeEngine) -> None:
    def add(a: int, b: int) -> int:
        return a + b

    @rt.function
    def program(s: rt.ProgramState) -> None:
        s += "q" * 80
        s += rt.gen(
            "x", tools=rt.Tools([add], format=FORMAT, result_format="\nresult: {result}\n\n")
        )

    engine = make_engine(ScriptedModel([CALL, FINAL]))
    run = program.run(backend=engine)
    assert counts(run) == [(80, 0), (12, 104)]
    assert run["x"] == FINAL
    assert run.text() == "q" * 80 + CALL + "\nresult: 5\n\n" + FINAL


def test_program_11_a_failing_tool_is_fed_to_the_model(make_engine: MakeEngine) -> None:
    def add(a: int, b: int) -> int:
        raise OverflowError("too much")

    engine = make_engine(ScriptedModel([CALL, "sorry"], tokenizer=ShortTemplate()))
    run = calculate.run(rt.Tools([add], format=FORMAT), backend=engine)
    assert run.messages()[2] == {"role": "tool", "content": "error: OverflowError: too much"}
    assert run["answer"] == "sorry"
    assert len(run.usage.calls) == 2


def test_program_11_a_failing_tool_raises(make_engine: MakeEngine) -> None:
    boom = OverflowError("too much")

    def add(a: int, b: int) -> int:
        raise boom

    engine = make_engine(ScriptedModel([CALL, "sorry"], tokenizer=ShortTemplate()))
    with pytest.raises(ToolError, match="'add'") as raised:
        calculate.run(rt.Tools([add], format=FORMAT, on_error="raise"), backend=engine)
    assert raised.value.__cause__ is boom
    assert "test_acceptance_tools.py" in raised.value.__notes__[0]


def test_program_11_endless_calling_ends(make_engine: MakeEngine) -> None:
    calls: list[int] = []

    def add(a: int, b: int) -> int:
        calls.append(a)
        return a + b

    engine = make_engine(ScriptedModel(lambda prompt: CALL, tokenizer=ShortTemplate()))
    with pytest.raises(ToolLoopLimit) as raised:
        calculate.run(rt.Tools([add], format=FORMAT, max_rounds=3), backend=engine)
    assert raised.value.limit == 3
    assert calls == [2, 2, 2]
