"""Answers in the formats of models, with what they say; shared by the tests of the parsers."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rtlang.runtime.parsers.events import (
    CallArguments,
    CallBegin,
    CallEnd,
    Content,
    Event,
    Reasoning,
)
from rtlang.runtime.parsers.registry import make_parser
from rtlang.runtime.parsers.scanning import Events
from rtlang.runtime.tools.formats import (
    DEEPSEEK_CALL,
    DEEPSEEK_CALL_END,
    DEEPSEEK_CALLS,
    DEEPSEEK_CALLS_END,
    DEEPSEEK_SEP,
)
from rtlang.testing import ByteTokenizer

NUMBERS = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": False,
}
TEXTS = {
    "type": "object",
    "properties": {"text": {"type": "string"}, "loud": {"type": "boolean"}},
    "required": ["text"],
    "additionalProperties": False,
}
TOOLS: dict[str, Mapping[str, Any]] = {"add": NUMBERS, "upper": TEXTS}


def merged(pieces: Iterable[str], **options: Any) -> list[Event]:
    """The events of an answer that comes in pieces, neighbouring texts of one kind as one."""
    given = {"tool_parser": None, "reasoning_parser": None, "tool_names": list(TOOLS), **options}
    parser, events = make_parser(**given), Events()
    for piece in pieces:
        for event in parser.feed(piece):
            events.add(event)
    for event in parser.finish():
        events.add(event)
    return events.taken()


def called(index: int, name: str, arguments: str) -> list[Event]:
    return [CallBegin(index, name), CallArguments(index, arguments), CallEnd(index)]


@dataclasses.dataclass(frozen=True)
class Case:
    """An answer, how it is read, and its events."""

    name: str
    tools: str | None
    text: str
    events: Sequence[Event]
    reasoning: str | None = None
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def read(self, pieces: Iterable[str]) -> list[Event]:
        return merged(
            pieces, tool_parser=self.tools, reasoning_parser=self.reasoning, **self.options
        )


ONE, TWO = '{"a": 1, "b": [true, null, "x\\"}"]}', '{"text": "</tool_call> ] é 😀"}'
BOTH = [*called(0, "add", ONE), *called(1, "upper", TWO)]


def hermes(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def llama(name: str, arguments: str, key: str = "parameters") -> str:
    return f'{{"name": "{name}", "{key}": {arguments}}}'


def xml(name: str, **values: str) -> str:
    parts = "".join(f"<parameter={k}>\n{v}\n</parameter>\n" for k, v in values.items())
    return f"<tool_call>\n<function={name}>\n{parts}</function>\n</tool_call>"


def deepseek_v3(*calls: tuple[str, str]) -> str:
    kind = f"{DEEPSEEK_CALL}function{DEEPSEEK_SEP}"
    parts = [f"{kind}{n}\n```json\n{a}\n```{DEEPSEEK_CALL_END}" for n, a in calls]
    return DEEPSEEK_CALLS + "\n".join(parts) + DEEPSEEK_CALLS_END


def deepseek_v31(*calls: tuple[str, str]) -> str:
    parts = [f"{DEEPSEEK_CALL}{n}{DEEPSEEK_SEP}{a}{DEEPSEEK_CALL_END}" for n, a in calls]
    return DEEPSEEK_CALLS + "".join(parts) + DEEPSEEK_CALLS_END


def harmony(name: str, arguments: str) -> str:
    to = f"to=functions.{name} <|constrain|>json"
    return f"<|channel|>commentary {to}<|message|>{arguments}<|call|>"


TURN = "<|start|>assistant"
ANALYSIS, FINAL = "<|channel|>analysis<|message|>", "<|channel|>final<|message|>"
SIDES = (("add", ONE), ("upper", TWO))
XML_BOTH = [
    *called(0, "add", '{"a": "1", "b": "x \\"y\\"\\nz"}'),
    *called(1, "upper", '{"text": ""}'),
]

CASES = [
    Case("plain text", None, "<tool_call>{} [", [Content("<tool_call>{} [")]),
    Case(
        "hermes",
        "hermes",
        f"Sure.\n{hermes('add', ONE)}\n{hermes('upper', TWO)}\nDone",
        [Content("Sure.\n"), *BOTH, Content("\nDone")],
    ),
    Case("hermes, only calls", "qwen", hermes("add", ONE) + hermes("upper", TWO) + "\n", BOTH),
    Case(
        "hermes, arguments first",
        "hermes",
        f'<tool_call>{{"id": "7", "arguments": {ONE}, "name": "add", "x": [1]}}</tool_call>',
        called(0, "add", ONE),
    ),
    Case(
        "hermes, arguments as text",
        "hermes",
        hermes("add", '" {\\"a\\": \\"\\\\n\\u00e9\\ud83d\\ude00\\"} "') + hermes("upper", '""'),
        [*called(0, "add", '{"a": "\\né😀"}'), *called(1, "upper", "{}")],
    ),
    Case(
        "hermes, half a character in arguments as text",  # it has no UTF-8
        "hermes",
        hermes("add", '"{\\"a\\": \\"\\ud83dx\\"}"'),
        called(0, "add", '{"a": "\\ud83dx"}'),
    ),
    Case(
        "hermes, arguments as text, first",
        "hermes",
        '<tool_call>{"arguments": "{\\"a\\":1}", "name": "add"}</tool_call>',
        called(0, "add", '{"a":1}'),
    ),
    Case(
        "hermes, no arguments",
        "hermes",
        '<tool_call>{"name": "add"}</tool_call> <tool_call>{"name": "upper", "arguments": null}',
        [*called(0, "add", "{}"), *called(1, "upper", "{}")],
    ),
    Case(
        "hermes, a bare line break in a string",
        "hermes",
        hermes("add", '{"a": "x\n\ty"}'),
        called(0, "add", '{"a": "x\\n\\ty"}'),
    ),
    Case(
        "hermes, unlisted",
        "hermes",
        f"{hermes('sub', ONE)}\n{hermes('add', ONE)}",
        [Content(hermes("sub", ONE) + "\n"), *called(0, "add", ONE)],
    ),
    Case(
        "hermes, broken before the arguments",
        "hermes",
        '<tool_call>\n{"name": add}</tool_call><tool_call>[]',
        [Content('<tool_call>\n{"name": add}</tool_call><tool_call>[]')],
    ),
    Case(
        "hermes, arguments that are a list",
        "hermes",
        hermes("add", "[1]"),
        [Content(hermes("add", "[1]"))],
    ),
    Case(
        "hermes, broken in the arguments",
        "hermes",
        hermes("add", '{"a": oh}') + "\n" + hermes("upper", TWO),
        [
            CallBegin(0, "add"),
            CallArguments(0, '{"a": '),
            Content("oh}}\n</tool_call>\n"),
            *called(1, "upper", TWO),
        ],
    ),
    Case(
        "hermes, cut in the arguments",
        "hermes",
        hermes("add", ONE).partition("null")[0] + "nu",
        [CallBegin(0, "add"), CallArguments(0, ONE.partition("null")[0] + "nu")],
    ),
    Case(
        "hermes, cut before the arguments",
        "hermes",
        hermes("add", ONE)[:28],
        [Content(hermes("add", ONE)[:28])],
    ),
    Case("hermes, cut in a marker", "hermes", "a <tool_cal", [Content("a <tool_cal")]),
    Case("hermes, cut in the end", "hermes", hermes("add", ONE)[:-4], called(0, "add", ONE)),
    Case(
        "qwen_xml",
        "qwen_xml",
        xml("add", a="1", b='x "y"\nz') + "\n\n" + xml("upper", text=""),
        XML_BOTH,
    ),
    Case(
        "qwen_xml, by schema",
        "qwen_xml",
        "Ok\n" + xml("add", a=" 1 ", c="2") + xml("upper", text="1", loud="True"),
        [
            Content("Ok\n"),
            *called(0, "add", '{"a": 1, "c": "2"}'),
            *called(1, "upper", '{"text": "1", "loud": true}'),
        ],
        options={"schemas": TOOLS},
    ),
    Case(
        "qwen_xml, without the outer marks",
        "qwen_xml",
        "<function=add></function> <function=upper>\n</tool_call>?",
        [*called(0, "add", "{}"), *called(1, "upper", "{}"), Content("?")],
    ),
    Case("qwen_xml, unlisted", "qwen_xml", xml("sub", a="1"), [Content(xml("sub", a="1"))]),
    Case(
        "qwen_xml, cut in a value",
        "qwen_xml",
        xml("add", a="1", b="23").partition("3")[0],
        [
            CallBegin(0, "add"),
            CallArguments(0, '{"a": "1"'),
            Content("\n<parameter=b>\n2"),
        ],
    ),
    Case("llama3", "llama3", f"{llama('add', ONE)}; {llama('upper', TWO)}", BOTH),
    Case(
        "llama3, with a tag and a type",
        "llama3",
        '<|python_tag|>{"type": "function", "name": "add", "parameters": ' + ONE + "}",
        called(0, "add", ONE),
    ),
    Case(
        "llama3, other JSON",
        "llama3",
        'I {have {"x": 1}, {"type": "object"}, {"name": "Bob", "x": {"name": "add"}}; {"n',
        [
            Content(
                'I {have {"x": 1}, {"type": "object"}, {"name": "Bob", "x": {"name": "add"}}; {"n'
            )
        ],
    ),
    Case(
        "llama3, code behind the tag",
        "llama3",
        "<|python_tag|>print({1})",
        [Content("<|python_tag|>print({1})")],
    ),
    Case(
        "llama3, text behind a call",
        "llama3",
        f"{llama('add', ONE)}; and",
        [*called(0, "add", ONE), Content("; and")],
    ),
    Case(
        "mistral",
        "mistral",
        f"So [TOOL_CALLS] [{llama('add', ONE, 'arguments')}, {llama('upper', TWO, 'arguments')}]",
        [Content("So "), *BOTH],
    ),
    Case(
        "mistral, newer",
        "mistral",
        f"[TOOL_CALLS]add[ARGS]{ONE}[TOOL_CALLS]upper[CALL_ID]a1b2c3d4e[ARGS]{TWO}",
        BOTH,
    ),
    Case("mistral, newest", "mistral", f"[TOOL_CALLS]add{ONE}[TOOL_CALLS] upper {TWO}", BOTH),
    Case(
        "mistral, unlisted in a list",
        "mistral",
        f"[TOOL_CALLS] [{llama('sub', ONE)}, {llama('add', ONE)}, {llama('sub', ONE)}] so",
        [
            Content(f"[TOOL_CALLS] [{llama('sub', ONE)}, "),
            *called(0, "add", ONE),
            Content(f", {llama('sub', ONE)}] so"),
        ],
    ),
    Case(
        "mistral, unlisted",
        "mistral",
        f"[TOOL_CALLS]sub[ARGS]{ONE} [TOOL_CALLS]add[TOOL_CALLS]add{ONE}",
        [Content(f"[TOOL_CALLS]sub[ARGS]{ONE} [TOOL_CALLS]add"), *called(0, "add", ONE)],
    ),
    Case("deepseek_v3", "deepseek_v3", "Ok" + deepseek_v3(*SIDES), [Content("Ok"), *BOTH]),
    Case(
        "deepseek_v3, the fence in a string",
        "deepseek_v3",
        deepseek_v3(("add", '{"a": "\\n```"}')) + "\n",
        called(0, "add", '{"a": "\\n```"}'),
    ),
    Case("deepseek_v31", "deepseek_v31", deepseek_v31(*SIDES), BOTH),
    Case(
        "deepseek_v31, unlisted",
        "deepseek_v31",
        deepseek_v31(("sub", ONE)) + "so",
        [Content(deepseek_v31(("sub", ONE)) + "so")],
    ),
    Case(
        "deepseek_r1",
        "deepseek_v3",
        "Well.\n</think>\n\nOk" + deepseek_v3(("add", ONE)),
        [Reasoning("Well."), Content("Ok"), *called(0, "add", ONE)],
        "deepseek_r1",
        {"in_reasoning": True},
    ),
    Case(
        "gpt_oss",
        "gpt_oss",
        f"{ANALYSIS}Well {{}}<|end|>{TURN}{harmony('add', ONE)}{TURN}{harmony('upper', TWO)}",
        [Reasoning("Well {}"), *BOTH],
        "gpt_oss",
    ),
    Case(
        "gpt_oss, an answer",
        "gpt_oss",
        f"{ANALYSIS}Well<|end|>{TURN}<|channel|>commentary<|message|>First<|end|>"
        f"{TURN}{FINAL}Done <|x|><|return|>",
        [Reasoning("Well"), Content("FirstDone <|x|>")],
        "gpt_oss",
    ),
    Case(
        "gpt_oss, the recipient first",
        "gpt_oss",
        f" to=functions.add<|channel|>commentary json<|message|>{ONE}<|call|>",
        called(0, "add", ONE),
        "gpt_oss",
        {"lead": "<|start|>assistant"},
    ),
    Case(
        "gpt_oss, unlisted",
        "gpt_oss",
        harmony("sub", ONE) + TURN + FINAL + "so",
        [Content(harmony("sub", ONE).removesuffix("<|call|>") + "so")],
        "gpt_oss",
    ),
    Case(
        "gpt_oss, cut before a message",
        "gpt_oss",
        f"{ANALYSIS}Well<|end|>{TURN}<|channel|>fin",
        [Reasoning("Well")],
        "gpt_oss",
    ),
    Case(
        "gpt_oss, reasoning as content",
        "gpt_oss",
        f"{ANALYSIS}Well<|end|>{TURN}{harmony('add', ONE)}",
        [Content("Well"), *called(0, "add", ONE)],
    ),
    Case("json, a list", "json", f"[{llama('add', ONE)}, {llama('upper', TWO)}]\n", BOTH),
    Case("json, one", "json", llama("add", ONE), called(0, "add", ONE)),
    Case(
        "json behind the reasoning of gpt_oss",
        "json",
        f"Well<|end|>{TURN}{FINAL}{llama('add', ONE)}",
        [Reasoning("Well"), *called(0, "add", ONE)],
        "gpt_oss",
        {"in_reasoning": True},
    ),
    Case(
        "qwen3",
        "qwen",
        f"\n<think>\nA <tool_call> b\n\n</think>\n\n{hermes('add', ONE)}",
        [Reasoning("A <tool_call> b"), *called(0, "add", ONE)],
        "qwen3",
    ),
    Case(
        "qwen3, no reasoning",
        None,
        "\n a <think>b</think>",
        [Content("\n a <think>b</think>")],
        "qwen3",
    ),
    Case(
        "qwen3, cut",
        None,
        "A\n</thin",
        [Reasoning("A\n</thin")],
        "qwen3",
        {"in_reasoning": True},
    ),
    Case(
        "qwen3, opened by the lead",
        None,
        "A</think> b",
        [Reasoning("A"), Content("b")],
        "qwen3",
        {"lead": "<think>\n"},
    ),
    Case(
        "qwen3, opened twice",
        None,
        "<think>A</think>\n",
        [Reasoning("A")],
        "qwen3",
        {"in_reasoning": True},
    ),
    Case(
        "mistral, reasoning and control tokens",
        "mistral",
        f"<s>[THINK]A[/THINK]b</s>c[TOOL_CALLS]add[ARGS]{ONE}</s>",
        [Reasoning("A"), Content("bc"), *called(0, "add", ONE)],
        "mistral",
        {"control": ["<s>", "</s>", "[TOOL_CALLS]", "[THINK]", "[/THINK]", "[ARGS]"]},
    ),
    Case(
        "a trigger in the prompt",
        "mistral",
        f" [{llama('add', ONE)}]",
        called(0, "add", ONE),
        options={"lead": "[TOOL_CALLS]"},
    ),
]


class ControlTokenizer(ByteTokenizer):
    """Bytes, and control tokens of one's choice (from 264 on)."""

    def __init__(self, *control: str) -> None:
        super().__init__(264 + len(control))
        self._added = {text: 264 + i for i, text in enumerate(control)}
        self._cuts = re.compile(f"({'|'.join(map(re.escape, control)) or '(?!)'})")
        self.special_ids = self.special_ids | set(self._added.values())
        self.token_bytes = [*self.token_bytes[:264], *(text.encode() for text in control)]

    def encode(self, text: str, *, add_bos: bool = True, control: bool = True) -> list[int]:
        if not control:
            return super().encode(text, add_bos=add_bos, control=False)
        ids: list[int] = []
        for part in self._cuts.split(text):
            added = self._added.get(part)
            ids += super().encode(part, add_bos=False) if added is None else [added]
        return ids
