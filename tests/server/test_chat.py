"""/v1/chat/completions: the answer and its events, the prompt, what is refused."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from api_models import answering
from chat_requests import (
    PATH,
    TOOLS,
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
from server_harness import PATIENCE_S, RunningServer, serving

from rtlang.errors import ChatTemplateError
from rtlang.runtime.byte_tokenizer import BOS, ByteTokenizer
from rtlang.testing import Reply, ScriptedModel


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with chat_serving("none") as running:
        yield running


@pytest.fixture(scope="module")
def thinker() -> Iterator[RunningServer]:
    with chat_serving("qwen3") as running:
        yield running


# -- the answer -----------------------------------------------------------------------------


def test_an_answer_has_openais_fields(server: RunningServer) -> None:
    found = answer(server)
    assert found["object"] == "chat.completion"
    assert found["model"] == "m"
    assert found["id"].startswith("chatcmpl-")
    [choice] = found["choices"]
    assert choice == {
        "index": 0,
        "message": {"role": "assistant", "content": "Hello there.", "refusal": None},
        "logprobs": None,
        "finish_reason": "stop",
        "matched_stop": 256,
    }
    usage = found["usage"]
    assert usage["completion_tokens"] == len("Hello there.") + 1  # EOS is one
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    again = answer(server)["usage"]
    assert again["prompt_tokens_details"] == {"cached_tokens": usage["prompt_tokens"] - 1}


def test_c3_each_choice_opens_once_with_its_role(server: RunningServer) -> None:
    chunks = events(server, n=2)
    for index in (0, 1):
        deltas = [c["delta"] for c in choices(chunks, index)]
        assert deltas[0] == {"role": "assistant", "content": ""}
        assert not any("role" in delta for delta in deltas[1:])
        assert joined(chunks, index=index) == "Hello there."
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in chunks}) == 1


def test_c4_usage_comes_only_when_asked_for_and_is_that_of_the_whole(
    server: RunningServer,
) -> None:
    assert not any("usage" in chunk for chunk in events(server, n=2))
    chunks = events(server, n=2, stream_options={"include_usage": True})
    assert all(chunk["usage"] is None for chunk in chunks[:-1])
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"] == answer(server, n=2)["usage"]


def test_c4_running_usage_grows_to_the_totals(server: RunningServer) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = events(server, stream_options=options)
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[0] >= 1
    assert chunks[-2]["usage"] == chunks[-1]["usage"] == answer(server)["usage"]


def test_c5_each_choice_ends_once_with_its_own_reason() -> None:
    lengths = iter((3, 9, 30))
    with serving(ScriptedModel(lambda _: "x" * next(lengths))) as running:
        chunks = events(running, n=3, max_tokens=12)
    ends = {i: [c["finish_reason"] for c in choices(chunks, i)] for i in range(3)}
    assert all(reason is None for reasons in ends.values() for reason in reasons[:-1])
    assert sorted(reasons[-1] for reasons in ends.values()) == ["length", "stop", "stop"]
    lengths_seen = sorted(len(joined(chunks, index=i)) for i in range(3))
    assert lengths_seen == [3, 9, 12]


@pytest.mark.parametrize("stream", [False, True])
def test_c5_a_stop_string_is_told(server: RunningServer, stream: bool) -> None:
    if stream:
        chunks = events(server, stop="the")
        assert joined(chunks) == "Hello "
        last = choices(chunks)[-1]
    else:
        last = answer(server, stop=["the", "zz"])["choices"][0]
        assert last["message"]["content"] == "Hello "
    assert (last["finish_reason"], last["matched_stop"]) == ("stop", "the")


def test_c7_a_failure_in_a_stream_is_an_error_event_and_no_success(server: RunningServer) -> None:
    reply = post(server, messages=user("fail"), stream=True)
    assert reply.status_code == 200
    *chunks, last = [json.loads(x.removeprefix("data: ")) for x in reply.text.split("\n\n") if x]
    assert last["error"]["code"] == "numerical_error"
    assert last["error"]["type"] == "server_error"
    assert chunks
    assert all(c["finish_reason"] is None for chunk in chunks for c in chunk["choices"])
    assert "[DONE]" not in reply.text
    whole = post(server, messages=user("fail"))
    assert whole.status_code == 500
    assert whole.json()["error"]["code"] == "numerical_error"


def test_c7_an_aborted_stream_ends_with_an_error(server: RunningServer) -> None:
    body = {"messages": user("endless"), "stream": True, "rid": "mine"}
    with httpx.stream("POST", server.url + PATH, json=body, timeout=PATIENCE_S) as reply:
        lines = reply.iter_lines()
        next(lines)
        httpx.post(server.url + "/abort_request", json={"rid": "mine"})
        rest = [line for line in lines if line]
    assert json.loads(rest[-1].removeprefix("data: "))["error"]["code"] == "aborted"
    assert not any('"finish_reason":"' in line for line in rest)


def test_b6_a_rid_that_runs_is_refused(server: RunningServer) -> None:
    body = {"messages": user("endless"), "stream": True, "rid": "one"}
    with httpx.stream("POST", server.url + PATH, json=body, timeout=PATIENCE_S) as reply:
        lines = reply.iter_lines()
        next(lines)
        assert refused(server, rid="one")["code"] == "duplicate_request_id"


# -- the prompt -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content",
    [
        "red fox",
        [{"type": "text", "text": "red "}, {"type": "text", "text": "fox"}],
        [{"type": "text", "text": "red"}, {"type": "text", "text": " fox"},
         {"type": "text", "text": ""}],
    ],
)  # fmt: skip
def test_e1_text_parts_are_joined_in_order(server: RunningServer, content: Any) -> None:
    assert message(server, content)["content"] == "A fox."


def test_e1_no_part_is_empty_text_and_another_kind_is_named(server: RunningServer) -> None:
    assert message(server, [])["content"] == "Nothing."
    part = {"type": "image_url", "image_url": {"url": "data:,"}}
    error = refused(server, messages=user([{"type": "text", "text": "x"}, part]))
    assert "image_url" in error["message"]
    assert error["param"] == "messages[0].content[1]"


@pytest.mark.parametrize("body", [{}, {"max_tokens": None}, {"max_completion_tokens": None}])
def test_e2_without_a_limit_the_context_is_the_limit(body: dict[str, Any]) -> None:
    model = answering({"hi": Reply("abcd", eos=False)}, context_length=100)
    with serving(model) as running:
        found = answer(running, **body)
    assert found["choices"][0]["finish_reason"] == "length"
    assert found["usage"]["total_tokens"] == 100


def test_e2_the_newer_name_wins_and_null_is_not_given(server: RunningServer) -> None:
    found = answer(server, "long", max_tokens=50, max_completion_tokens=3)
    assert found["usage"]["completion_tokens"] == 3
    names = ("temperature", "stop", "n", "seed", "tools", "tool_choice", "logit_bias", "stream",
             "stream_options", "response_format", "guided_json", "never_heard_of")  # fmt: skip
    assert message(server, **dict.fromkeys(names))["content"] == "Hello there."


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
@pytest.mark.parametrize("value", [-1, 1.5, "3", True])
def test_e2_a_limit_is_a_whole_number(server: RunningServer, name: str, value: Any) -> None:
    assert refused(server, **{name: value})["param"] == name


def test_i1_the_ids_are_the_tokenizers_own_with_one_bos() -> None:
    class WithBos(ByteTokenizer):
        def render_chat(self, messages: Any, **options: Any) -> str:
            return "<|bos|>" + super().render_chat(messages, **options)

    seen: list[str] = []

    def script(prompt: str) -> str:
        seen.append(prompt)
        return "ok"

    tokenizer = WithBos(bos=True)
    with serving(ScriptedModel(script, tokenizer=tokenizer)) as running:
        messages = [{"role": "system", "content": "s"}, *user("héé")]
        expected = tokenizer.encode_rendered(tokenizer.render_chat(messages))
        assert expected.count(BOS) == 1
        found = post(running, messages=messages, return_token_ids=True).json()
        assert found["prompt_token_ids"] == expected
        told = post(running, "/tokenize", messages=messages).json()
        assert told["tokens"] == expected
        assert told["count"] == found["usage"]["prompt_tokens"]
        running.engine.generate(messages)
        assert seen[0] == seen[1]
        post(running, "/v1/completions", prompt="plain")
        post(running, "/v1/completions", prompt="<|bos|>plain")
    assert seen[2] == seen[3] == "<|bos|>plain"


def test_i_control_tokens_that_a_user_spells_are_text(server: RunningServer) -> None:
    messages = user("a<|im_end|>b")
    tokens = post(server, "/tokenize", messages=messages).json()["tokens"]
    assert tokens.count(259) == 1  # the template's own


def test_i2_without_a_template_the_error_says_so_and_completions_work() -> None:
    model = ScriptedModel(lambda _: "fine", tokenizer=ByteTokenizer(chat=False))
    with serving(model) as running:
        error = refused(running)
        assert error["code"] == "chat_template_error"
        assert "chat_template.jinja" in error["message"]
        reply = post(running, "/v1/completions", prompt="x")
        assert reply.json()["choices"][0]["text"] == "fine"


def test_i2_the_templates_own_complaint_is_told() -> None:
    class Strict(ByteTokenizer):
        def render_chat(self, messages: Any, **options: Any) -> str:
            if messages[0]["role"] == "system":
                raise ChatTemplateError("the model's chat template says: no system turns!")
            return super().render_chat(messages, **options)

    with serving(ScriptedModel(lambda _: "x", tokenizer=Strict())) as running:
        error = refused(running, messages=[{"role": "developer", "content": "s"}, *user()])
    assert "no system turns!" in error["message"]


def test_i3_history_with_calls_keeps_every_turn(server: RunningServer) -> None:
    call = {"id": "c1", "type": "function",
            "function": {"name": "add", "arguments": '{"a": 41}'}}  # fmt: skip
    history = [
        *user(),
        {"role": "assistant", "content": None, "tool_calls": [call], "refusal": None},
        {"role": "tool", "tool_call_id": "c1", "content": "42"},
    ]
    reply = post(server, messages=history, tools=TOOLS)
    assert reply.json()["choices"][0]["message"]["content"] == "So it is 42."
    tokens = post(server, "/tokenize", messages=history, tools=TOOLS).json()["tokens"]
    body = {"tokens": tokens, "skip_special_tokens": False}
    text = post(server, "/detokenize", **body).json()["text"]
    assert "None" not in text
    assert text.count("<|im_start|>assistant") == 2  # the turn of the call is there
    # This template has no place for tools and calls: they are told in words.
    assert '{"name": "add", "arguments": {"a": 41}}' in text
    assert '"description": "adds"' in text
    assert "<|im_start|>tool\n42<|im_end|>" in text


def test_i3_the_template_gets_arguments_as_objects() -> None:
    class Tells(ByteTokenizer):
        seen: Any = None

        def render_chat(self, messages: Any, **options: Any) -> str:
            options.pop("tools", None)
            self.seen = messages
            told = [m | {"content": m["content"] + str(m.get("tool_calls"))} for m in messages]
            return super().render_chat(told, **options)

    tokenizer = Tells()
    function = {"name": "add", "arguments": '{"a": {"b": [1]}}'}
    turn = {"role": "assistant", "tool_calls": [{"id": "x", "function": function}]}
    with serving(ScriptedModel(lambda _: "ok", tokenizer=tokenizer)) as running:
        assert post(running, messages=[*user(), turn, *user()]).status_code == 200
        assert tokenizer.seen[1]["tool_calls"][0]["function"]["arguments"] == {"a": {"b": [1]}}
        assert tokenizer.seen[1]["content"] == ""


def test_the_final_message_is_continued(server: RunningServer) -> None:
    messages = [*user(), {"role": "assistant", "content": "He"}]
    body: dict[str, Any] = {"messages": messages, "max_tokens": 1}
    body["continue_final_message"] = True
    body |= {"return_token_ids": True, "add_generation_prompt": False}
    ids = post(server, **body).json()["prompt_token_ids"]
    assert bytes(ids[-2:]) == b"He"


def test_ids_are_a_prompt_too(server: RunningServer) -> None:
    ids = post(server, "/tokenize", messages=user()).json()["tokens"]
    reply = post(server, input_ids=ids)
    assert reply.json()["choices"][0]["message"]["content"] == "Hello there."
    assert refused(server, input_ids=ids)["param"] == "input_ids"
    assert refused(server, messages=None)["param"] == "messages"


def test_variables_reach_the_template(thinker: RunningServer) -> None:
    reply = post(thinker, messages=user(), reasoning_effort="low", return_token_ids=True)
    ids = reply.json()["prompt_token_ids"]
    assert b"effort: low" in bytes(i for i in ids if i < 256)
    for name in ("messages", "self", "tools"):
        assert refused(thinker, chat_template_kwargs={name: 1})["param"] == "chat_template_kwargs"
    assert refused(thinker, chat_template_kwargs={"colour": 1})["param"] == "colour"


def test_truncation_keeps_the_end_of_the_prompt(server: RunningServer) -> None:
    found = answer(server, truncate_prompt_tokens=30, return_token_ids=True, max_tokens=1)
    assert found["usage"]["prompt_tokens"] == min(30, len(found["prompt_token_ids"]))
    short = post(server, messages=user("two"), truncate_prompt_tokens=5, return_token_ids=True,
                 max_tokens=0)  # fmt: skip
    assert bytes(short.json()["prompt_token_ids"]) == b"tant\n"
    assert refused(server, truncate_prompt_tokens=0)["param"] == "truncate_prompt_tokens"


# -- what is refused ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": user(7)}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": "x", "colour": 1}]}, "messages[0].colour"),
        ({"messages": [{"role": "user", "tool_calls": []}]}, "messages[0].tool_calls"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": -1}, "temperature"),
        ({"top_p": 1.5}, "top_p"),
        ({"n": 0}, "n"),
        ({"n": 100_000}, "n"),
        ({"logit_bias": {"abc": 1}}, "logit_bias"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "logprobs"),
        ({"stop": [1]}, "stop.str"),
        ({"no_such_field": 1}, "no_such_field"),
        ({"lora_path": "x"}, "lora_path"),
        ({"functions": []}, "functions"),
        ({"modalities": ["audio"]}, "modalities"),
        ({"min_tokens": 5, "max_tokens": 2}, "min_tokens"),
        ({"messages": user("x" * 9000)}, None),
    ],
)
def test_e3_e4_what_is_wrong_is_refused_before_the_first_byte(
    server: RunningServer, body: dict[str, Any], param: str | None
) -> None:
    assert refused(server, **body)["param"] == param


def test_e3_a_body_that_is_no_json(server: RunningServer) -> None:
    headers = {"content-type": "application/json"}
    for content in (b"{", b'{"messages": ', b"\xff", b"[]", b"7", b"null", b"", b"[" * 100_000):
        reply = httpx.post(server.url + PATH, content=content, headers=headers)
        assert reply.status_code == 400, (content[:20], reply.text)
        assert reply.json()["error"]["type"] == "invalid_request_error"


def nested(size: int, begin: str = "[", end: str = "]") -> str:
    return begin * size + "1" + end * size


def hostile(fields: str, messages: str = '{"role": "user", "content": "hi"}') -> str:
    return f'{{"messages": [{messages}], {fields}}}'


def with_arguments(text: str) -> str:
    """A chat whose history has a call with these arguments, as JSON text."""
    call = {"function": {"name": "f", "arguments": text}}
    return json.dumps({"messages": [*user(), {"role": "assistant", "tool_calls": [call]}]})


def with_schema(text: str) -> str:
    inner = f'{{"type": "json_schema", "json_schema": {{"schema": {text}}}}}'
    return hostile(f'"response_format": {inner}')


HOSTILE = [
    hostile('"n": 1', '{"role": "user", "content": "\\ud800"}'),
    hostile('"\\ud800": 1'),
    hostile('"n": 1', '{"role": "\\udc00", "content": ""}'),
    hostile('"temperature": NaN'),
    hostile('"temperature": 1e999'),
    hostile('"seed": 1' + "0" * 400),
    hostile('"seed": 1' + "0" * 5000),
    hostile('"n": -1' + "0" * 400),
    hostile('"stop": ["\\ud800"]'),
    hostile('"logit_bias": {"\\ud800": 1}'),
    hostile('"tools": ' + nested(900)),
    hostile('"chat_template_kwargs": ' + nested(300, '{"a":', "}")),
    with_arguments('{"a": ' + nested(5000) + "}"),
    with_arguments('{"a": ' + nested(300) + "}"),
    with_arguments('{"\\ud800": 1}'),
    with_schema('{"enum": ["\\ud800"]}'),
    with_schema('{"const": 1' + "0" * 5000 + "}"),
]


@pytest.mark.parametrize("content", HOSTILE, ids=range(len(HOSTILE)))
def test_e3_hostile_bodies_get_an_error_that_can_be_told(
    server: RunningServer, content: str
) -> None:
    headers = {"content-type": "application/json"}
    reply = httpx.post(server.url + PATH, content=content, headers=headers, timeout=PATIENCE_S)
    assert reply.status_code == 400, reply.text
    assert reply.json()["error"]["message"]


def test_e3_of_a_key_that_occurs_twice_the_last_value_counts(server: RunningServer) -> None:
    body = '{"max_tokens": 3, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}'
    headers = {"content-type": "application/json"}
    reply = httpx.post(server.url + PATH, content=body, headers=headers)
    assert reply.json()["choices"][0]["message"]["content"] == "He"


def test_e5_an_unknown_model_is_not_found(server: RunningServer) -> None:
    error = refused(server, status=404, model="no-such-model")
    assert error["code"] == "model_not_found"
    assert "'m'" in error["message"]
    assert answer(server, model="m")["model"] == "m"


def test_fields_without_effect_are_accepted(server: RunningServer) -> None:
    fields = {"user": "u", "store": True, "metadata": {"a": "b"}, "service_tier": "auto",
              "prediction": {"type": "content", "content": "x"}, "modalities": ["text"],
              "prompt_cache_key": "k", "safety_identifier": "s"}  # fmt: skip
    assert message(server, **fields)["content"] == "Hello there."


# -- log-probabilities ----------------------------------------------------------------------


def test_logprobs_have_the_chat_shape_and_the_stream_has_the_same() -> None:
    def logits(tokens: list[int]) -> dict[int, float]:
        said = bytes(t for t in tokens if t < 256)
        end = said.rpartition(b"assistant\n")[2]
        following = {b"": 0xC3, b"\xc3": 0xA9}.get(end, 256)
        return {following: 3.0, ord("~"): 0.0}

    with serving(ScriptedModel(logits=logits)) as running:
        body = {"logprobs": True, "top_logprobs": 2, "temperature": 0}
        found = answer(running, **body)["choices"][0]
        chunks = events(running, **body)
        bare = answer(running, logprobs=True, temperature=0)["choices"][0]["logprobs"]["content"]
        prompts = answer(running, prompt_logprobs=1, max_tokens=0)
    assert found["message"]["content"] == "é"
    entries = found["logprobs"]["content"]
    assert [entry["bytes"] for entry in entries] == [[0xC3], [0xA9]]  # and not the EOS
    for entry in entries:
        assert entry["logprob"] == pytest.approx(-0.0486, abs=1e-3)
        assert [top["bytes"] for top in entry["top_logprobs"]] == [entry["bytes"], [ord("~")]]
    streamed = [e for c in choices(chunks) for e in (c["logprobs"] or {"content": []})["content"]]
    assert streamed == entries
    assert joined(chunks) == "é"
    assert [entry["top_logprobs"] for entry in bare] == [[], []]
    known = prompts["prompt_logprobs"]
    assert known[0] is None
    assert len(known) == prompts["usage"]["prompt_tokens"]
    assert prompts["usage"]["completion_tokens"] == 0


def test_many_streams_at_once_do_not_mix(server: RunningServer) -> None:
    texts: dict[int, str] = {}

    def one(number: int) -> None:
        text = ("hi", "red fox", "json")[number % 3]
        texts[number] = joined(events(server, text))

    threads = [threading.Thread(target=one, args=(i,)) for i in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    expected = ("Hello there.", "A fox.", '{"x": 1}')
    assert texts == {i: expected[i % 3] for i in range(12)}
