"""``OpenAI``: chat programs on our own server's chat completions, and on what others answer."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from fake_server import event, fake_server, head, json_answer
from server_harness import serving

import rtlang as rt
from rtlang.errors import (
    DeadlineExceeded,
    EngineError,
    NotAuthenticated,
    PromptTooLong,
    RateLimited,
    ServerUnreachable,
    Unsupported,
)
from rtlang.testing import Reply, ScriptedModel


@rt.function
def two_turns(s: rt.ProgramState, **options: Any) -> None:
    s += rt.system("Be brief.")
    s += rt.user("How are you?")
    s += rt.assistant(rt.gen("a", **options))
    s += rt.user("Why?")
    s += rt.assistant(rt.gen("b"))


@dataclasses.dataclass
class Point:
    x: int
    y: int


def script(prompt: str) -> str:
    return "because" if "Why?" in prompt else "fine"


def test_a_chat_of_two_turns_caches_the_first() -> None:
    with serving(ScriptedModel(script)) as server:
        with rt.OpenAI("ScriptedModel", base_url=f"{server.url}/v1") as backend:
            assert backend.models() == ["ScriptedModel"]
            run = two_turns.run(backend=backend, temperature=0)
        here = two_turns.run(backend=server.engine, temperature=0)
        stats = server.engine.stats()
    assert (run["a"], run["b"]) == ("fine", "because")
    assert run.messages() == here.messages()
    first, second = run.usage.calls
    assert first.computed_tokens == first.prompt_tokens
    assert second.cached_tokens >= first.prompt_tokens
    assert run.usage.computed_tokens + here.usage.computed_tokens == stats["computed_tokens"]
    assert run.get_meta_info("a")["finish_reason"]["detail"] == "eos"
    assert "token_ids" not in run.get_meta_info("a")
    with pytest.raises(Unsupported, match="token ids"):
        run.token_ids()


def test_forks_stops_siblings_streams_and_types() -> None:
    @rt.function
    def program(s: rt.ProgramState) -> None:
        s += rt.user("go") + rt.assistant(rt.gen("many", n=2, stop="!"))
        forks = s.fork(2)
        forks += lambda i: rt.user(f"branch {i}") + rt.assistant(rt.gen("x", type=Point))
        forks.join()

    def answers(prompt: str) -> str:
        return '{"x": 1, "y": 2}' if "branch" in prompt else "héllo 🙂! not this"

    with (
        serving(ScriptedModel(answers)) as server,
        rt.OpenAI("ScriptedModel", base_url=f"{server.url}/v1") as backend,
    ):
        run = program.run(backend=backend, stream=True)
        assert "".join(run.text_iter("many")) == "héllo 🙂"
        assert run["many"] == ["héllo 🙂", "héllo 🙂"]
        assert run["x"] == [Point(1, 2), Point(1, 2)]


def chatting(*parts: Any) -> rt.Program[Any]:
    @rt.function
    def program(s: rt.ProgramState) -> None:
        for part in parts:
            s += part

    return program


def lookup(name: str) -> str:
    """Look something up."""
    return name


ASKED = rt.user("x")


@pytest.mark.parametrize(
    ("parts", "options", "param"),
    [
        (["text"], {}, "token_ids"),
        ([rt.gen("x")], {}, "token_ids"),
        ([rt.user(rt.gen("x"))], {}, "role"),
        ([ASKED, rt.assistant("So: " + rt.gen("x"))], {}, "prefill"),
        ([ASKED, rt.assistant(rt.gen("x") + rt.gen("y"))], {}, "prefill"),
        ([ASKED, rt.assistant(rt.select("x", ["a", "b"]))], {}, "select"),
        ([ASKED, rt.assistant(rt.select("x", ["a"], choices_method="grammar"))], {}, "choice"),
        ([ASKED, rt.assistant(rt.gen("x", min_p=0.5))], {}, "min_p"),
        ([ASKED, rt.assistant(rt.gen("x", regex="a+"))], {}, "regex"),
        ([ASKED, rt.assistant(rt.gen("x", ebnf='root ::= "a"'))], {}, "ebnf"),
        ([ASKED, rt.assistant(rt.gen("x", type=int))], {}, "regex"),
        ([ASKED, rt.assistant(rt.gen("x", type=Point, whitespace=0))], {}, "whitespace"),
        ([ASKED, rt.assistant(rt.gen("x", return_logprob=True))], {}, "return_logprob"),
        ([ASKED, rt.assistant(rt.gen("x", tools=[lookup]))], {}, "tools"),
        ([ASKED, rt.assistant(rt.gen("x"))], {"top_k": 3}, "top_k"),
        ([ASKED, rt.assistant(rt.gen("x"))], {"priority": 3}, "priority"),
        ([rt.user("x", chat_template_kwargs={"a": 1})], {}, "chat_template_kwargs"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_it_cannot_do_is_refused_at_its_line(parts: Any, options: Any, param: str) -> None:
    with (
        fake_server(lambda path, body: []) as server,
        rt.OpenAI("m", base_url=server.url) as backend,
    ):
        with pytest.raises(Unsupported) as raised:
            chatting(*parts).run(backend=backend, **options)
        with pytest.raises(Unsupported):
            rt.flush_cache(backend)
    assert raised.value.param == param and server.requests == []


def chunk(text: str | None = None, finish: str | None = None, **delta: Any) -> bytes:
    return event({"choices": [{"delta": {"content": text, **delta}, "finish_reason": finish}]})


def ask(play: Any, **options: Any) -> tuple[Any, Any]:
    """The answer to one question, and the requests that were made."""
    call = options.pop("gen", {})
    with fake_server(play) as server, rt.OpenAI("m", base_url=server.url, **options) as backend:
        run = chatting(ASKED, rt.assistant(rt.gen("a", **call))).run(backend=backend, seed=5)
        return run["a"], server.requests


def test_the_request_is_as_others_take_it() -> None:
    answer = [head(), chunk('{"x": 1,'), chunk(' "y": 2}', "stop"), event("[DONE]")]
    gen = {"type": Point, "max_tokens": 7, "temperature": 0, "stop": "x", "logit_bias": {3: 1}}
    point, requests = ask(
        lambda path, body: answer, api_key="secret", gen=gen, extra_body={"top_k": 2}
    )
    ((path, headers, body),) = requests
    assert point == Point(1, 2) and path == "/chat/completions"
    assert headers["authorization"] == "Bearer secret"
    assert isinstance(body.pop("seed"), int)
    form = body.pop("response_format")
    assert form["type"] == "json_schema" and form["json_schema"]["strict"] is True
    schema = form["json_schema"]["schema"]
    assert schema["required"] == ["x", "y"] and schema["additionalProperties"] is False
    assert body == {
        "model": "m", "messages": [{"role": "user", "content": "x"}], "stream": True,
        "stream_options": {"include_usage": True}, "max_tokens": 7, "temperature": 0,
        "stop": ["x"], "logit_bias": {"3": 1}, "top_k": 2,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("parts", "error", "says"),
    [
        ([chunk("par")], ServerUnreachable, "in the middle"),
        ([chunk("x", "content_filter")], EngineError, "content_filter"),
        ([chunk(None, refusal="I will not"), chunk(None, "stop")], EngineError, "I will not"),
        ([event({"error": {"message": "broken"}})], EngineError, "broken"),
        ([event("junk")], EngineError, "not understood"),
    ],
)
def test_an_answer_that_is_none_is_an_error(parts: Any, error: Any, says: str) -> None:
    with pytest.raises(error, match=says):
        ask(lambda path, body: [head(), *parts])


@pytest.mark.parametrize(
    ("status", "code", "error"),
    [
        (400, "context_length_exceeded", PromptTooLong),
        (401, "invalid_api_key", NotAuthenticated),
        (429, "rate_limit_exceeded", RateLimited),
        (500, None, EngineError),
    ],
)
def test_refusals_are_told_in_the_servers_words(status: int, code: Any, error: Any) -> None:
    refusal = json_answer({"error": {"message": "its words", "code": code, "type": "t"}}, status)
    with pytest.raises(error, match="its words"):
        ask(lambda path, body: refusal)


def test_a_deadline_cuts_the_answer() -> None:
    with (
        serving(ScriptedModel([Reply("t" * 4000)], step_s=0.01)) as server,
        rt.OpenAI("ScriptedModel", base_url=f"{server.url}/v1") as backend,
    ):
        slow = rt.gen("a", max_tokens=4000, timeout=0.3)
        with pytest.raises(DeadlineExceeded) as raised:
            chatting(ASKED, rt.assistant(slow)).run(backend=backend)
    assert set(raised.value.text) <= {"t"}


def test_reasoning_is_in_the_meta_info_and_in_no_text() -> None:
    answer = [
        head(), chunk(None, reasoning_content="let me "), chunk("", reasoning="see"),
        chunk("yes", "stop"), event("[DONE]"),
    ]  # fmt: skip
    with (
        fake_server(lambda path, body: answer) as server,
        rt.OpenAI("m", base_url=server.url) as backend,
    ):
        run = chatting(ASKED, rt.assistant(rt.gen("a"))).run(backend=backend)
    assert run["a"] == run.messages()[-1]["content"] == "yes"
    assert run.get_meta_info("a")["reasoning"] == "let me see"


def test_a_server_that_counts_nothing_is_not_taken_for_one_that_counts_none() -> None:
    counted = event({"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 2}})
    plays = iter([[], [counted]])
    with (
        fake_server(
            lambda path, body: [head(), chunk("yes", "stop"), *next(plays), event("[DONE]")]
        ) as server,
        rt.OpenAI("m", base_url=server.url) as backend,
    ):
        turns = [part for n in "ab" for part in (ASKED, rt.assistant(rt.gen(n, stop=".")))]
        run = chatting(*turns).run(backend=backend)
    first, second = run.usage.calls
    assert first.tokens is None and second.prompt_tokens == 5
    assert run.usage.num_unknown == 1 and "num_unknown=1" in repr(run.usage)
    assert (run.usage.prompt_tokens, run.usage.completion_tokens) == (5, 2)
    assert run.get_meta_info("a")["prompt_tokens"] is None
    assert run.get_meta_info("b")["prompt_tokens"] == 5
    assert "reasoning" not in run.get_meta_info("a")
