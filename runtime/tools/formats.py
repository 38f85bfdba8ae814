"""How models write the calls of tools, as text: its grammar, and reading it back."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

from rtlang.errors import InvalidParameter
from rtlang.grammar.spec import GrammarSpec

#: White space between two JSON tokens of arguments: more is never needed, and weak models loop.
WHITESPACE = 1

_DECODER = json.JSONDecoder()


@dataclasses.dataclass(frozen=True, kw_only=True)
class ToolFormat:
    """A turn's calls: ``opening``, one or more of ``begin`` + JSON arguments + ``end`` with
    ``separator`` between, ``closing``. In ``begin`` and ``end``, {name} is the tool's name.

    ``trigger`` is the beginning that all calls share, and that turns text into a call; free text
    cannot hold it. "": it is the whole beginning, to the name and beyond, of each tool's call.
    """

    begin: str
    end: str = ""
    opening: str = ""
    closing: str = ""
    separator: str = "\n"
    trigger: str = ""

    def __post_init__(self) -> None:
        """Raises ``InvalidParameter``."""
        if self.begin.count("{name}") != 1:
            raise InvalidParameter("begin needs {name} once", param="begin")
        fixed = self.opening + self.begin.partition("{name}")[0]
        if not fixed.startswith(self.trigger):
            raise InvalidParameter(f"a call begins with {fixed!r}, no trigger", param="trigger")

    def sample(self) -> str:
        """What a call looks like."""
        return f"{self.opening}{self.begin_of('NAME')}ARGUMENTS{self.end_of('NAME')}{self.closing}"

    def begin_of(self, name: str) -> str:
        return self.begin.replace("{name}", name)

    def end_of(self, name: str) -> str:
        return self.end.replace("{name}", name)

    def pieces(self) -> dict[str, str]:
        """The literal texts of which calls are made, but for names."""
        before, _, after = self.begin.partition("{name}")
        first = (self.opening + before)[len(self.trigger) :]
        return {
            "trigger": self.trigger, "begin": first, "name's end": after, "end": self.end,
            "separator": self.separator, "closing": self.closing, "next begin": before,
        }  # fmt: skip


#: Hermes, Qwen and models that have learnt from them; what a template says nothing about.
PLAIN = ToolFormat(
    begin='<tool_call>\n{"name": "{name}", "arguments": ',
    end="}\n</tool_call>",
    trigger="<tool_call>",
)
#: Llama 3.1 and later.
LLAMA = ToolFormat(
    begin='{"name": "{name}", "parameters": ', end="}", separator="; ", trigger='{"name": '
)
#: Mistral, to version 3 of its tokenizers.
MISTRAL = ToolFormat(
    opening="[TOOL_CALLS] [",
    begin='{"name": "{name}", "arguments": ',
    end="}",
    separator=", ",
    closing="]",
    trigger="[TOOL_CALLS]",
)


@dataclasses.dataclass(frozen=True, slots=True)
class ToolCall:
    """One call, as the model wrote it."""

    name: str
    arguments: dict[str, Any]


class BadCall(Exception):
    """A text that begins as calls, but is not what the grammar demands: it was cut, or nobody
    has held to the grammar."""


#: Name of each tool that may be called -> the JSON schema of its parameters.
Callables = Mapping[str, Mapping[str, Any]]


def grammar(
    form: ToolFormat, tools: Callables, *, required: bool, parallel: bool, led: bool = False
) -> GrammarSpec:
    """A turn: free text, calls, or free text and then calls; ``required``: calls alone.

    ``led``: the trigger is part of the prompt.
    """
    if required:
        cut = len(form.trigger) if led else 0
        return _spec(_calls(form, tools, list(tools), cut, parallel=parallel))
    if form.trigger:
        rest = _calls(form, tools, list(tools), len(form.trigger), parallel=parallel)
        rules = [[form.trigger, rest]]
    else:
        heads = {name: form.opening + form.begin_of(name) for name in tools}
        _check_apart(list(heads.values()))
        rules = [
            [head, _calls(form, tools, [name], len(head), parallel=parallel)]
            for name, head in heads.items()
        ]
    return _spec({"type": "dispatch", "rules": rules, "loop": False})


def _spec(node: dict[str, Any]) -> GrammarSpec:
    tag = {"type": "structural_tag", "format": node}
    return GrammarSpec.structural_tag(tag, whitespace=WHITESPACE)


def _calls(
    form: ToolFormat, tools: Callables, first: Sequence[str], cut: int, *, parallel: bool
) -> dict[str, Any]:
    """A turn's calls without their first ``cut`` characters; the first is one of ``first``."""
    opening = form.opening[cut:]
    cut = max(0, cut - len(form.opening))
    elements = [_text(opening), _any_of(_call(form, n, tools[n], cut) for n in first)]
    if parallel:
        again = _any_of(_call(form, name, schema, 0) for name, schema in tools.items())
        elements.append(_sequence([_text(form.separator), again], kind="star"))
    return _sequence([*elements, _text(form.closing)])


