"""/v1/messages over plain HTTP: what is refused, the events one by one, the prompt."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from api_models import ThinkingTokenizer, answering, call_text
from server_harness import RunningServer, serving

from rtlang.errors import NumericalError
from rtlang.runtime.messages import FinishReason
from rtlang.runtime.parsers.events import CallArguments, CallBegin, CallEnd, Content, Event
from rtlang.runtime.server.anthropic_reply import MessageWriter
from rtlang.runtime.server.anthropic_request import MessageBody, chat_ask
from rtlang.runtime.server.replies import Json
from rtlang.runtime.server.turns import Turn
from rtlang.testing.scripted import Reply

TOOL = {
    "name": "add",
    "description": "adds",
    "input_schema": {"type": "object", "properties": {"a": {"type": "integer"}}},
}
JSON = {"content-type": "application/json"}
ANSWERS: dict[str, Reply | str] = {
    "hi": "Hello there.",
    "add": f"Sure. {call_text('add', a=1)}\n{call_text('add', a=22)}",
    "call": call_text("add", a=1),
    "fail": Reply(error=NumericalError("NaN in the logits"), delay_s=0.02),
    "think": "<think>\nhm, well\n</think>\n\nYes.",
}


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    model = answering(ANSWERS, tokenizer=ThinkingTokenizer())
    with serving(model, served_model_name="m", reasoning_parser="qwen3") as running:
        yield running


@pytest.fixture(scope="module")
def plain() -> Iterator[RunningServer]:
    """Of a model that does not think."""
    with serving(answering(ANSWERS), served_model_name="m", reasoning_parser="none") as running:
        yield running


def body(text: str = "hi", **more: Any) -> dict[str, Any]:
    return {
        "model": "m",
        "max_tokens": 200,
        "messages": [{"role": "user", "content": text}],
        **more,
    }


def post(server: RunningServer, given: Any, path: str = "/v1/messages") -> httpx.Response:
    return httpx.post(server.url + path, json=given, timeout=30)


def events_of(answer: httpx.Response) -> list[tuple[str, dict[str, Any]]]:
    """(event, data) of each; every part has both lines."""
    found = []
    for part in answer.text.strip().split("\n\n"):
        name, data = part.split("\n")
        payload = json.loads(data.removeprefix("data: "))
        found.append((name.removeprefix("event: "), payload))
        assert found[-1][0] == payload["type"]
    return found


def ask_of(**more: Any) -> Any:
    return chat_ask(MessageBody.model_validate(body(**more)))


# -- the answer -----------------------------------------------------------------------------


def test_an_answer_has_every_field(server: RunningServer) -> None:
    answer = post(server, body())
    assert answer.status_code == 200
    found = answer.json()
    assert answer.headers["request-id"] == answer.headers["x-request-id"]
    assert found.pop("id").startswith("msg_")
    assert found.pop("usage").keys() == {
        "input_tokens",
        "output_tokens",
        "cache_read_input_tokens",
        "cache_creation_input_tokens",
        "output_tokens_details",
    }
    assert found == {
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [{"type": "text", "text": "Hello there."}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
    }


def test_the_stream_has_each_event_in_its_place(server: RunningServer) -> None:
    answer = post(server, body(stream=True))
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = events_of(answer)
    names = [name for name, _ in events]
    deltas = ["content_block_delta"] * len("Hello there.")
    assert names == [
        "message_start",
        "content_block_start",
        *deltas,
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    start = events[0][1]["message"]
    assert start["content"] == [] and start["stop_reason"] is None and start["usage"]
    assert "".join(e["delta"]["text"] for n, e in events if n == deltas[0]) == "Hello there."
    assert events[-2][1]["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}


def test_what_was_cached_is_no_input(server: RunningServer) -> None:
    system = "a long system prompt that is the same in both calls"
    first = post(server, body(system=system)).json()["usage"]
    again = post(server, body(system=system)).json()["usage"]
    total = first["input_tokens"] + first["cache_read_input_tokens"]
    assert again["input_tokens"] == 1  # the last one is always computed
    assert again["cache_read_input_tokens"] == total - 1
    streamed = events_of(post(server, body(system=system, stream=True)))[-2][1]["usage"]
    assert streamed == again


def test_max_tokens_and_stop_sequences_say_so(server: RunningServer) -> None:
    cut = post(server, body(max_tokens=5)).json()
    assert (cut["stop_reason"], cut["content"][0]["text"]) == ("max_tokens", "Hello")
    stopped = post(server, body(stop_sequences=["xyz", " the"])).json()
    assert stopped["stop_reason"] == "stop_sequence" and stopped["stop_sequence"] == " the"
    assert stopped["content"][0]["text"] == "Hello"
    nothing = post(server, body(max_tokens=0)).json()
    assert (nothing["stop_reason"], nothing["content"]) == ("max_tokens", [])


def test_e6_streamed_calls_equal_those_at_once(server: RunningServer) -> None:
    given = body("add", tools=[TOOL])
    content = post(server, given).json()["content"]
    assert [(b["type"], b.get("input")) for b in content] == [
        ("text", None),
        ("tool_use", {"a": 1}),
        ("tool_use", {"a": 22}),
    ]
    events = events_of(post(server, {**given, "stream": True}))
    starts = [e for n, e in events if n == "content_block_start"]
    assert [e["index"] for e in starts] == [0, 1, 2]
    assert [e["content_block"].get("input") for e in starts] == [None, {}, {}]
    ids = [e["content_block"]["id"] for e in starts[1:]]
    assert len(set(ids)) == 2 and all(i.startswith("toolu_") for i in ids)
    for index, expected in ((1, {"a": 1}), (2, {"a": 22})):
        parts = [
            e["delta"]["partial_json"]
            for n, e in events
            if n == "content_block_delta" and e["index"] == index
        ]
        assert len(parts) > 2, "arguments come as they are generated"
        assert json.loads("".join(parts)) == expected
    assert events[-2][1]["delta"]["stop_reason"] == "tool_use"


def test_e6_two_calls_in_one_step(server: RunningServer) -> None:
    """A stop that can match anywhere in the text holds all of it back until the end."""
    text = str(ANSWERS["add"])
    given = body("add", tools=[TOOL], stop_sequences=[text + "#"], stream=True)
    events = events_of(post(server, given))
    starts = [e["content_block"]["type"] for n, e in events if n == "content_block_start"]
    assert starts == ["text", "tool_use", "tool_use"]
    assert [n for n, _ in events].count("content_block_delta") == 3
    assert events[-2][1]["delta"]["stop_reason"] == "tool_use"


def test_e7_choices_are_enforced(plain: RunningServer) -> None:
    given = body("add", tools=[TOOL, {**TOOL, "name": "sub"}])
    none = post(plain, {**given, "tool_choice": {"type": "none"}}).json()
    assert none["content"] == [{"type": "text", "text": ANSWERS["add"]}]
    assert none["stop_reason"] == "end_turn"
    calls = {**given, "messages": [{"role": "user", "content": "call"}]}
    named = {"type": "tool", "name": "sub", "disable_parallel_tool_use": True}
    found = post(plain, {**calls, "tool_choice": named}).json()
    assert [(b["name"], b["input"]) for b in found["content"]] == [("sub", {"a": 1})]
    assert found["stop_reason"] == "tool_use"
    talks = {**given, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 100}
    forced = events_of(post(plain, {**talks, "tool_choice": {"type": "any"}, "stream": True}))
    blocks = [e["content_block"] for n, e in forced if n == "content_block_start"]
    assert blocks[0]["type"] == "tool_use" and blocks[0]["name"] in ("add", "sub")


def test_a_cut_call_stays_as_far_as_it_came(server: RunningServer) -> None:
    max_tokens = str(ANSWERS["add"]).index('"a": 1') + len('"a": 1')
    cut = post(server, body("add", tools=[TOOL], max_tokens=max_tokens)).json()
    assert cut["stop_reason"] == "max_tokens"
    assert [b["type"] for b in cut["content"]] == ["text", "tool_use"]
    assert cut["content"][1]["input"] == {"a": 1}


def test_a_call_that_went_on_as_no_json_is_text() -> None:
    writer = MessageWriter("m", Turn(), show_thinking=True)
    broken: list[Event] = [
        CallBegin(0, "add"),
        CallArguments(0, '{"a": '),
        Content('<tool_call>{"a": x'),
    ]
    streamed = writer.feed(broken)
    assert streamed.count(b"event: content_block_stop") == 1
    message = writer.message(FinishReason("stop", 256, "eos"), {})
    assert message["content"] == [{"type": "text", "text": '<tool_call>{"a": x'}]
    assert message["stop_reason"] == "end_turn"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (r'{"a": "x\ud800", "b": 1}', {"a": "x?", "b": 1}),
        (r'{"a": "\ud83d\ude00"}', {"a": "\U0001f600"}),
        (r'{"a": "x\ud800", "b"', {}),
    ],
)
def test_half_a_character_in_a_call_is_no_failure(arguments: str, told: dict[str, Any]) -> None:
    writer = MessageWriter("m", Turn(), show_thinking=True)
    writer.feed([CallBegin(0, "add"), CallArguments(0, arguments), CallEnd(0)])
    (block,) = writer.message(FinishReason("stop", 256, "eos"), {})["content"]
    assert block["input"] == told
    Json(writer.message(FinishReason("stop", 256, "eos"), {}))  # it can be written


def test_thoughts_are_blocks_of_their_own(server: RunningServer) -> None:
    enabled = {"type": "enabled", "budget_tokens": 1024}
    given = body("think", thinking=enabled, max_tokens=2000)
    content = post(server, given).json()["content"]
    assert [b["type"] for b in content] == ["thinking", "text"]
    assert content[0]["thinking"].strip() == "hm, well" and content[0]["signature"]
    assert content[1]["text"].strip() == "Yes."
    events = events_of(post(server, {**given, "stream": True}))
    kinds = [e["delta"]["type"] for n, e in events if n == "content_block_delta"]
    assert kinds.index("signature_delta") == kinds.count("thinking_delta")
    assert kinds[-1] == "text_delta"
    omitted = {**given, "thinking": {**enabled, "display": "omitted"}}
    assert post(server, omitted).json()["content"][0]["thinking"] == ""
    assert post(server, omitted).json()["content"][1] == content[1]


def test_a_failure_in_the_stream_is_its_last_event(server: RunningServer) -> None:
    events = events_of(post(server, body("fail", stream=True, max_tokens=4000)))
    names = [name for name, _ in events]
    assert names[-1] == "error" and "message_stop" not in names and "message_delta" not in names
    assert events[-1][1]["error"]["type"] == "api_error"
    assert post(server, body("fail", max_tokens=4000)).status_code == 500


# -- the prompt -----------------------------------------------------------------------------


def test_blocks_of_a_turn_are_one_text() -> None:
    parts = [
        {"type": "text", "text": "red ", "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": "fox"},
    ]
    ask = ask_of(messages=[{"role": "user", "content": parts}], system=parts)
    assert ask.messages == [
        {"role": "system", "content": "red fox"},
        {"role": "user", "content": "red fox"},
    ]
    assert ask_of(messages=[{"role": "user", "content": []}]).messages[0]["content"] == ""


def test_turns_of_one_role_in_a_row_are_one() -> None:
    given = [("user", "a"), ("user", "b"), ("assistant", "c"), ("assistant", "d")]
    ask = ask_of(messages=[{"role": role, "content": text} for role, text in given])
    assert [m["content"] for m in ask.messages] == ["a\n\nb", "c\n\nd"]
    assert ask.continue_final_message


def test_i3_calls_and_results_keep_their_places() -> None:
    use = {"type": "tool_use", "id": "t1", "name": "add", "input": {"a": 1}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": "7", "is_error": True}
    thinking = {"type": "thinking", "thinking": "hm", "signature": "s"}
    ask = ask_of(
        tools=[TOOL],
        messages=[
            {"role": "user", "content": "go"},
            {"role": "assistant", "content": [thinking, use]},
            {"role": "user", "content": [result, {"type": "text", "text": "so?"}]},
        ],
    )
    function = {"name": "add", "arguments": '{"a":1}'}
    assert ask.messages[1:] == [
        {
            "role": "assistant",
            "content": "",
            "reasoning_content": "hm",
            "tool_calls": [{"id": "t1", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "t1", "name": "add", "content": "Error: 7"},
        {"role": "user", "content": "so?"},
    ]
    inner = {"name": "add", "description": "adds", "parameters": TOOL["input_schema"]}
    assert ask.tools == [{"type": "function", "function": inner}]


def test_parameters_have_their_names_here() -> None:
    ask = ask_of(
        temperature=0.5, top_p=0.9, top_k=0, stop_sequences=["x"], metadata={"user_id": "u"}
    )
    assert ask.sampling == {
        "max_new_tokens": 200,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": -1,
        "stop": ["x"],
    }
    schema = {"type": "object"}
    ask = ask_of(
        output_config={"format": {"type": "json_schema", "schema": schema}, "effort": "max"},
        thinking={"type": "disabled"},
    )
    assert ask.response_format["json_schema"]["schema"] == schema
    assert ask.chat_template_kwargs == {"reasoning_effort": "high", "enable_thinking": False}


def test_an_unfinished_answer_goes_on(server: RunningServer) -> None:
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Oh: "}]
    count = post(server, {"model": "m", "messages": messages}, "/v1/messages/count_tokens").json()
    opened = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nOh: "
    assert count == {"input_tokens": len(opened) - 2 * 11 - 9}  # three control tokens are one each


# -- what is refused ------------------------------------------------------------------------

USE = {"type": "tool_use", "id": "t1", "name": "add", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "t1", "content": "7"}


def _user(*blocks: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(blocks)}]


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"messages": []}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": [{"role": "robot", "content": "x"}]}, "messages.0.role"),
    ({"messages": [{"role": "user"}]}, "messages.0.content"),
    ({"messages": [{"role": "user", "content": "x", "name": "n"}]}, "'name'"),
    ({"messages": _user({"type": "image", "source": {}})}, "'image'"),
    ({"messages": _user({"type": "document", "source": {}})}, "'document'"),
    ({"messages": _user({"type": "text", "text": 1})}, "messages.0.content.0.text"),
    ({"messages": _user({"text": "x"})}, "messages.0.content.0.type"),
    ({"messages": _user("x")}, "messages.0.content.0"),
    ({"messages": _user(RESULT)}, "tool_use_id"),
    ({"messages": [{"role": "assistant", "content": [USE]}]}, "results are missing"),
    ({"messages": [{"role": "assistant", "content": [USE, USE]}]}, "another call"),
    ({"max_tokens": None}, "max_tokens"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"max_tokens": "5"}, "max_tokens"),
    ({"max_tokens": 10**400}, "max_new_tokens"),
    ({"temperature": 1.5}, "temperature"),
    ({"top_p": 2}, "top_p"),
    ({"top_k": -5}, "top_k"),
    ({"stop_sequences": [""]}, "stop"),
    ({"system": [{"type": "image"}]}, "'image'"),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "web_search"),
    ({"tools": [{"name": "add"}]}, "tools.0.input_schema"),
    ({"tools": [{**TOOL, "name": "no spaces"}]}, "name"),
    ({"tools": [TOOL, TOOL]}, "add"),
    ({"tools": [{**TOOL, "defer_loading": True}]}, "defer_loading"),
    ({"tool_choice": {"type": "any"}}, "tool_choice"),
    ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "x"}}, "'x'"),
    ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
    ({"tool_choice": {"type": "some"}}, "tool_choice.type"),
    ({"thinking": {"type": "enabled"}}, "budget_tokens"),
    ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "less than max_tokens"),
    ({"thinking": {"type": "between"}}, "thinking.type"),
    ({"output_config": {"format": {"type": "json"}}}, "output_config.format.type"),
    ({"output_config": {"format": {"type": "json_schema", "schema": "x"}}}, "schema"),
    ({"output_config": {"size": 1}}, "'size'"),
    ({"container": "c"}, "container"),
    ({"mcp_servers": [{}]}, "mcp_servers"),
    ({"temprature": 1}, "temprature"),
    ({"messages": [{"role": "user", "content": "\ud800"}]}, "surrogate"),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("change", "names"), WRONG, ids=[str(i) for i in range(len(WRONG))])
def test_e3_e4_wrong_requests_are_told_what_is_wrong(
    server: RunningServer, change: dict[str, Any], names: str, stream: bool
) -> None:
    given = json.dumps({**body(), **change, "stream": stream})
    answer = httpx.post(server.url + "/v1/messages", content=given, headers=JSON, timeout=30)
    found = answer.json()
    assert answer.status_code == 400, found
    assert found["type"] == "error" and found["error"]["type"] == "invalid_request_error"
    assert names in found["error"]["message"]
    assert found["request_id"] == answer.headers["request-id"]


def test_other_errors_have_their_types(server: RunningServer) -> None:
    unknown = post(server, body(model="other"))
    assert unknown.status_code == 404
    assert unknown.json()["error"]["type"] == "not_found_error"
    assert "'m'" in unknown.json()["error"]["message"]
    long = post(server, body("x" * 9000, stream=True))
    assert long.status_code == 400 and "9" in long.json()["error"]["message"]
    bad = httpx.post(server.url + "/v1/messages", content=b"{", headers=JSON, timeout=30)
    assert (bad.status_code, bad.json()["error"]["type"]) == (400, "invalid_request_error")
    wrong = httpx.get(server.url + "/v1/messages", timeout=30)
    assert (wrong.status_code, wrong.json()["type"]) == (405, "error")


def test_null_is_not_given(server: RunningServer) -> None:
    names = ("system", "tools", "tool_choice", "thinking", "stop_sequences", "temperature")
    nulls = dict.fromkeys([*names, "top_k", "metadata", "output_config"])
    answer = post(server, {**body(), **nulls})
    assert answer.status_code == 200 and answer.json()["content"][0]["text"] == "Hello there."
