"""Calls are enforced, not hoped for: with every parser, and read back by the one named."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from parser_cases import TOOLS, ControlTokenizer, called, merged

from rtlang.errors import InvalidParameter
from rtlang.grammar import accepts
from rtlang.grammar.matcher import Matcher
from rtlang.grammar.translate import translate
from rtlang.grammar.vocab import Vocab
from rtlang.grammar.xgr_backend import XgrBackend
from rtlang.runtime.parsers import deepseek, harmony, hermes, mistral
from rtlang.runtime.parsers.events import CallArguments, CallBegin, CallEnd, Content, Event
from rtlang.runtime.parsers.qwen_xml import parameter_types
from rtlang.runtime.parsers.registry import (
    TOOL_PARSERS,
    Constraint,
    shows_control,
    tool_grammar,
)
from rtlang.testing import ByteTokenizer

PLAIN = ByteTokenizer()
#: Every marker is a control token.
CONTROL = ControlTokenizer(
    *hermes.MARKERS, *mistral.MARKERS, *deepseek.MARKERS, *harmony.MARKERS, "<think>", "</think>"
)
#: Those that begin calls only.
TRIGGERS = ControlTokenizer("[TOOL_CALLS]")
KINDS = {
    **{f"{name}, text": (name, PLAIN) for name in TOOL_PARSERS},
    **{f"{name}, control": (name, CONTROL) for name in TOOL_PARSERS},
    "mistral, its trigger alone": ("mistral", TRIGGERS),
}

every_parser = pytest.mark.parametrize("name", TOOL_PARSERS)
every_kind = pytest.mark.parametrize(("name", "tokenizer"), KINDS.values(), ids=KINDS)


def constraint(name: str, tokenizer: Any = PLAIN, **options: Any) -> Constraint:
    given = {"choice": "required", "parallel": True, "tokenizer": tokenizer, **options}
    found = tool_grammar(name, given.pop("tools", TOOLS), **given)
    assert found is not None
    return found


def read(found: Constraint, text: str, **options: Any) -> list[Event]:
    return merged([text], tool_parser=found.parser, lead=found.lead, schemas=TOOLS, **options)


_BACKEND = XgrBackend(Vocab.bytes_only())
#: What a random text prefers, so that it comes to an end.
_LIKELY = [ord(char) for char in ' "}],:1aeto\n<>/']


def walk(found: Constraint, seed: int) -> str:
    """A random text of the constraint."""
    drawn = random.Random(seed)
    sequence = _BACKEND.compile(translate(found.grammar)).matcher()
    text = bytearray()
    for _ in range(2_000):
        text += _closed(sequence) if drawn.random() < 0.1 else _next(sequence, drawn)
        if sequence.can_end() and drawn.random() < 0.5:
            break
    assert sequence.can_end(), bytes(text)
    return text.decode()


def _next(sequence: Matcher, drawn: random.Random) -> bytes:
    likely, rest = _LIKELY[:], list(range(128))
    drawn.shuffle(likely)
    drawn.shuffle(rest)
    others = range(128, 256)  # only where there is no choice
    return bytes(next(([b] for b in [*likely, *rest, *others] if sequence.accept(b)), []))


def _closed(sequence: Matcher) -> bytes:
    """The end of a parameter in XML, where it may come: by chance it never would."""
    end = b"\n</parameter>\n"
    for length, byte in enumerate(end):
        if not sequence.accept(byte):
            sequence.rollback(length)
            return b""
    return end


def calls_of(events: Sequence[Event]) -> list[tuple[str, Any]]:
    """Names and arguments of the complete calls; there is nothing else."""
    assert not any(isinstance(event, Content) and event.text.strip() for event in events)
    names = {event.index: event.name for event in events if isinstance(event, CallBegin)}
    texts = dict.fromkeys(names, "")
    for event in events:
        if isinstance(event, CallArguments):
            texts[event.index] += event.text
    assert (
        [e.index for e in events if isinstance(e, CallEnd)] == list(names) == [*range(len(names))]
    )
    return [(names[index], json.loads(texts[index])) for index in names]


@every_kind
@pytest.mark.parametrize("choice", ["required", "upper"])
def test_e7_what_is_enforced_is_read_as_calls(name: str, tokenizer: Any, choice: str) -> None:
    """Random texts of the grammar: each is one call or more of a tool that is allowed."""
    for parallel in (True, False):
        found = constraint(name, tokenizer, choice=choice, parallel=parallel)
        for seed in range(4):
            text = walk(found, seed)
            calls = calls_of(read(found, text))
            assert calls and (parallel or len(calls) == 1), text
            for called_name, arguments in calls:
                assert called_name in (TOOLS if choice == "required" else [choice])
                allowed, wanted = TOOLS[called_name]["properties"], TOOLS[called_name]["required"]
                assert set(wanted) <= set(arguments) <= set(allowed)
                for key, value in arguments.items():
                    kinds = {"integer": int, "string": str, "boolean": bool}
                    assert type(value) is kinds[allowed[key]["type"]]


@every_kind
def test_e7_nothing_but_calls_of_listed_tools_is_allowed(name: str, tokenizer: Any) -> None:
    found = constraint(name, tokenizer)
    text = next(t for t in (walk(found, seed) for seed in range(99)) if "add" in t)
    assert accepts(found.grammar, text)
    for wrong in ("", "text", f"so {text}", text.replace("add", "sub"), text[:-1]):
        assert not accepts(found.grammar, wrong), wrong
    only_upper = constraint(name, tokenizer, choice="upper")
    assert not accepts(only_upper.grammar, text)


@every_parser
def test_leads_are_the_markers_that_cannot_be_generated(name: str) -> None:
    assert constraint(name, PLAIN).lead == ""
    found = constraint(name, CONTROL)
    if name == "mistral":
        assert (found.parser, found.lead) == ("mistral", "[TOOL_CALLS]")
    elif name == "gpt_oss":
        assert (found.parser, found.lead) == ("json", "<|channel|>final<|message|>")
    else:
        assert (found.parser, found.lead) == ("llama3" if name == "llama3" else "json", "")
    assert found.lead_ids == tuple(CONTROL.encode(found.lead, add_bos=False))


def test_calls_in_json_are_a_list_or_one() -> None:
    both = '[{"name": "add", "parameters": {"a":1}}, {"name": "upper", "parameters": {"text":""}}]'
    one = both[1:].partition(", {")[0]
    several, single = constraint("gpt_oss"), constraint("gpt_oss", parallel=False)
    assert accepts(several.grammar, both) and accepts(several.grammar, f"[{one}]")
    assert accepts(single.grammar, one) and not accepts(single.grammar, f"[{one}]")
    assert read(single, one) == called(0, "add", '{"a":1}')


@every_parser
def test_auto_lets_text_be_and_holds_calls_to_their_schemas(name: str) -> None:
    assert tool_grammar(name, TOOLS, choice="auto", parallel=True, tokenizer=CONTROL) is None or (
        name == "llama3"
    )
    found = tool_grammar(name, TOOLS, choice="auto", parallel=True, tokenizer=PLAIN)
    if name in ("gpt_oss", "json"):
        assert found is None
        return
    assert found is not None and (found.parser, found.lead) == (name, "")
    call = next(t for t in (walk(constraint(name), seed) for seed in range(99)) if "add" in t)
    assert accepts(found.grammar, "just text") and accepts(found.grammar, f"so {call}")
    assert not accepts(found.grammar, f"so {call.replace('add', 'sub')}")
    assert not accepts(found.grammar, f"so {call[:-1]}")


@every_parser
@pytest.mark.parametrize("in_reasoning", [True, False])
def test_e7_calls_are_enforced_behind_reasoning(name: str, in_reasoning: bool) -> None:
    options: dict[str, Any] = {"reasoning_parser": "qwen3", "in_reasoning": in_reasoning}
    found = constraint(name, **options)
    thought = 'We call <tool_call>{"name": "add"}.\n</think>\n\n'
    text = ("" if in_reasoning else "<think>\n") + thought + walk(constraint(name), 1)
    assert accepts(found.grammar, text) and not accepts(found.grammar, thought)
    assert accepts(found.grammar, walk(constraint(name), 1)) is not in_reasoning
    events = read(found, text, **options)
    assert calls_of(events[1:])
    free = tool_grammar(name, TOOLS, choice="auto", parallel=True, tokenizer=PLAIN, **options)
    if free is not None:
        assert accepts(free.grammar, text)
        assert not accepts(free.grammar, text.replace("upper", "sub").replace("add", "sub"))


def test_e7_reasoning_that_cannot_be_ended_in_text_is_ended_by_the_lead() -> None:
    options: dict[str, Any] = {"reasoning_parser": "qwen3", "in_reasoning": True}
    for name in ("hermes", "mistral", "llama3"):
        found = constraint(name, CONTROL, **options)
        assert found.lead.startswith("\n</think>\n\n")
        assert calls_of(read(found, walk(found, 1), **options))
        free = tool_grammar(name, TOOLS, choice="auto", parallel=True, tokenizer=CONTROL, **options)
        assert free is None
    harmony_options = {"reasoning_parser": "gpt_oss", "in_reasoning": True}
    found = constraint("gpt_oss", CONTROL, **harmony_options)
    assert found.lead == "<|end|><|start|>assistant<|channel|>final<|message|>"
    assert calls_of(read(found, walk(found, 1), **harmony_options))


XML_TOOLS: dict[str, Mapping[str, Any]] = {
    "find": {
        "type": "object",
        "properties": {
            "kind": {"enum": ["a\nb", "c"]},
            "count": {"type": "integer", "minimum": 2},
            "where": {"type": "array", "items": {"type": "string"}},
            "note": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
        },
        "required": ["kind", "where"],
    },
    "stop": {},
}


def test_xml_values_are_as_their_schemas_say() -> None:
    found = constraint("qwen_xml", tools=XML_TOOLS)
    assert found.parser == "qwen_xml"
    text = (
        "<tool_call>\n<function=find>\n<parameter=kind>\na\nb\n</parameter>\n"
        '<parameter=where>\n["x</parameter>", "y"]\n</parameter>\n'
        "<parameter=note>\n null\n</parameter>\n</function>\n</tool_call>\n"
        "<tool_call>\n<function=stop>\n</function>\n</tool_call>"
    )
    assert accepts(found.grammar, text)
    events = merged(text, tool_parser="qwen_xml", tool_names=list(XML_TOOLS), schemas=XML_TOOLS)
    assert calls_of(events) == [
        ("find", {"kind": "a\nb", "where": ["x</parameter>", "y"], "note": None}),
        ("stop", {}),
    ]
    for wrong in (
        text.replace("\na\nb\n", "\nab\n"),
        text.replace('"y"]', "1]"),
        text.replace("note", "other"),
        text.replace("<parameter=note>\n", "<parameter=count>\n1"),
        text.replace("null", "</parameter>"),
    ):
        assert not accepts(found.grammar, wrong), wrong


@pytest.mark.parametrize(
    "parameter",
    [
        {"type": "string", "pattern": "^a+$"},
        {"type": ["string", "array"], "items": {"type": "string"}},
        {"$ref": "#/$defs/x"},
        {"enum": ["a", 1]},
        {"type": ["string", "integer"]},
    ],
)
def test_what_xml_cannot_keep_is_enforced_as_json(parameter: dict[str, Any]) -> None:
    schema = {"properties": {"p": parameter}, "$defs": {"x": {"type": "string", "maxLength": 1}}}
    if "$ref" not in parameter:
        del schema["$defs"]
    tools = {"find": schema}
    assert constraint("qwen_xml", tools=tools).parser == "json"
    free = tool_grammar("qwen_xml", tools, choice="auto", parallel=True, tokenizer=PLAIN)
    assert free is None


@pytest.mark.parametrize(
    "wrong",
    [{"type": 5}, {"type": [{}]}, {"type": {"a": 1}}, {"enum": 5}, {"anyOf": 5}, {"anyOf": [5]},
     {"allOf": "x"}, {"oneOf": {}}, {"$ref": 5}, {"anyOf": [{"type": 5}]}],
)  # fmt: skip
def test_xml_of_a_schema_that_is_wrong_is_left_to_who_compiles_it(wrong: dict[str, Any]) -> None:
    tools = {"find": {"properties": {"p": wrong}}}
    for choice in ("auto", "required"):
        tool_grammar("qwen_xml", tools, choice=choice, parallel=True, tokenizer=PLAIN)


def test_xml_follows_each_reference_of_a_schema_once() -> None:
    """Ways to the last one: 64 to the power of 5."""
    steps: dict[str, Any] = {
        f"a{i}": {"anyOf": [{"$ref": f"#/$defs/a{i + 1}"}] * 64} for i in range(5)
    }
    schema = {"properties": {"p": {"$ref": "#/$defs/a0"}}, "$defs": steps}
    steps["a5"] = {"type": "integer"}
    assert parameter_types("p", schema) == {"integer"}
    steps["a5"] = {"$ref": "#/$defs/a0"}
    assert "string" in parameter_types("p", schema)


@pytest.mark.parametrize(
    ("tools", "choice", "param"),
    [
        ({}, "required", "tools"),
        ({}, "auto", "tools"),
        (TOOLS, "sub", "tool_choice"),
        ({"a b": {}}, "auto", "tools"),
        ({'a"': {}}, "auto", "tools"),
        ({"a": {"type": "array"}}, "required", "tools"),
    ],
)
def test_e7_what_cannot_be_enforced_is_refused(tools: Any, choice: str, param: str) -> None:
    with pytest.raises(InvalidParameter) as raised:
        tool_grammar("hermes", tools, choice=choice, parallel=True, tokenizer=PLAIN)
    assert raised.value.param == param


def test_control_tokens_are_shown_where_parsers_need_them() -> None:
    for name in TOOL_PARSERS:
        usual = name in ("mistral", "deepseek_v3", "deepseek_v31", "gpt_oss")
        assert shows_control(name, None) is usual
        assert shows_control(name, None, PLAIN) is False
        assert shows_control(name, None, CONTROL) is (name not in ("llama3", "json"))
    assert shows_control(None, "mistral") and not shows_control("hermes", "qwen3")
    assert shows_control("hermes", "qwen3", ControlTokenizer("</think>"))
