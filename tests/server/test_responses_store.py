"""/v1/responses: conversations that go on, and what the server keeps of them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from api_models import answering, call_text
from openai.types.responses import FunctionToolParam, ResponseFunctionToolCall
from server_harness import RunningServer, serving

from rtlang.errors import NotFound
from rtlang.runtime.server.keys import Principal
from rtlang.runtime.server.responses_request import ResponseBody, chat_ask, read_input
from rtlang.runtime.server.responses_store import ResponseStore, StoredResponse
from rtlang.testing.scripted import Reply

TOOL: FunctionToolParam = {
    "type": "function",
    "name": "weather",
    "description": "the weather in a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": False,
}
ANSWERS: dict[str, Reply | str] = {
    "hi": "Hello there.",
    "weather?": f"{call_text('weather', city='Oslo')}\n{call_text('weather', city='Rome')}",
    "rainy": "Take an umbrella.",
    "long": Reply("a", eos=False),
}


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with serving(answering(ANSWERS), served_model_name="m", reasoning_parser="none") as running:
        yield running


@pytest.fixture(scope="module")
def slow() -> Iterator[RunningServer]:
    """A token every few milliseconds: nothing ends by itself here."""
    model = answering(ANSWERS, step_s=0.005)
    with serving(model, served_model_name="m", reasoning_parser="none") as running:
        yield running


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.url + "/v1", api_key="key", max_retries=0) as made:
        yield made


def post(server: RunningServer, **given: Any) -> httpx.Response:
    return httpx.post(server.url + "/v1/responses", json={"model": "m", **given}, timeout=30)


# -- the store ------------------------------------------------------------------------------


def test_a_conversation_goes_on(client: openai.OpenAI, server: RunningServer) -> None:
    first = client.responses.create(model="m", input="weather?", instructions="one", tools=[TOOL])
    outputs: list[Any] = [
        {"type": "function_call_output", "call_id": item.call_id, "output": "rainy"}
        for item in first.output
        if isinstance(item, ResponseFunctionToolCall)
    ]
    with pytest.raises(openai.BadRequestError, match="no function_call_output"):
        client.responses.create(model="m", input="hi", previous_response_id=first.id)
    second = client.responses.create(
        model="m", input=outputs, previous_response_id=first.id, tools=[TOOL]
    )
    assert second.output_text == "Take an umbrella." and second.previous_response_id == first.id
    third = client.responses.create(model="m", input="hi", previous_response_id=second.id)
    assert third.output_text == "Hello there."
    # Instructions do not carry over: the whole of it, sent at once, has as many tokens.
    items: list[Any] = [{"role": "user", "content": "weather?"}]
    items += [item.to_dict() for item in first.output] + outputs
    items += [item.to_dict() for item in second.output] + [{"role": "user", "content": "hi"}]
    at_once = client.responses.create(model="m", input=items).usage
    assert third.usage is not None and at_once is not None
    assert third.usage.input_tokens == at_once.input_tokens


def test_responses_are_kept_and_deleted(client: openai.OpenAI) -> None:
    made = client.responses.create(model="m", input="hi")
    assert client.responses.retrieve(made.id).to_dict() == made.to_dict()
    with client.responses.stream(model="m", input="hi") as stream:
        streamed = stream.get_final_response()
    assert client.responses.retrieve(streamed.id).output_text == "Hello there."
    with pytest.raises(openai.BadRequestError, match="finished"):
        client.responses.cancel(made.id)
    client.responses.delete(made.id)
    for call in (client.responses.retrieve, client.responses.delete, client.responses.cancel):
        with pytest.raises(openai.NotFoundError, match="deleted"):
            call(made.id)
    with pytest.raises(openai.BadRequestError) as gone:
        client.responses.create(model="m", input="hi", previous_response_id=made.id)
    assert gone.value.param == "previous_response_id"
    unstored = client.responses.create(model="m", input="hi", store=False)
    with pytest.raises(openai.NotFoundError, match="store=false"):
        client.responses.retrieve(unstored.id)


def test_a_running_response_can_be_cancelled(slow: RunningServer) -> None:
    with openai.OpenAI(base_url=slow.url + "/v1", api_key="key", max_retries=0) as client:
        stream = client.responses.create(model="m", input="long", stream=True)
        created = next(stream)
        assert created.type == "response.created"
        assert client.responses.retrieve(created.response.id).status == "in_progress"
        cancelled = client.responses.cancel(created.response.id)
        assert cancelled.status == "cancelled" and cancelled.id == created.response.id
        assert [event.type for event in stream][-2:] == ["error", "response.failed"]
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(created.response.id)


def test_b3_a_client_that_leaves_ends_its_response(slow: RunningServer) -> None:
    running = slow.frontend.app.state.responses.running
    given = {"model": "m", "input": "long", "stream": True}
    with httpx.stream("POST", slow.url + "/v1/responses", json=given, timeout=30) as answer:
        events = answer.iter_lines()
        assert (answer.status_code, next(events)) == (200, "event: response.created")
        assert slow.state.running and running
    slow.wait_idle()
    assert not running


class _Keys:
    """Two keys, named as they are spelled."""

    def find(self, secret: str | None) -> Principal:
        assert secret in ("one", "two")
        return Principal(name=secret, operator=False)


def test_another_key_finds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model = answering(ANSWERS, step_s=0.005)
    with serving(model, served_model_name="m", reasoning_parser="none") as server:
        monkeypatch.setattr(server.state, "keys", _Keys())
        url = server.url + "/v1"
        with (
            openai.OpenAI(base_url=url, api_key="one", max_retries=0) as one,
            openai.OpenAI(base_url=url, api_key="two", max_retries=0) as two,
        ):
            made = one.responses.create(model="m", input="hi")
            running = one.responses.create(model="m", input="long", stream=True)
            begun = next(running)
            assert begun.type == "response.created"
            for found in (made.id, begun.response.id):
                with pytest.raises(openai.NotFoundError, match="another key"):
                    two.responses.retrieve(found)
                with pytest.raises(openai.NotFoundError):
                    two.responses.cancel(found)
            with pytest.raises(openai.BadRequestError):
                two.responses.create(model="m", input="hi", previous_response_id=made.id)
            with pytest.raises(openai.NotFoundError):
                two.responses.delete(made.id)
            assert one.responses.retrieve(made.id).id == made.id
            one.responses.cancel(begun.response.id)
            assert "response.failed" in [event.type for event in running]


def test_the_store_is_bounded() -> None:
    asyncio.run(_fill_a_store())


async def _fill_a_store() -> None:
    def made(number: int, text: str = "") -> StoredResponse:
        return StoredResponse("k", {"id": f"r{number}"}, [{"content": text}])

    store = ResponseStore(max_responses=2, max_bytes=1000, frontends=3)
    for number in range(2):
        await store.put(made(number))
    await store.get("k", "r0")  # now r1 is the one that was not used for longest
    await store.put(made(2))
    with pytest.raises(NotFound, match="each of its 3 frontends"):
        await store.get("k", "r1")
    await store.put(made(3, "x" * 950))
    for number in (0, 2):
        with pytest.raises(NotFound):
            await store.get("k", f"r{number}")
    await store.put(made(4, "x" * 2000))  # larger than all that is kept
    with pytest.raises(NotFound):
        await store.get("k", "r4")
    await store.put(made(5))
    await store.delete("k", "r5")
    assert not store._stored and store._num_bytes == 0


def test_a_long_conversation_loses_its_start(server: RunningServer) -> None:
    def item(role: str, text: str) -> dict[str, str]:
        return {"role": role, "content": text}

    head = [item("developer", "be kind")]
    turns = [
        item(role, text)
        for letter in "abcd"
        for role, text in (("user", letter * 3000), ("assistant", letter))
    ]
    last = item("user", "hi")
    whole = [*head, *turns, last]
    assert post(server, input=whole).json()["error"]["code"] == "context_length_exceeded"
    found = post(server, input=whole, truncation="auto").json()
    assert found["output"][0]["content"][0]["text"] == "Hello there."
    assert found["truncation"] == "auto"
    fits = post(server, input=[*head, *turns[4:], last]).json()
    assert found["usage"]["input_tokens"] == fits["usage"]["input_tokens"]
    # An answer of that length leaves room for one of the long turns less.
    room = post(server, input=whole, truncation="auto", max_output_tokens=4000).json()
    rest = post(server, input=[*head, *turns[6:], last]).json()
    assert room["usage"]["input_tokens"] == rest["usage"]["input_tokens"]
    # What was dropped is not forgotten, and one turn that is too long is refused.
    after = post(server, input="hi", previous_response_id=found["id"])
    assert after.json()["error"]["code"] == "context_length_exceeded"
    long = post(server, input="x" * 9000, truncation="auto")
    assert long.json()["error"]["code"] == "context_length_exceeded"


# -- the conversation -----------------------------------------------------------------------


def test_items_of_the_assistant_make_one_turn() -> None:
    call = {"type": "function_call", "id": "fc", "name": "f", "arguments": "{}"}
    messages = read_input(
        [
            {"role": "developer", "content": "be kind"},
            {"role": "user", "content": [{"type": "input_text", "text": t} for t in ("a", "b")]},
            {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "hm"}]},
            {
                "type": "message",
                "role": "assistant",
                "content": [{"type": "refusal", "refusal": "n"}],
            },
            {**call, "call_id": "1"},
            {**call, "call_id": "2"},
            {"type": "function_call_output", "call_id": "2", "output": "two"},
            {
                "type": "function_call_output",
                "call_id": "1",
                "output": [{"type": "input_text", "text": "one"}],
            },
        ]
    )
    function = {"name": "f", "arguments": "{}"}
    assert messages == [
        {"role": "developer", "content": "be kind"},
        {"role": "user", "content": "ab"},
        {
            "role": "assistant",
            "content": "n",
            "reasoning_content": "hm",
            "tool_calls": [{"id": i, "type": "function", "function": function} for i in "12"],
        },
        {"role": "tool", "tool_call_id": "2", "name": "f", "content": "two"},
        {"role": "tool", "tool_call_id": "1", "name": "f", "content": "one"},
    ]


def test_what_went_before_stays_as_it_is() -> None:
    before = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    after = read_input([{"role": "assistant", "content": "c"}], before)
    assert after[-1]["content"] == "b\n\nc" and before[-1]["content"] == "b"


def test_parameters_have_their_names_here() -> None:
    body = ResponseBody.model_validate(
        {
            "input": "x",
            "max_output_tokens": 7,
            "temperature": 0.5,
            "top_p": None,
            "parallel_tool_calls": False,
            "reasoning": {"effort": "high"},
        }
    )
    ask = chat_ask(body, read_input(body.input))
    assert ask.sampling == {"max_new_tokens": 7, "temperature": 0.5}
    assert ask.chat_template_kwargs == {"reasoning_effort": "high"}
    assert not ask.parallel_tool_calls and ask.options.logprobs is None
