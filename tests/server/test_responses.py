"""/v1/responses: the official openai client, and the events and refusals over plain HTTP."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from api_models import ThinkingTokenizer, answering, call_text, saying
from openai.types.responses import (
    FunctionToolParam,
    Response,
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseReasoningItem,
)
from pydantic import BaseModel
from server_harness import RunningServer, serving

from rtlang.errors import NumericalError
from rtlang.runtime.messages import FinishReason
from rtlang.runtime.parsers.events import CallArguments, CallBegin, Content, Event
from rtlang.runtime.server.responses_reply import ResponseWriter
from rtlang.runtime.server.turns import Turn
from rtlang.testing.scripted import Reply

TOOL: FunctionToolParam = {
    "type": "function",
    "name": "weather",
    "description": "the weather in a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": False,
}
TWO = call_text("weather", city="Oslo") + "\n" + call_text("weather", city="Rome")
ANSWERS: dict[str, Reply | str] = {
    "hi": "Hello there.",
    "again": "And again.",
    "weather?": "Let me see. " + TWO,
    "call": TWO,
    "rainy": "Take an umbrella.",
    "json": '{"name": "Ann", "age": 7}',
    "think": "<think>\nhm\n</think>\n\nYes.",
    "nothing": "",
    "fail": Reply(error=NumericalError("NaN in the logits"), delay_s=0.02),
    "long": Reply("a", eos=False),
}


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    model = answering(ANSWERS, tokenizer=ThinkingTokenizer())
    with serving(model, served_model_name="m", reasoning_parser="qwen3") as running:
        yield running


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.url + "/v1", api_key="key", max_retries=0) as made:
        yield made


def post(server: RunningServer, **given: Any) -> httpx.Response:
    return httpx.post(server.url + "/v1/responses", json={"model": "m", **given}, timeout=30)


def events_of(answer: httpx.Response) -> list[dict[str, Any]]:
    """Of a stream: numbered from 0 on, each named as its type."""
    found = []
    for number, part in enumerate(answer.text.strip().split("\n\n")):
        name, data = part.split("\n")
        payload = json.loads(data.removeprefix("data: "))
        assert name == f"event: {payload['type']}" and payload["sequence_number"] == number
        found.append(payload)
    return found


# -- text -----------------------------------------------------------------------------------


def test_text(client: openai.OpenAI) -> None:
    response = client.responses.create(
        model="m", input="hi", instructions="be kind", metadata={"a": "b"}, user="u"
    )
    assert response.output_text == "Hello there." and response.status == "completed"
    assert response.metadata == {"a": "b"} and response.instructions == "be kind"
    usage = response.usage
    assert usage is not None and usage.output_tokens == 13
    assert usage.total_tokens == usage.input_tokens + 13
    again = client.responses.create(model="m", input="hi", instructions="be kind").usage
    assert again is not None
    assert again.input_tokens_details.cached_tokens == usage.input_tokens - 1


def test_a_stream_has_each_event_in_its_place(server: RunningServer) -> None:
    events = events_of(post(server, input="hi", stream=True))
    deltas = [e for e in events if e["type"] == "response.output_text.delta"]
    assert "".join(e["delta"] for e in deltas) == "Hello there." and len(deltas) > 3
    types = [e["type"].removeprefix("response.") for e in events if e not in deltas]
    assert types == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    assert (
        events[0]["response"]["status"] == "in_progress" and events[0]["response"]["output"] == []
    )
    last = events[-1]["response"]
    assert last["status"] == "completed" and last["output"] == [events[-2]["item"]]
    assert {e["item_id"] for e in events if "item_id" in e} == {last["output"][0]["id"]}


def test_a_stream_adds_up_to_the_response(client: openai.OpenAI) -> None:
    with client.responses.stream(model="m", input="hi") as stream:
        final = stream.get_final_response()
    whole = client.responses.create(model="m", input="hi")
    assert final.output_text == whole.output_text
    assert final.usage is not None and whole.usage is not None
    assert final.usage.output_tokens == whole.usage.output_tokens


def test_an_empty_answer_is_an_empty_message(client: openai.OpenAI) -> None:
    response = client.responses.create(model="m", input="nothing")
    assert isinstance(response.output[0], ResponseOutputMessage) and response.output_text == ""
    with client.responses.stream(model="m", input="nothing") as stream:
        assert stream.get_final_response().output_text == ""


def test_a_cut_answer_is_incomplete(server: RunningServer, client: openai.OpenAI) -> None:
    response = client.responses.create(model="m", input="hi", max_output_tokens=5)
    assert response.status == "incomplete" and response.output_text == "Hello"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.output[0].status == "incomplete"  # type: ignore[union-attr]
    events = events_of(post(server, input="hi", max_output_tokens=5, stream=True))
    assert events[-1]["type"] == "response.incomplete"


def test_logprobs_of_the_text() -> None:
    with serving(saying("ab"), served_model_name="m", reasoning_parser="none") as server:
        given = {"input": "x", "temperature": 0.0, "top_logprobs": 2}
        given["include"] = ["message.output_text.logprobs"]
        part = post(server, **given).json()["output"][0]["content"][0]
        events = events_of(post(server, **given, stream=True))
    assert part["text"] == "ab"
    assert [(e["token"], e["bytes"]) for e in part["logprobs"]] == [("a", [97]), ("b", [98])]
    for entry in part["logprobs"]:
        assert math.isclose(entry["logprob"], math.log(0.75), abs_tol=1e-5)
        assert [top["token"] for top in entry["top_logprobs"]] == [entry["token"], "~"]
    deltas = [e["logprobs"] for e in events if e["type"] == "response.output_text.delta"]
    assert [entry["token"] for entries in deltas for entry in entries] == ["a", "b"]
    done = next(e for e in events if e["type"] == "response.output_text.done")
    assert done["logprobs"] == part["logprobs"]


def test_logprobs_leave_out_the_thoughts() -> None:
    model = saying("<think>\nab\n</think>\n\nb a")
    with serving(model, served_model_name="m", reasoning_parser="qwen3") as server:
        found = post(server, input="x", temperature=0.0, top_logprobs=1).json()["output"]
    text = found[1]["content"][0]
    assert [item["type"] for item in found] == ["reasoning", "message"]
    assert "".join(e["token"] for e in text["logprobs"]) == text["text"]


# -- tools ----------------------------------------------------------------------------------


@pytest.mark.parametrize("streamed", [False, True])
def test_e6_a_round_trip_with_tools(client: openai.OpenAI, streamed: bool) -> None:
    items: list[Any] = [{"role": "user", "content": "weather?"}]
    if streamed:
        with client.responses.stream(model="m", input=items, tools=[TOOL], store=False) as stream:
            response: Response = stream.get_final_response()
    else:
        response = client.responses.create(model="m", input=items, tools=[TOOL], store=False)
    text, *calls = response.output
    assert isinstance(text, ResponseOutputMessage)
    assert response.output_text.strip() == "Let me see."
    cities = []
    for call in calls:
        assert isinstance(call, ResponseFunctionToolCall) and call.name == "weather"
        assert isinstance(call.arguments, str) and call.status == "completed"
        cities.append(json.loads(call.arguments)["city"])
        items.append({"type": "function_call_output", "call_id": call.call_id, "output": "rainy"})
    assert cities == ["Oslo", "Rome"]
    items[1:1] = [item.to_dict() for item in response.output]
    answer = client.responses.create(model="m", input=items, tools=[TOOL], store=False)
    assert answer.output_text == "Take an umbrella."


def test_e6_calls_are_streamed_as_they_come(server: RunningServer) -> None:
    events = events_of(post(server, input="weather?", tools=[TOOL], stream=True))
    added = [e["item"] for e in events if e["type"] == "response.output_item.added"]
    calls = [item for item in added if item["type"] == "function_call"]
    assert [call["arguments"] for call in calls] == ["", ""]
    assert len({call["call_id"] for call in calls} | {call["id"] for call in calls}) == 4
    for at, (call, city) in enumerate(zip(calls, ("Oslo", "Rome"), strict=True), 1):
        own = [e for e in events if e.get("item_id") == call["id"]]
        deltas = [e["delta"] for e in own if e["type"].endswith("arguments.delta")]
        assert len(deltas) > 3 and json.loads("".join(deltas)) == {"city": city}
        assert own[-1]["type"].endswith("arguments.done")
        assert own[-1]["arguments"] == "".join(deltas) and {e["output_index"] for e in own} == {at}
    whole = events[-1]["response"]["output"]
    assert [item["type"] for item in whole] == ["message", "function_call", "function_call"]


def test_e6_two_calls_in_one_step(server: RunningServer) -> None:
    """At once, the parser gets the whole text in one piece."""
    whole = post(server, input="weather?", tools=[TOOL]).json()["output"]
    streamed = events_of(post(server, input="weather?", tools=[TOOL], stream=True))
    parts = [(i["type"], i.get("arguments"), i.get("content")) for i in whole]
    other = streamed[-1]["response"]["output"]
    assert parts == [(i["type"], i.get("arguments"), i.get("content")) for i in other]


def test_e7_choices_are_enforced(client: openai.OpenAI) -> None:
    none = client.responses.create(model="m", input="weather?", tools=[TOOL], tool_choice="none")
    assert TWO in none.output_text and len(none.output) == 1
    named = client.responses.create(
        model="m",
        input="call",
        tools=[{**TOOL, "name": "climate"}, {**TOOL, "name": "wEATHER"}],
        tool_choice={"type": "function", "name": "wEATHER"},
        parallel_tool_calls=False,
    )
    assert [item.name for item in named.output] == ["wEATHER"]  # type: ignore[union-attr]
    choices: tuple[Any, ...] = ("required", {"type": "function", "name": "weather"})
    for choice in choices:
        with pytest.raises(openai.BadRequestError, match="tool"):
            client.responses.create(model="m", input="hi", tool_choice=choice)


def test_a_call_that_went_on_as_no_json_is_text() -> None:
    writer = ResponseWriter({}, Turn())
    begun: list[Event] = [CallBegin(0, "add"), CallArguments(0, '{"a": '), Content("x")]
    streamed = writer.feed(begun, None)
    assert streamed.count(b"event: response.output_item.done") == 1
    finish = FinishReason("stop", 256, "eos")
    writer.close(finish)
    found = writer.finished(finish, {})
    assert found["status"] == "completed"
    assert [item["type"] for item in found["output"]] == ["message"]


def test_a_cut_call_is_incomplete_and_not_gone_on_with(client: openai.OpenAI) -> None:
    max_tokens = str(ANSWERS["weather?"]).index('"Oslo') + 3
    cut = client.responses.create(
        model="m", input="weather?", tools=[TOOL], max_output_tokens=max_tokens
    )
    assert cut.status == "incomplete"
    call = cut.output[1]
    assert isinstance(call, ResponseFunctionToolCall) and call.status == "incomplete"
    assert '{"city": "Oslo'.startswith(call.arguments)
    after = client.responses.create(model="m", input="again", previous_response_id=cut.id)
    assert after.output_text == "And again."


# -- reasoning and formats ------------------------------------------------------------------


def test_reasoning_is_an_item_of_its_own(client: openai.OpenAI, server: RunningServer) -> None:
    response = client.responses.create(
        model="m",
        input="think",
        reasoning={"effort": "low", "summary": "auto"},
        include=["reasoning.encrypted_content"],
    )
    thought, message = response.output
    assert isinstance(thought, ResponseReasoningItem) and thought.content is not None
    assert thought.content[0].text.strip() == "hm"
    assert isinstance(message, ResponseOutputMessage) and response.output_text.strip() == "Yes."
    assert response.usage is not None
    assert response.usage.output_tokens_details.reasoning_tokens >= 2
    events = events_of(post(server, input="think", reasoning={"effort": "low"}, stream=True))
    types = [e["type"].removeprefix("response.") for e in events]
    for name in ("reasoning_text.delta", "reasoning_text.done"):
        assert name in types and types.index(name) < types.index("output_text.delta")
    deltas = [e["delta"] for e in events if e["type"] == "response.reasoning_text.delta"]
    assert "".join(deltas) == thought.content[0].text
    # Items go back as they came.
    items: list[Any] = [{"role": "user", "content": "think"}]
    items += [item.to_dict() for item in response.output]
    items.append({"role": "user", "content": "hi"})
    assert client.responses.create(model="m", input=items).output_text == "Hello there."


class Person(BaseModel):
    name: str
    age: int


def test_structured_output(client: openai.OpenAI) -> None:
    parsed = client.responses.parse(model="m", input="json", text_format=Person)
    assert parsed.output_parsed == Person(name="Ann", age=7)
    with client.responses.stream(model="m", input="json", text_format=Person) as stream:
        assert stream.get_final_response().output_parsed == Person(name="Ann", age=7)


def test_e8_a_format_is_enforced(client: openai.OpenAI) -> None:
    given: dict[str, Any] = {"model": "m", "input": "json", "reasoning": {"effort": "none"}}
    schema = {"type": "object", "properties": {"ok": {"const": "yes"}}, "required": ["ok"]}
    named = {
        "type": "json_schema",
        "name": "o",
        "schema": {**schema, "additionalProperties": False},
    }
    enforced: dict[str, Any] = {"text": {"format": named}, "max_output_tokens": 300}
    found: Response = client.responses.create(**given, **enforced)
    assert '"yes"' in found.output_text and "Ann" not in found.output_text
    for plain in ({"type": "text"}, {"type": "json_object"}, None):
        free: dict[str, Any] = {"text": {"format": plain}}
        found = client.responses.create(**given, **free)
        assert json.loads(found.output_text) == {"name": "Ann", "age": 7}


# -- what is refused ------------------------------------------------------------------------

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"input": None}, "input"),
    ({"input": []}, "input"),
    ({"input": [{"role": "robot", "content": "x"}]}, "input.0.role"),
    ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "'input_image'"),
    ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, "'input_file'"),
    ({"input": [{"role": "user", "content": None}]}, "input.0.content"),
    ({"input": [{"type": "item_reference", "id": "x"}]}, "'item_reference'"),
    ({"input": [{"type": "web_search_call", "id": "x"}]}, "'web_search_call'"),
    ({"input": [{"type": 7}]}, "input.0.type"),
    ({"input": [{"type": "function_call_output", "call_id": "x", "output": ""}]}, "call_id"),
    ({"input": [{"type": "function_call", "call_id": "x", "name": "f"}]}, "arguments"),
    (
        {"input": [{"type": "function_call", "call_id": "x", "name": "f", "arguments": "{}"}]},
        "function_call_output",
    ),
    ({"input": [{"type": "reasoning", "encrypted_content": "x"}]}, "encrypted_content"),
    ({"input": [{"type": "reasoning", "content": 1}]}, "input.0.content"),
    ({"input": "\ud800"}, "surrogate"),
    ({"max_output_tokens": 0}, "max_output_tokens"),
    ({"max_output_tokens": 10**400}, "max_new_tokens"),
    ({"temperature": -1}, "temperature"),
    ({"top_p": 1.5}, "top_p"),
    ({"top_logprobs": 21}, "top_logprobs"),
    ({"tools": [{"type": "web_search"}]}, "'web_search'"),
    ({"tools": [{"type": "custom", "name": "x"}]}, "'custom'"),
    ({"tools": [{"type": "function"}]}, "tools.0.name"),
    ({"tools": [{**TOOL, "defer_loading": True}]}, "defer_loading"),
    ({"tools": [TOOL], "tool_choice": {"type": "allowed_tools"}}, "'allowed_tools'"),
    ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "x"}}, "'x'"),
    ({"tool_choice": "some"}, "tool_choice"),
    ({"text": {"format": {"type": "grammar"}}}, "text.format.type"),
    ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
    ({"text": {"verbosity": "low"}}, "text.verbosity"),
    ({"reasoning": {"effort": "huge"}}, "reasoning.effort"),
    ({"reasoning": {"summary": "huge"}}, "reasoning.summary"),
    ({"include": ["file_search_call.results"]}, "file_search_call.results"),
    ({"background": True}, "background"),
    ({"truncation": "some"}, "truncation"),
    ({"conversation": "c"}, "previous_response_id"),
    ({"prompt": {"id": "p"}}, "prompt"),
    ({"metadata": {"a": 1}}, "metadata"),
    ({"metadata": {"a": "x" * 513}}, "metadata"),
    ({"previous_response_id": "resp_x"}, "'resp_x'"),
    ({"temprature": 1}, "temprature"),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("change", "names"), WRONG, ids=[str(i) for i in range(len(WRONG))])
def test_e3_e4_wrong_requests_are_told_what_is_wrong(
    server: RunningServer, change: dict[str, Any], names: str, stream: bool
) -> None:
    given = json.dumps({"model": "m", "input": "hi", **change, "stream": stream})
    headers = {"content-type": "application/json"}
    answer = httpx.post(server.url + "/v1/responses", content=given, headers=headers, timeout=30)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error.keys() >= {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error" and isinstance(error["code"], str)
    assert names in error["message"]


def test_errors_by_class(client: openai.OpenAI, server: RunningServer) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.responses.create(model="other", input="hi")
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as long:
        client.responses.create(model="m", input="x" * 9000)
    assert long.value.code == "context_length_exceeded"
    with pytest.raises(openai.InternalServerError):
        client.responses.create(model="m", input="fail")
    replay = httpx.get(f"{server.url}/v1/responses/x?stream=true", timeout=30)
    assert replay.status_code == 400


def test_c7_a_broken_stream_looks_broken(server: RunningServer) -> None:
    events = events_of(post(server, input="fail", stream=True))
    error, failed = events[-2:]
    assert error["type"] == "error" and error["code"] == "numerical_error"
    assert failed["type"] == "response.failed" and failed["response"]["status"] == "failed"
    assert failed["response"]["error"]["code"] == "server_error"
    assert not any(e["type"].endswith((".done", "completed", "incomplete")) for e in events)


def test_null_is_not_given(client: openai.OpenAI, server: RunningServer) -> None:
    names = ("instructions", "tools", "tool_choice", "temperature", "text", "reasoning", "store")
    more = ("metadata", "truncation", "include", "background", "max_output_tokens", "top_logprobs")
    answer = post(server, input="hi", **dict.fromkeys([*names, *more, "previous_response_id"]))
    assert answer.status_code == 200 and answer.json()["status"] == "completed"
    kept = client.responses.retrieve(answer.json()["id"])
    assert kept.store is True  # type: ignore[attr-defined]
