"""Every format: what its answers say, however they are cut into pieces."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from parser_cases import (
    BOTH,
    CASES,
    ONE,
    SIDES,
    TOOLS,
    TWO,
    Case,
    called,
    deepseek_v3,
    deepseek_v31,
    harmony,
    hermes,
    llama,
    merged,
    xml,
)

from rtlang.errors import InvalidParameter
from rtlang.runtime.parsers.events import (
    CallArguments,
    CallBegin,
    CallEnd,
    Content,
    Event,
    Reasoning,
)
from rtlang.runtime.parsers.registry import REASONING_PARSERS, TOOL_PARSERS, make_parser

every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)

#: Two calls in each tool parser's format.
TWO_CALLS = {
    "hermes": f"{hermes(*SIDES[0])}\n{hermes(*SIDES[1])}",
    "qwen": f"{hermes(*SIDES[0])}\n{hermes(*SIDES[1])}",
    "qwen_xml": f"{xml('add', a='1')}\n{xml('upper', text='x')}",
    "llama3": f"{llama(*SIDES[0])}; {llama(*SIDES[1])}",
    "mistral": f"[TOOL_CALLS] [{llama(*SIDES[0])}, {llama(*SIDES[1])}]",
    "deepseek_v3": deepseek_v3(*SIDES),
    "deepseek_v31": deepseek_v31(*SIDES),
    "gpt_oss": f"{harmony(*SIDES[0])}<|start|>assistant{harmony(*SIDES[1])}",
    "json": f"[{llama(*SIDES[0])}, {llama(*SIDES[1])}]",
}
XML_BOTH = [*called(0, "add", '{"a": "1"}'), *called(1, "upper", '{"text": "x"}')]


def said(name: str) -> list[Event]:
    return list(XML_BOTH if name == "qwen_xml" else BOTH)


@every_case
def test_an_answer_at_once(case: Case) -> None:
    assert case.read([case.text]) == list(case.events)


@every_case
def test_an_answer_character_by_character(case: Case) -> None:
    assert case.read(case.text) == list(case.events)


@given(case=st.sampled_from(CASES), data=st.data())
def test_an_answer_in_any_pieces(case: Case, data: st.DataObject) -> None:
    cuts = data.draw(st.sets(st.integers(0, len(case.text)), max_size=12))
    borders = [0, *sorted(cuts), len(case.text)]
    pieces = [case.text[a:b] for a, b in itertools.pairwise(borders)]
    assert case.read(pieces) == list(case.events)


@given(case=st.sampled_from(CASES), data=st.data())
def test_any_change_of_an_answer_reads_the_same_in_any_pieces(
    case: Case, data: st.DataObject
) -> None:
    """Cut, or with something else in it: never an error, and calls that end are JSON objects."""
    at = data.draw(st.integers(0, len(case.text)))
    upto = data.draw(st.integers(at, min(len(case.text), at + 5)))
    put = data.draw(st.sampled_from(["", '"', "{", "}", "\\", "[", ",", "<", "\n", "\\ud83d", "0"]))
    text = case.text[:at] + put + case.text[upto:]
    events = case.read([text])
    assert events == case.read(text)
    for event in events:
        if isinstance(event, CallEnd):
            whole = "".join(
                e.text for e in events if isinstance(e, CallArguments) and e.index == event.index
            )
            assert isinstance(json.loads(whole), dict)
        elif not isinstance(event, CallBegin):
            assert "\ud83d" not in event.text  # half a character has no UTF-8


@pytest.mark.parametrize("name", TOOL_PARSERS)
def test_e6_i_calls_token_by_token(name: str) -> None:
    """One begin a call with a stable index; fragments that join to what one feed gives."""
    assert merged(TWO_CALLS[name], tool_parser=name) == said(name)


@pytest.mark.parametrize("name", TOOL_PARSERS)
def test_e6_ii_two_calls_in_one_feed(name: str) -> None:
    parser = make_parser(tool_parser=name, reasoning_parser=None, tool_names=["add", "upper"])
    assert parser.feed(TWO_CALLS[name]) == said(name)
    assert parser.finish() == []


@pytest.mark.parametrize("name", [name for name in TOOL_PARSERS if name != "qwen_xml"])
def test_e6_arguments_come_as_they_are_written(name: str) -> None:
    """Each character of the arguments is passed on in the feed that brings it."""
    parser = make_parser(tool_parser=name, reasoning_parser=None, tool_names=["add", "upper"])
    text, passed = TWO_CALLS[name], ["", ""]
    starts = [text.index(ONE), text.index(TWO)]
    for at, char in enumerate(text):
        for event in parser.feed(char):
            if isinstance(event, CallArguments):
                passed[event.index] += event.text
        for index, arguments in enumerate((ONE, TWO)):
            assert passed[index] == arguments[: max(0, at + 1 - starts[index])]


def test_e6_xml_arguments_come_parameter_by_parameter() -> None:
    parser = make_parser(tool_parser="qwen_xml", reasoning_parser=None, tool_names=["add"])
    text = xml("add", a="1", b="2")
    first = text.index("</parameter>") + len("</parameter>")
    assert parser.feed(text[:first]) == [CallBegin(0, "add"), CallArguments(0, '{"a": "1"')]
    assert parser.feed(text[first:]) == [CallArguments(0, ', "b": "2"}'), CallEnd(0)]


@pytest.mark.parametrize("name", TOOL_PARSERS)
def test_e7_without_tools_calls_are_content(name: str) -> None:
    """No parser: every character. A parser without tools: no call either, and nothing lost but
    the marks between harmony's messages."""
    text = TWO_CALLS[name]
    assert merged(text) == [Content(text)]
    events = merged(text, tool_parser=name, tool_names=[])
    kept = text if name != "gpt_oss" else text.replace("<|call|>", "")
    assert events == [Content(kept)]


