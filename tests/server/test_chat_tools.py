"""/v1/chat/completions: tools, constraints and reasoning."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Iterator
from typing import Any, cast

import pytest
from api_models import answering, call_text
from chat_requests import (
    ANSWERS,
    TOOLS,
    TWO_CALLS,
    answer,
    chat_serving,
    choices,
    events,
    joined,
    message,
    post,
    refused,
    user,
)
from server_harness import RunningServer, serving

from rtlang.errors import ChatTemplateError
from rtlang.runtime.byte_tokenizer import ByteTokenizer
from rtlang.runtime.chunk import Chunk
from rtlang.runtime.messages import FinishReason, Usage
from rtlang.runtime.server.chat_plan import ChatAsk, plan_chat
from rtlang.runtime.server.generation import Generation
from rtlang.runtime.server.protocol.chat import ChatBody
from rtlang.runtime.server.protocol.chat_stream import ChatStream
from rtlang.testing import ScriptedModel


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with chat_serving("none") as running:
        yield running


@pytest.fixture(scope="module")
def thinker() -> Iterator[RunningServer]:
    with chat_serving("qwen3") as running:
        yield running


# -- tools ----------------------------------------------------------------------------------


def test_e6_i_streamed_calls_are_those_of_the_whole_answer(server: RunningServer) -> None:
    whole = answer(server, "two", tools=TOOLS)["choices"][0]
    assert whole["finish_reason"] == "tool_calls"
    assert [c["function"] for c in whole["message"]["tool_calls"]] == [
        {"name": "add", "arguments": '{"a": 1}'},
        {"name": "add", "arguments": '{"a": 22}'},
    ]
    chunks = events(server, "two", tools=TOOLS)
    check_calls(chunks, whole["message"])
    pieces = [c["delta"] for c in choices(chunks) if "tool_calls" in c["delta"]]
    assert len(pieces) > 10  # as they arrive


def test_e6_ii_calls_that_come_in_one_step(server: RunningServer) -> None:
    """All tokens come in one chunk where the scheduler hands them on so."""
    whole = message(server, "two", tools=TOOLS)
    plan = plan_chat(server.state, ChatAsk(messages=user("two"), tools=TOOLS))
    chunk = Chunk(text=TWO_CALLS, token_ids=[1], finish=FinishReason("stop"), usage=Usage())

    class OneChunk:
        async def chunks(self) -> AsyncGenerator[Chunk, None]:
            yield chunk

    body = ChatBody(messages=user("two"), tools=TOOLS)
    stream = ChatStream(
        server.engine.tokenizer, body, plan, plan.ask, cast(Generation, OneChunk()), {"id": "x"}
    )

    async def read() -> bytes:
        return b"".join([event async for event in stream.events()])

    lines = asyncio.run(read()).decode().split("\n\n")[:-2]
    check_calls([json.loads(line.removeprefix("data: ")) for line in lines], whole)


def check_calls(chunks: list[dict[str, Any]], whole: dict[str, Any]) -> None:
    pieces = [c["delta"]["tool_calls"] for c in choices(chunks) if "tool_calls" in c["delta"]]
    calls: dict[int, dict[str, Any]] = {}
    for [piece] in pieces:
        known = calls.get(piece["index"])
        if known is None:
            assert piece["type"] == "function"
            calls[piece["index"]] = {"id": piece["id"], **piece["function"]}
            continue
        assert set(piece) == {"index", "function"}
        assert set(piece["function"]) == {"arguments"}
        known["arguments"] += piece["function"]["arguments"]
    assert list(calls) == list(range(len(whole["tool_calls"])))
    assert len({call["id"] for call in calls.values()}) == len(calls)
    for index, call in calls.items():
        json.loads(call["arguments"])
        assert {n: call[n] for n in ("name", "arguments")} == whole["tool_calls"][index]["function"]
    assert joined(chunks) == (whole["content"] or "")
    reasons = [c["finish_reason"] for c in choices(chunks)]
    assert reasons == [None] * (len(reasons) - 1) + ["tool_calls"]


@pytest.mark.parametrize("stream", [False, True])
def test_e7_none_never_calls(server: RunningServer, stream: bool) -> None:
    body = {"tools": TOOLS, "tool_choice": "none"}
    if stream:
        chunks = events(server, "call", **body)
        assert joined(chunks) == call_text("add", a=7)
        assert choices(chunks)[-1]["finish_reason"] == "stop"
    else:
        choice = answer(server, "call", **body)["choices"][0]
        assert choice["message"]["content"] == call_text("add", a=7)
        assert "tool_calls" not in choice["message"]
        assert choice["finish_reason"] == "stop"


PARSERS = ("hermes", "qwen", "llama3", "mistral", "deepseek_v3", "deepseek_v31", "qwen_xml",
           "gpt_oss", "json", "auto")  # fmt: skip


@pytest.mark.parametrize("parser", PARSERS)
def test_e7_required_and_named_are_enforced_with_every_parser(parser: str) -> None:
    """The model only ever wants to chat; the constraint does not let it."""
    with serving(answering({"hi": "no, I will not"}), tool_parser=parser) as running:
        for choice, names in (
            ("required", {"add", "now"}),
            ({"type": "function", "function": {"name": "now"}}, {"now"}),
        ):
            body = {"tools": TOOLS, "tool_choice": choice, "parallel_tool_calls": False}
            found = answer(running, **body, max_tokens=100)["choices"][0]
            calls = found["message"]["tool_calls"]
            assert calls
            assert {c["function"]["name"] for c in calls} <= names
            if found["finish_reason"] != "length":
                assert found["finish_reason"] == "tool_calls"
                for call in calls:
                    assert isinstance(json.loads(call["function"]["arguments"]), dict)


def test_e7_choices_that_the_tools_cannot_meet(server: RunningServer) -> None:
    named = {"type": "function", "function": {"name": "sub"}}
    assert refused(server, tools=TOOLS, tool_choice=named)["param"] == "tool_choice"
    assert refused(server, tool_choice=named)["param"] == "tool_choice"
    assert refused(server, tool_choice="required")["param"] == "tool_choice"
    assert refused(server, tools=[], tool_choice="required")["param"] == "tool_choice"
    assert refused(server, tools=TOOLS, tool_choice="maybe")["param"] == "tool_choice"
    assert message(server, tool_choice="auto")["content"] == "Hello there."


@pytest.mark.parametrize(
    ("tool", "param"),
    [
        ({"type": "web_search"}, "tools[0]"),
        ({"type": "function"}, "tools[0]"),
        ({"type": "function", "function": {"name": "a b"}}, "tools[0]"),
        ({"type": "function", "function": {"name": "f", "parameters": 7}}, "tools[0]"),
        ({"type": "function", "function": {"name": "f", "colour": 7}}, "tools[0]"),
    ],
)
def test_tools_that_are_wrong(server: RunningServer, tool: dict[str, Any], param: str) -> None:
    assert refused(server, tools=[tool])["param"] == param


def test_two_tools_of_one_name(server: RunningServer) -> None:
    assert refused(server, tools=[TOOLS[0], TOOLS[0]])["param"] == "tools[1]"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "said",
    ['{"name": "add", "parameters": {"a": x}}', '{"name": "rm", "parameters": {"path": "/"}}'],
)
def test_calls_that_are_none_stay_text(said: str, stream: bool) -> None:
    """Where nothing constrains them: this format has no trigger that tells calls from text."""
    with serving(answering({"hi": said}), tool_parser="json") as running:
        if stream:
            chunks = events(running, tools=TOOLS)
            found, reason = joined(chunks), choices(chunks)[-1]["finish_reason"]
        else:
            choice = answer(running, tools=TOOLS)["choices"][0]
            found, reason = choice["message"]["content"], choice["finish_reason"]
    assert (found, reason) == (said, "stop")


def test_a_call_that_is_cut_ends_by_length(server: RunningServer) -> None:
    size = len(call_text("add", a=7)) - len('}}\n</tool_call>"')
    choice = answer(server, "call", tools=TOOLS, max_tokens=size)["choices"][0]
    assert choice["finish_reason"] == "length"
    chunks = events(server, "call", tools=TOOLS, max_tokens=size)
    assert choices(chunks)[-1]["finish_reason"] == "length"


class ToolTemplate(ByteTokenizer):
    """Has places for tools and calls; ``thinks``: it opens the reasoning; ``results``: it has a
    role for them."""

    def __init__(self, *, thinks: bool = False, results: bool = True) -> None:
        super().__init__()
        self.thinks = thinks
        self.results = results

    def render_chat(self, messages: Any, **options: Any) -> str:
        tools = options.pop("tools", [])
        told: list[dict[str, Any]] = [{"role": "system", "content": json.dumps(tools)}]
        for turn in messages:
            if turn["role"] == "tool" and not self.results:
                raise ChatTemplateError("no such role")
            content = turn["content"] or ""
            for call in turn.get("tool_calls", ()):
                content += call_text(call["function"]["name"], **call["function"]["arguments"])
            told.append({"role": turn["role"], "content": content})
        text = super().render_chat(told[0 if tools else 1 :], **options)
        opened = self.thinks and text.endswith("assistant\n")
        return text + "<think>\n" if opened else text


def prompt_text(server: RunningServer, **body: Any) -> str:
    tokens = post(server, "/tokenize", **body).json()["tokens"]
    body = {"tokens": tokens, "skip_special_tokens": False}
    text: str = post(server, "/detokenize", **body).json()["text"]
    return text


CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 41}'}}
HISTORY = [
    *user(),
    {"role": "assistant", "content": None, "tool_calls": [CALL, CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "42"},
    {"role": "tool", "tool_call_id": "c1", "content": "43"},
]


def test_a_template_with_places_for_tools_tells_of_them_itself() -> None:
    with serving(answering(ANSWERS, tokenizer=ToolTemplate())) as running:
        text = prompt_text(running, messages=HISTORY, tools=TOOLS)
        assert text.count('"description": "adds"') == 1
        assert "You may call" not in text
        assert text.count('<tool_call>\n{"name": "add", "arguments": {"a": 41}}') == 2
        whole = message(running, "two", tools=TOOLS)
        found = [c["function"]["arguments"] for c in whole["tool_calls"]]
        assert found == ['{"a": 1}', '{"a": 22}']


def test_without_a_role_for_results_they_are_one_turn_of_the_user() -> None:
    with serving(ScriptedModel(tokenizer=ToolTemplate(results=False))) as running:
        text = prompt_text(running, messages=HISTORY)
    tagged = "<tool_response>\n42\n</tool_response>\n<tool_response>\n43\n</tool_response>"
    assert f"<|im_start|>user\n{tagged}<|im_end|>" in text


@pytest.mark.parametrize("separate", [True, False])
def test_e7_calls_behind_a_thought_that_the_template_has_begun(separate: bool) -> None:
    """The thought is free, what follows it is not: it is enforced."""
    script = f"hm, well\n</think>\n\n{call_text('add', a=7)}"
    model = answering({"hi": script}, tokenizer=ToolTemplate(thinks=True))
    with serving(model, tool_parser="hermes", reasoning_parser="qwen3") as running:
        body: dict[str, Any] = {"tools": TOOLS, "separate_reasoning": separate}
        for choice in ("auto", "required"):
            found = message(running, **body, tool_choice=choice)
            [call] = found["tool_calls"]
            assert call["function"] == {"name": "add", "arguments": '{"a": 7}'}
            if separate:
                assert found["reasoning_content"] == "hm, well"
            else:
                assert "reasoning_content" not in found
                assert "hm, well" in found["content"]


def test_a_constraint_behind_a_thought_that_the_template_has_begun() -> None:
    model = answering({"hi": 'hm\n</think>\n\n{"x": 1}'}, tokenizer=ToolTemplate(thinks=True))
    with serving(model, reasoning_parser="qwen3") as running:
        found = message(running, json_schema=SCHEMA)
        assert found["reasoning_content"] == "hm"
        assert json.loads(found["content"]) == {"x": 1}


# -- constraints ----------------------------------------------------------------------------

SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"],
          "additionalProperties": False}  # fmt: skip


@pytest.mark.parametrize("given", [None, {"type": "text"}])
def test_e8_no_format_is_free_text(server: RunningServer, given: Any) -> None:
    assert message(server, response_format=given)["content"] == "Hello there."


@pytest.mark.parametrize(
    "given",
    [
        {"type": "yaml"},
        {},
        {"type": "json_schema"},
        {"type": "json_schema", "json_schema": "x"},
        {"type": "json_schema", "json_schema": {"name": "n"}},
        {"type": "json_schema", "json_schema": {"name": "n", "schema": "x"}},
        {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "nonsense"}}},
        {"type": "json_schema", "json_schema": {"name": 7, "schema": {}}},
        {"type": "json_object", "colour": 1},
        {"type": "structural_tag"},
    ],
)
def test_e8_formats_that_are_wrong(server: RunningServer, given: Any) -> None:
    refused(server, response_format=given)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("text", ["hi", "json"])
def test_e8_a_schema_is_enforced(server: RunningServer, text: str, stream: bool) -> None:
    given = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "strict": True}}
    body = {"response_format": given, "max_tokens": 60}
    if stream:
        found = joined(events(server, text, **body))
    else:
        found = message(server, text, **body)["content"]
    assert found.startswith("{")
    if text == "json":
        assert json.loads(found) == {"x": 1}


def test_e8_any_object(server: RunningServer) -> None:
    assert json.loads(message(server, "json", response_format={"type": "json_object"})["content"])
    found = message(server, "hi", response_format={"type": "json_object"}, max_tokens=5)["content"]
    assert found[0] == "{"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"guided_choice": ["yes", "Hello"]}, "Hello"),
        ({"structured_outputs": {"choice": ["yes", "Hello"]}}, "Hello"),
        ({"guided_regex": "Hel+o"}, "Hello"),
        ({"regex": "Hel+o"}, "Hello"),
        ({"ebnf": 'root ::= "Hello" | "no"'}, "Hello"),
        ({"guided_grammar": 'root ::= "Hello" | "no"'}, "Hello"),
        ({"structured_outputs": {"grammar": 'root ::= "Hello"'}}, "Hello"),
        ({"guided_json": {"const": "a"}}, '"a"'),
        ({"json_schema": '{"const": "a"}'}, '"a"'),
        ({"structured_outputs": {"json": {"const": "a"}}}, '"a"'),
    ],
)
def test_each_spelling_of_a_constraint(
    server: RunningServer, body: dict[str, Any], expected: str
) -> None:
    assert message(server, **body)["content"] == expected


def test_two_constraints_are_one_too_many(server: RunningServer) -> None:
    bodies: list[dict[str, Any]] = [
        {"regex": "a", "guided_regex": "a"},
        {"regex": "a", "ebnf": 'root ::= "a"'},
        {"regex": "a", "response_format": {"type": "json_object"}},
        {"structured_outputs": {"regex": "a", "choice": ["a"]}},
    ]
    for body in bodies:
        assert refused(server, **body)["code"] == "conflicting_constraints"
    assert "guided_backend" in refused(server, structured_outputs={"guided_backend": 1})["param"]


@pytest.mark.parametrize("text", ["call", "json"])
def test_an_answer_in_json_or_a_call(server: RunningServer, text: str) -> None:
    given = {"type": "json_schema", "json_schema": {"schema": SCHEMA}}
    choice = answer(server, text, tools=TOOLS, response_format=given)["choices"][0]
    if text == "call":
        [call] = choice["message"]["tool_calls"]
        assert json.loads(call["function"]["arguments"]) == {"a": 7}
    else:
        assert json.loads(choice["message"]["content"]) == {"x": 1}


# -- reasoning ------------------------------------------------------------------------------


def test_reasoning_is_apart_streamed_or_not(thinker: RunningServer) -> None:
    found = answer(thinker, "think")
    message_ = found["choices"][0]["message"]
    assert (message_["reasoning_content"], message_["content"]) == ("hm, well", "Yes.")
    assert 0 < found["usage"]["completion_tokens_details"]["reasoning_tokens"] < 20
    chunks = events(thinker, "think", stream_options={"include_usage": True})
    assert joined(chunks, "reasoning_content") == "hm, well"
    assert joined(chunks) == "Yes."
    assert chunks[-1]["usage"] == answer(thinker, "think")["usage"]


def test_reasoning_stays_in_the_content_or_comes_at_once(thinker: RunningServer) -> None:
    told = message(thinker, "think", separate_reasoning=False)
    assert told["content"] == ANSWERS["think"]
    assert "reasoning_content" not in told
    chunks = events(thinker, "think", stream_reasoning=False)
    thoughts = [c["delta"] for c in choices(chunks) if "reasoning_content" in c["delta"]]
    assert thoughts == [{"reasoning_content": "hm, well"}]
    assert joined(chunks) == "Yes."


def test_a_constraint_is_on_the_answer_behind_the_thought(thinker: RunningServer) -> None:
    given = {"type": "json_schema", "json_schema": {"schema": SCHEMA}}
    found = message(thinker, "think json", response_format=given)
    assert found["reasoning_content"] == "hm"
    assert json.loads(found["content"]) == {"x": 1}
    direct = message(thinker, "json", response_format=given)
    assert json.loads(direct["content"]) == {"x": 1}
