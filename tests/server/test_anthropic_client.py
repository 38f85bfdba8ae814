"""The official anthropic client against /v1/messages."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import anthropic
import pytest
from anthropic.types import MessageParam, ToolParam
from api_models import ThinkingTokenizer, answering, call_text
from pydantic import BaseModel
from server_harness import RunningServer, serving

from rtlang.errors import NumericalError
from rtlang.testing.scripted import Reply

TOOLS: list[ToolParam] = [
    {
        "name": "weather",
        "description": "the weather in a city",
        "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
    }
]
ANSWERS: dict[str, Reply | str] = {
    "hi": "Hello there.",
    "weather?": "Let me see. " + call_text("weather", city="Oslo \u00f8"),
    "rainy": "Take an umbrella.",
    "json": '{"name": "Ann", "age": 7}',
    "think": "<think>\nhm\n</think>\n\nYes.",
    "fail": Reply(error=NumericalError("NaN in the logits"), delay_s=0.02),
}


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    model = answering(ANSWERS, tokenizer=ThinkingTokenizer())
    with serving(model, served_model_name="m", reasoning_parser="qwen3") as running:
        yield running


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server.url, api_key="key", max_retries=0) as made:
        yield made


def user(text: str) -> list[MessageParam]:
    return [{"role": "user", "content": text}]


def test_text(client: anthropic.Anthropic) -> None:
    message = client.messages.create(
        model="m", max_tokens=50, messages=user("hi"), system="be kind", metadata={"user_id": "u"}
    )
    block = message.content[0]
    assert block.type == "text" and block.text == "Hello there."
    assert message.stop_reason == "end_turn" and message.usage.output_tokens == 13
    assert message._request_id


def test_a_stream_adds_up_to_the_message(client: anthropic.Anthropic) -> None:
    with client.messages.stream(model="m", max_tokens=50, messages=user("hi")) as stream:
        texts = list(stream.text_stream)
        final = stream.get_final_message()
    assert len(texts) > 3 and "".join(texts) == "Hello there."
    whole = client.messages.create(model="m", max_tokens=50, messages=user("hi"))
    assert [b.to_dict() for b in final.content] == [b.to_dict() for b in whole.content]
    assert final.usage.output_tokens == whole.usage.output_tokens


def test_the_asynchronous_client(server: RunningServer) -> None:
    async def run() -> str:
        async with (
            anthropic.AsyncAnthropic(base_url=server.url, api_key="key") as client,
            client.messages.stream(model="m", max_tokens=50, messages=user("hi")) as stream,
        ):
            return await stream.get_final_text()

    assert asyncio.run(run()) == "Hello there."


@pytest.mark.parametrize("streamed", [False, True])
def test_e6_a_round_trip_with_a_tool(client: anthropic.Anthropic, streamed: bool) -> None:
    messages = user("weather?")
    given: dict[str, Any] = {"model": "m", "max_tokens": 500, "tools": TOOLS}
    if streamed:
        with client.messages.stream(messages=messages, **given) as stream:
            message: anthropic.types.Message = stream.get_final_message()
    else:
        message = client.messages.create(messages=messages, **given)
    assert message.stop_reason == "tool_use"
    text, use = message.content
    assert text.type == "text" and text.text.strip() == "Let me see."
    assert use.type == "tool_use" and use.name == "weather" and use.input == {"city": "Oslo \u00f8"}
    result: Any = {"type": "tool_result", "tool_use_id": use.id}
    result["content"] = [{"type": "text", "text": "rainy"}]
    messages += _back(message)
    messages.append({"role": "user", "content": [result]})
    answer = client.messages.create(messages=messages, **given).content[0]
    assert answer.type == "text" and answer.text == "Take an umbrella."


def test_e7_a_forced_tool(client: anthropic.Anthropic) -> None:
    message = client.messages.create(
        model="m",
        max_tokens=500,
        messages=user("weather?"),
        tools=TOOLS,
        tool_choice={"type": "none"},
    )
    assert [block.type for block in message.content] == ["text"]
    with pytest.raises(anthropic.BadRequestError, match="tool_choice"):
        client.messages.create(
            model="m",
            max_tokens=500,
            messages=user("hi"),
            tools=TOOLS,
            tool_choice={"type": "tool", "name": "other"},
        )


class Person(BaseModel):
    name: str
    age: int


def test_structured_output(client: anthropic.Anthropic) -> None:
    message = client.messages.parse(
        model="m", max_tokens=100, messages=user("json"), output_format=Person
    )
    assert message.parsed_output == Person(name="Ann", age=7)
    with client.messages.stream(
        model="m", max_tokens=100, messages=user("json"), output_format=Person
    ) as stream:
        assert stream.get_final_message().parsed_output == Person(name="Ann", age=7)


def test_structured_output_is_enforced(client: anthropic.Anthropic) -> None:
    schema = {"type": "object", "properties": {"ok": {"const": "yes"}}, "required": ["ok"]}
    message = client.messages.create(
        model="m",
        max_tokens=300,
        messages=user("json"),
        thinking={"type": "disabled"},
        output_config={
            "format": {"type": "json_schema", "schema": {**schema, "additionalProperties": False}}
        },
    )
    block = message.content[0]
    assert block.type == "text" and '"yes"' in block.text and "Ann" not in block.text


def test_thinking(client: anthropic.Anthropic) -> None:
    given: dict[str, Any] = {"model": "m", "max_tokens": 2000, "messages": user("think")}
    given["thinking"] = {"type": "enabled", "budget_tokens": 1024}
    message = client.messages.create(**given)
    thought, text = message.content
    assert thought.type == "thinking" and thought.thinking.strip() == "hm" and thought.signature
    assert text.type == "text" and text.text.strip() == "Yes."
    details = message.usage.output_tokens_details
    assert details is not None and details.thinking_tokens >= 2
    with client.messages.stream(**given) as stream:
        final = stream.get_final_message()
    assert [b.to_dict() for b in final.content] == [b.to_dict() for b in message.content]
    # What was thought goes back as it came, into the template's own place.
    messages = [*user("think"), *_back(message), *user("hi")]
    count = client.messages.count_tokens(model="m", messages=messages)
    bare: list[MessageParam] = [*user("think"), {"role": "assistant", "content": text.text}]
    without = client.messages.count_tokens(model="m", messages=[*bare, *user("hi")])
    marks = len("<think></think>")
    assert count.input_tokens == without.input_tokens + len(thought.thinking) + marks


def _back(message: anthropic.types.Message) -> list[MessageParam]:
    return [{"role": "assistant", "content": message.content}]


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"system": "be kind"},
        {"tools": TOOLS},
        {"tools": TOOLS, "tool_choice": {"type": "any"}},
        {"thinking": {"type": "disabled"}},
        {"output_config": {"effort": "low"}},
    ],
    ids=["plain", "system", "tools", "forced", "not thinking", "effort"],
)
def test_counted_tokens_are_those_that_are_used(
    client: anthropic.Anthropic, more: dict[str, Any]
) -> None:
    given: dict[str, Any] = {"model": "m", "messages": user("hi"), **more}
    count = client.messages.count_tokens(**given).input_tokens
    usage = client.messages.create(max_tokens=5, **given).usage
    assert count == usage.input_tokens + (usage.cache_read_input_tokens or 0)


def test_errors_by_class(client: anthropic.Anthropic, server: RunningServer) -> None:
    with pytest.raises(anthropic.NotFoundError) as missing:
        client.messages.create(model="other", max_tokens=5, messages=user("hi"))
    assert missing.value.type == "not_found_error" and missing.value.request_id
    with pytest.raises(anthropic.BadRequestError, match="image"):
        image: Any = {"type": "image", "source": {"type": "url", "url": "http://x"}}
        client.messages.create(
            model="m", max_tokens=5, messages=[{"role": "user", "content": [image]}]
        )
    with pytest.raises(anthropic.InternalServerError):
        client.messages.create(model="m", max_tokens=4000, messages=user("fail"))


def test_c7_a_broken_stream_raises(client: anthropic.Anthropic) -> None:
    texts: list[str] = []
    with (
        pytest.raises(anthropic.APIStatusError, match="api_error"),
        client.messages.stream(model="m", max_tokens=500, messages=user("fail")) as stream,
    ):
        for text in stream.text_stream:
            texts.append(text)
    assert texts
