"""The official ``openai`` client, unchanged, on every endpoint of its that we have."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from api_models import ThinkingTokenizer, answering, call_text, saying
from openai import OpenAI
from pydantic import BaseModel
from server_harness import PATIENCE_S, RunningServer, serving

from rtlang.errors import NumericalError
from rtlang.runtime.server.state import Phase
from rtlang.testing import Reply, ScriptedModel

ANSWERS: dict[str, Reply | str] = {
    "hi": "Hello there.",
    "think": "<think>\nhm\n</think>\n\nYes.",
    "weather?": call_text("weather", city="Köln", days=2),
    "both?": f"{call_text('weather', city='A', days=1)}\n{call_text('weather', city='B', days=2)}",
    "sunny": "It is sunny.",
    "point": '{"x": 1, "y": -2}',
    "fail": Reply(error=NumericalError("NaN in the logits"), delay_s=0.02),
}
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city", "days"],
            "additionalProperties": False,
        },
        "strict": True,
    },
}


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    model = answering(ANSWERS, tokenizer=ThinkingTokenizer())
    with serving(model, served_model_name="m", reasoning_parser="qwen3") as running:
        yield running


@pytest.fixture
def client(server: RunningServer) -> Iterator[OpenAI]:
    with connect(server) as made:
        yield made


def connect(server: RunningServer) -> OpenAI:
    return OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=PATIENCE_S)


def user(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


def test_a_chat(client: OpenAI) -> None:
    found = client.chat.completions.create(model="m", messages=user("hi"))
    assert found.choices[0].message.content == "Hello there."
    assert found.choices[0].finish_reason == "stop"
    assert found.usage is not None
    assert found.usage.completion_tokens == 13
    assert found.usage.prompt_tokens_details is not None
    assert found.usage.prompt_tokens_details.cached_tokens is not None
    again = [{"role": "assistant", **found.choices[0].message.model_dump()}]
    history: list[Any] = [*user("x"), *again, *user("hi")]
    assert client.chat.completions.create(model="m", messages=history).choices


def test_a_chat_as_a_stream_with_usage(client: OpenAI) -> None:
    options: Any = {"include_usage": True}
    stream = client.chat.completions.create(
        model="m", messages=user("hi"), n=2, stream=True, stream_options=options
    )
    chunks = list(stream)
    texts = {0: "", 1: ""}
    for chunk in chunks:
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == {0: "Hello there.", 1: "Hello there."}
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 26


def test_the_clients_own_stream_helper(client: OpenAI) -> None:
    with client.chat.completions.stream(
        model="m",
        messages=user("weather?"),
        tools=[WEATHER],
    ) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion()
    assert "tool_calls.function.arguments.delta" in kinds
    assert "tool_calls.function.arguments.done" in kinds
    calls = final.choices[0].message.tool_calls
    assert calls is not None
    assert json.loads(calls[0].function.arguments) == {"city": "Köln", "days": 2}


def test_reasoning(client: OpenAI) -> None:
    message = client.chat.completions.create(model="m", messages=user("think")).choices[0].message
    assert message.content == "Yes."
    assert message.model_extra is not None
    assert message.model_extra["reasoning_content"] == "hm"
    stream = client.chat.completions.create(model="m", messages=user("think"), stream=True)
    deltas = [c.choices[0].delta for c in stream]
    thought = "".join((d.model_extra or {}).get("reasoning_content") or "" for d in deltas)
    assert thought == "hm"


def test_tools_there_and_back(client: OpenAI) -> None:
    messages = user("weather?")
    found = client.chat.completions.create(
        model="m",
        messages=messages,
        tools=[WEATHER],
    ).choices[0]
    assert found.finish_reason == "tool_calls"
    assert found.message.tool_calls
    call = found.message.tool_calls[0]
    assert call.type == "function"
    assert json.loads(call.function.arguments) == {"city": "Köln", "days": 2}
    messages += [found.message, {"role": "tool", "tool_call_id": call.id, "content": "sunny"}]
    final = client.chat.completions.create(
        model="m",
        messages=messages,
        tools=[WEATHER],
    )
    assert final.choices[0].message.content == "It is sunny."


def test_e6_streamed_calls_join_to_those_of_the_whole(client: OpenAI) -> None:
    body: Any = {"model": "m", "messages": user("both?"), "tools": [WEATHER]}
    whole = client.chat.completions.create(**body).choices[0].message.tool_calls
    calls: dict[int, list[str]] = {}
    for chunk in client.chat.completions.create(**body, stream=True):
        for piece in chunk.choices[0].delta.tool_calls or []:
            assert piece.function is not None
            if piece.id is not None:
                calls[piece.index] = [piece.function.name or "", ""]
            calls[piece.index][1] += piece.function.arguments or ""
    assert list(calls.values()) == [[c.function.name, c.function.arguments] for c in whole]


def test_e7_a_named_function_is_called(client: OpenAI) -> None:
    choice: Any = {"type": "function", "function": {"name": "weather"}}
    found = client.chat.completions.create(
        model="m",
        messages=user("weather?"),
        tools=[WEATHER],
        tool_choice=choice,
        parallel_tool_calls=False,
    ).choices[0]
    assert found.message.tool_calls
    assert [c.function.name for c in found.message.tool_calls if c.type == "function"] == [
        "weather"
    ]


def test_e8_a_schema_made_of_a_class(client: OpenAI) -> None:
    class Point(BaseModel):
        x: int
        y: int

    found = client.chat.completions.parse(
        model="m", messages=user("point"), response_format=Point
    ).choices[0]
    assert found.message.parsed == Point(x=1, y=-2)


def test_extra_fields_go_through(client: OpenAI) -> None:
    extra = {"top_k": 1, "min_p": 0.1, "guided_choice": ["Hello", "Bye"], "cache_salt": "s"}
    found = client.chat.completions.create(model="m", messages=user("hi"), extra_body=extra)
    assert found.choices[0].message.content == "Hello"


def test_logprobs() -> None:
    with serving(saying("ok")) as running, connect(running) as client:
        found = client.chat.completions.create(
            model="ScriptedModel", messages=user("hi"), logprobs=True, top_logprobs=2, temperature=0
        ).choices[0]
    assert found.message.content == "ok"
    assert found.logprobs is not None
    assert found.logprobs.content is not None
    assert [entry.token for entry in found.logprobs.content] == ["o", "k"]
    for entry in found.logprobs.content:
        assert entry.bytes == list(entry.token.encode())
        assert [top.token for top in entry.top_logprobs] == [entry.token, "~"]
        assert entry.logprob == pytest.approx(-0.2877, abs=1e-3)


def counting(tokens: list[int]) -> dict[int, float]:
    """After a byte the next one."""
    return {(tokens[-1] + 1) % 250: 1.0, ord("~"): 0.0}


def test_completions() -> None:
    with serving(ScriptedModel(logits=counting)) as running, connect(running) as client:
        found = client.completions.create(
            model="ScriptedModel", prompt="ab", logprobs=1, temperature=0, echo=True, max_tokens=3
        ).choices[0]
        assert found.text == "abcde"
        assert found.logprobs is not None
        assert found.logprobs.tokens == list("abcde")
        assert found.finish_reason == "length"
        stream = client.completions.create(
            model="ScriptedModel", prompt=[97, 98], temperature=0, max_tokens=3, stream=True
        )
        assert "".join(c.choices[0].text for c in stream) == "cde"


def test_models(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["m"]
    assert client.models.retrieve("m").owned_by == "rtlang"
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("other")
    assert caught.value.code == "model_not_found"


def test_e3_errors_by_their_classes(client: OpenAI) -> None:
    create: Any = client.chat.completions.create
    with pytest.raises(openai.NotFoundError) as missing:
        create(model="other", messages=user("hi"))
    assert missing.value.code == "model_not_found"
    assert missing.value.param == "model"
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as wrong:
            create(model="m", messages=user("hi"), temperature=-1, stream=stream)
        assert wrong.value.param == "temperature"
        assert wrong.value.type == "invalid_request_error"
    with pytest.raises(openai.BadRequestError) as long:
        create(model="m", messages=user("x" * 10_000))
    assert long.value.code == "context_length_exceeded"
    with pytest.raises(openai.InternalServerError):
        create(model="m", messages=user("fail"))


def test_c7_a_stream_that_fails_raises(client: OpenAI) -> None:
    stream = client.chat.completions.create(model="m", messages=user("fail"), stream=True)
    with pytest.raises(openai.APIError, match="NaN in the logits"):
        list(stream)


def test_a_server_that_ends_tells_when_to_try_again() -> None:
    with serving(answering({"hi": "x"})) as other, connect(other) as client:
        other.state.phase = Phase.DRAINING
        with pytest.raises(openai.InternalServerError) as caught:
            client.chat.completions.create(model="ScriptedModel", messages=user("hi"))
        other.state.phase = Phase.READY
    assert caught.value.status_code == 503
    assert int(caught.value.response.headers["retry-after"]) >= 1
