"""How models write the calls of tools, as text: its grammar, and reading it back."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
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


def _deepseek(name: str) -> str:
    """A marker of DeepSeek's, with its wide bars."""
    return f"<\uff5c{name}\uff5c>"


DEEPSEEK_CALLS, DEEPSEEK_CALLS_END = _deepseek("tool▁calls▁begin"), _deepseek("tool▁calls▁end")
DEEPSEEK_CALL, DEEPSEEK_CALL_END = _deepseek("tool▁call▁begin"), _deepseek("tool▁call▁end")
DEEPSEEK_SEP = _deepseek("tool▁sep")
#: DeepSeek V3.1 and later.
DEEPSEEK_V31 = ToolFormat(
    opening=DEEPSEEK_CALLS,
    begin=f"{DEEPSEEK_CALL}{{name}}{DEEPSEEK_SEP}",
    end=DEEPSEEK_CALL_END,
    separator="",
    closing=DEEPSEEK_CALLS_END,
    trigger=DEEPSEEK_CALLS,
)
#: DeepSeek V3 and R1.
DEEPSEEK_V3 = dataclasses.replace(
    DEEPSEEK_V31,
    begin=f"{DEEPSEEK_CALL}function{DEEPSEEK_SEP}{{name}}\n```json\n",
    end=f"\n```{DEEPSEEK_CALL_END}",
    separator="\n",
)
#: For models whose own format cannot be enforced: one call.
JSON_CALL = ToolFormat(begin='{"name": "{name}", "parameters": ', end="}", trigger='{"name": ')
#: The same, any number of them.
JSON_CALLS = dataclasses.replace(
    JSON_CALL, opening="[", separator=", ", closing="]", trigger='[{"name": '
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
#: A format of structural tags (``rtlang.grammar.structural``).
Node = dict[str, Any]


def grammar(
    form: ToolFormat, tools: Callables, *, required: bool, parallel: bool, led: bool = False
) -> GrammarSpec:
    """A turn: free text, calls, or free text and then calls; ``required``: calls alone.

    ``led``: the trigger is part of the prompt.
    """
    return as_grammar(turn(form, tools, required=required, parallel=parallel, led=led))


def as_grammar(node: Node) -> GrammarSpec:
    """The constraint that a format of structural tags is."""
    tag = {"type": "structural_tag", "format": node}
    return GrammarSpec.structural_tag(tag, whitespace=WHITESPACE)


def turn(
    form: ToolFormat, tools: Callables, *, required: bool, parallel: bool, led: bool = False
) -> Node:
    """``grammar`` as a format of structural tags, to be a part of others."""
    if required:
        cut = len(form.trigger) if led else 0
        return _calls(form, tools, list(tools), cut, parallel=parallel)
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
    return {"type": "dispatch", "rules": rules, "loop": False}


def _calls(
    form: ToolFormat, tools: Callables, first: Sequence[str], cut: int, *, parallel: bool
) -> Node:
    """A turn's calls without their first ``cut`` characters; the first is one of ``first``."""
    opening = form.opening[cut:]
    cut = max(0, cut - len(form.opening))
    elements = [literal(opening), any_of(_call(form, n, tools[n], cut) for n in first)]
    if parallel:
        again = any_of(_call(form, name, schema, 0) for name, schema in tools.items())
        elements.append(sequence([literal(form.separator), again], kind="star"))
    return sequence([*elements, literal(form.closing)])


def _call(form: ToolFormat, name: str, schema: Mapping[str, Any], cut: int) -> Node:
    arguments = {"type": "json_schema", "json_schema": dict(schema)}
    return sequence([literal(form.begin_of(name)[cut:]), arguments, literal(form.end_of(name))])


def literal(value: str) -> Node:
    return {"type": "const_string", "value": value}


def any_of(nodes: Iterable[Node]) -> Node:
    return {"type": "or", "elements": list(nodes)}


def sequence(nodes: Sequence[Node], kind: str = "") -> Node:
    """``kind``: how often it comes, a format with a content."""
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