@pytest.mark.parametrize("name", TOOL_PARSERS)
def test_e7_only_listed_tools_are_called(name: str) -> None:
    events = merged(TWO_CALLS[name], tool_parser=name, tool_names=["upper"])
    calls = [event.name for event in events if isinstance(event, CallBegin)]
    assert calls == ["upper"]
    assert "add" in "".join(e.text for e in events if isinstance(e, Content))


TRIGGERS = {"hermes": ["<tool_call>"], "mistral": ["[TOOL_CALLS]"]}


@given(
    name=st.sampled_from(sorted(TRIGGERS)),
    parts=st.lists(
        st.sampled_from(["<", "<tool", "_call", "[", "[TOOL_", "CALLS", "a", " ", "\n"])
    ),
)
def test_only_what_may_become_a_marker_is_held_back(name: str, parts: list[str]) -> None:
    parser = make_parser(tool_parser=name, reasoning_parser=None, tool_names=["add"])
    text = shown = ""
    for part in parts:
        if any(trigger in text + part for trigger in TRIGGERS[name]):
            return
        text += part
        shown += "".join(e.text for e in parser.feed(part) if isinstance(e, Content))
        held = max(
            n
            for trigger in TRIGGERS[name]
            for n in range(len(trigger))
            if text.endswith(trigger[:n])
        )
        assert shown == text[: len(text) - held]
    assert shown + "".join(e.text for e in parser.finish() if isinstance(e, Content)) == text


@pytest.mark.parametrize("text", ['{"', '{"na', '{"name"', '{"name": "ad', '[{"name": "add"', "["])
def test_json_is_held_back_only_while_it_may_be_a_call(text: str) -> None:
    def feed(piece: str) -> list[Event]:
        parser = make_parser(tool_parser="json", reasoning_parser=None, tool_names=["add"])
        return parser.feed(piece)

    assert feed(f"so {text}") == [Content("so ")]
    for other in ('so {"x', "so {1", 'so {"name": 1', 'so {"name": "at"', "so [1", 'so [{"x'):
        assert feed(other) == [Content(other)]


@pytest.mark.parametrize("name", REASONING_PARSERS)
def test_reasoning_streams_and_ends_at_its_marker(name: str) -> None:
    begin, end = {
        "mistral": ("[THINK]", "[/THINK]"),
        "gpt_oss": (
            "<|channel|>analysis<|message|>",
            "<|end|><|start|>assistant<|channel|>final<|message|>",
        ),
    }.get(name, ("<think>", "</think>"))
    parser = make_parser(tool_parser=None, reasoning_parser=name, tool_names=[])
    assert parser.feed(begin + "One ") == [Reasoning("One ")]
    assert parser.feed("two" + end[:1]) == [Reasoning("two")]
    assert parser.feed(end[1:] + "Three") == [Content("Three")]
    assert parser.feed(" four") == [Content(" four")]
    assert parser.finish() == []


def test_control_tokens_are_dropped_also_where_they_come_in_pieces() -> None:
    control = ["<|im_end|>", "<|end|>", "</s>"]
    text = "a</s>b<|im_" + "end|>c <|im_"
    for pieces in ([text], text):
        events = merged(pieces, tool_parser="hermes", control=control)
        assert events == [Content("abc <|im_")]
    call = hermes("add", ONE) + "<|im_end|>"
    assert merged(call, tool_parser="hermes", control=control) == called(0, "add", ONE)


def test_deep_and_long_text_is_read_in_one_go() -> None:
    """Depth and numbers have limits; work and recursion do not grow with what is fed."""
    deep = '{"a": ' + "[" * 5_000
    events = merged([hermes("add", deep)], tool_parser="hermes")
    assert events[0] == CallBegin(0, "add") and isinstance(events[-1], Content)
    digits = merged([hermes("add", '{"a": ' + "1" * 5_000 + "}")], tool_parser="hermes")
    assert not any(isinstance(event, CallEnd) for event in digits)
    braces = "{" * 50_000
    assert merged([braces], tool_parser="llama3") == [Content(braces)]
    long = json.dumps({"a": "x" * 200_000})
    assert merged([hermes("add", long)], tool_parser="hermes") == called(0, "add", long)


def test_unknown_parsers_are_refused() -> None:
    with pytest.raises(InvalidParameter, match="tool_parser is one of hermes"):
        make_parser(tool_parser="x", reasoning_parser=None, tool_names=[])
    with pytest.raises(InvalidParameter, match="reasoning_parser is one of qwen3"):
        make_parser(tool_parser=None, reasoning_parser="x", tool_names=[])
    assert set(TWO_CALLS) == set(TOOL_PARSERS) and list(TOOLS) == ["add", "upper"]
