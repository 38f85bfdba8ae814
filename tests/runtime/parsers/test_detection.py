"""Which parsers fit a model, by what its template writes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from parser_cases import ControlTokenizer

from rtlang.errors import InvalidParameter
from rtlang.runtime.parsers import deepseek, harmony
from rtlang.runtime.parsers.registry import detect, opens_reasoning
from rtlang.runtime.tokenizer import Message
from rtlang.testing import ByteTokenizer


class Template(ControlTokenizer):
    """``{start}`` is what it puts before an answer; ``thinking`` what instead, if a variable of
    that name says so; ``told`` and ``shown`` are what it says of tools and calls."""

    def __init__(self, *control: str, told: str = "", shown: str = "", **starts: str) -> None:
        super().__init__(*control)
        self._told, self._shown, self._starts = told, shown, starts

    def render_chat(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **template_kwargs: Any,
    ) -> str:
        tools = template_kwargs.pop("tools", None) or []
        start = self._starts.get("start", "")
        for name, value in template_kwargs.items():
            if name not in self._starts:
                raise InvalidParameter(f"no variable {name}", param=name)
            start = self._starts[name] if value else start
        text = "".join(self._told.replace("NAME", t["function"]["name"]) for t in tools)
        for message in messages:
            text += str(message["content"])
            for call in message.get("tool_calls", []):
                text += self._shown.replace("NAME", call["function"]["name"])
        return text + start * add_generation_prompt


HERMES = '<tool_call>{"name": "NAME", "arguments": {}}</tool_call>'


@pytest.mark.parametrize(
    ("tokenizer", "expected"),
    [
        (ByteTokenizer(), (None, None)),
        (ByteTokenizer(chat=False), (None, None)),
        (Template(told="tools: NAME", shown=HERMES), ("hermes", None)),
        (Template(told="NAME <tool_call>", start="<think>\n"), ("hermes", "qwen3")),
        (Template(shown=HERMES, enable_thinking="<think>"), ("hermes", "qwen3")),
        (Template(shown="<tool_call><function=NAME>", told="NAME"), ("qwen_xml", None)),
        (Template(shown='{"name": "NAME", "parameters": {}}'), ("llama3", None)),
        (Template("[TOOL_CALLS]", shown="[TOOL_CALLS]NAME[ARGS]{}"), ("mistral", None)),
        (Template(told="[AVAILABLE_TOOLS]NAME", start="[THINK]"), ("mistral", "mistral")),
        (Template(told="NAME: some other way"), (None, None)),
        (Template(*harmony.MARKERS, told="functions.NAME"), ("gpt_oss", "gpt_oss")),
        (Template(*deepseek.MARKERS), ("deepseek_v3", None)),
        (Template(*deepseek.MARKERS, start="<think>\n"), ("deepseek_v3", "deepseek_r1")),
        (
            Template(*deepseek.MARKERS, start="</think>", thinking="<think>"),
            ("deepseek_v31", "deepseek_r1"),
        ),
    ],
)
def test_parsers_are_what_the_template_shows(tokenizer: Any, expected: Any) -> None:
    assert detect(tokenizer) == expected
    assert detect(tokenizer) == expected  # kept


@pytest.mark.parametrize(
    ("parser", "prompt", "expected"),
    [
        (None, "<think>\n", False),
        ("qwen3", "assistant\n<think>\n", True),
        ("qwen3", "assistant\n<think>\n\n</think>\n\n", False),
        ("deepseek_r1", "<think>", True),
        ("mistral", "<think>", False),
        ("mistral", "[THINK]", True),
        ("gpt_oss", "<|start|>assistant", False),
        ("gpt_oss", "<|channel|>analysis<|message|>", True),
    ],
)
def test_a_prompt_may_end_in_the_reasoning(parser: Any, prompt: str, expected: bool) -> None:
    assert opens_reasoning(parser, prompt) is expected