def _call(form: ToolFormat, name: str, schema: Mapping[str, Any], cut: int) -> dict[str, Any]:
    arguments = {"type": "json_schema", "json_schema": dict(schema)}
    return _sequence([_text(form.begin_of(name)[cut:]), arguments, _text(form.end_of(name))])


def _text(value: str) -> dict[str, Any]:
    return {"type": "const_string", "value": value}


def _any_of(nodes: Any) -> dict[str, Any]:
    return {"type": "or", "elements": list(nodes)}


def _sequence(nodes: Sequence[dict[str, Any]], kind: str = "") -> dict[str, Any]:
    filled = [node for node in nodes if node.get("value") != ""]
    whole = {"type": "sequence", "elements": filled}
    return {"type": kind, "content": whole} if kind else whole


def _check_apart(heads: Sequence[str]) -> None:
    for number, head in enumerate(heads):
        for other in (*heads[:number], *heads[number + 1 :]):
            if head in other:
                raise InvalidParameter(
                    f"calls that begin with {head!r} and with {other!r} cannot be told apart in "
                    "text: give the format a trigger, or an end to the name",
                    param="format",
                )


def read_calls(
    text: str, form: ToolFormat, names: Sequence[str], *, required: bool
) -> list[ToolCall]:
    """The calls of a turn, in order; none for free text. Raises ``BadCall``."""
    heads = [form.trigger] if form.trigger else [form.opening + form.begin_of(n) for n in names]
    found = [at for at in (text.find(head) for head in heads) if at >= 0]
    if required and 0 not in found:
        raise BadCall("it begins with no call")
    if not found:
        return []
    calls: list[ToolCall] = []
    at = _past(text, min(found), form.opening)
    while True:
        call, at = _read_call(text, at, form, names)
        calls.append(call)
        if form.closing and text.startswith(form.closing, at):
            return _whole(text, at + len(form.closing), calls)
        if not form.closing and at == len(text):
            return calls
        at = _past(text, at, form.separator)


def _read_call(text: str, at: int, form: ToolFormat, names: Sequence[str]) -> tuple[ToolCall, int]:
    fitting = [name for name in names if text.startswith(form.begin_of(name), at)]
    if not fitting:
        raise BadCall(f"no call of a tool: {text[at : at + 60]!r}")
    name = max(fitting, key=lambda name: len(form.begin_of(name)))
    at = _space(text, at + len(form.begin_of(name)))
    try:
        arguments, at = _DECODER.raw_decode(text, at)
    except ValueError as error:
        raise BadCall(f"the arguments of {name!r} are no JSON: {error}") from error
    if not isinstance(arguments, dict):
        raise BadCall(f"the arguments of {name!r} are no object")
    end = form.end_of(name)
    return ToolCall(name, arguments), _past(text, _space(text, at, end), end)


def _space(text: str, at: int, before: str = "") -> int:
    """Where white space ends, or ``before`` begins."""
    while at < len(text) and text[at] in " \t\r\n" and not (before and text.startswith(before, at)):
        at += 1
    return at


def _past(text: str, at: int, expected: str) -> int:
    if not text.startswith(expected, at):
        raise BadCall(f"expected {expected!r}, not {text[at : at + 60]!r}")
    return at + len(expected)


def _whole(text: str, at: int, calls: list[ToolCall]) -> list[ToolCall]:
    if at != len(text):
        raise BadCall(f"text after the calls: {text[at : at + 60]!r}")
    return calls
