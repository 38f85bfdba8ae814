"""``Anthropic``: chat programs on our own server's messages, and on what others answer."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from fake_server import event, fake_server, head, json_answer
from server_harness import serving

import rtlang as rt
from rtlang.errors import (
    EngineError,
    InvalidPrompt,
    NotAllowed,
    ServerUnavailable,
    ServerUnreachable,
    Unsupported,
)
from rtlang.testing import ScriptedModel

ASKED = rt.user("x")


@dataclasses.dataclass
class Point:
    x: int


def chatting(*parts: Any) -> rt.Program[Any]:
    @rt.function
    def program(s: rt.ProgramState) -> None:
        for part in parts:
            s += part

    return program


def test_the_second_turn_keeps_the_system_prompt_and_the_cache() -> None:
    def script(prompt: str) -> str:
        assert "Be brief." in prompt  # in every turn, not the first alone
        return "because" if "Why?" in prompt else "fine! and more"

    program = chatting(
        rt.system("Be brief."), rt.user("How?"), rt.assistant(rt.gen("a", stop="!")),
        rt.user("Why?"), rt.assistant(rt.gen("b", n=2)),
    )  # fmt: skip
    with serving(ScriptedModel(script)) as server:
        with rt.Anthropic("ScriptedModel", base_url=server.url) as backend:
            run = program.run(backend=backend, temperature=0)
        assert run.usage.computed_tokens == server.engine.stats()["computed_tokens"]
    assert (run["a"], run["b"]) == ("fine", ["because", "because"])
    assert run.get_meta_info("a")["finish_reason"]["matched"] == "!"
    assert run.messages()[0] == {"role": "system", "content": "Be brief."}
    assert run.usage.calls[1].cached_tokens > 0


def test_typed_values_are_enforced() -> None:
    with (
        serving(ScriptedModel(['{"x": 5}'])) as server,
        rt.Anthropic("ScriptedModel", base_url=server.url) as backend,
    ):
        run = chatting(ASKED, rt.assistant(rt.gen("p", type=Point))).run(backend=backend)
    assert run["p"] == Point(5)


@pytest.mark.parametrize(
    ("call", "options", "param"),
    [
        (rt.gen("x", max_tokens=None), {}, "max_tokens"),
        (rt.gen("x", temperature=1.5), {}, "temperature"),
        (rt.gen("x", min_p=0.1), {}, "min_p"),
        (rt.gen("x", frequency_penalty=0.1), {}, "frequency_penalty"),
        (rt.gen("x", regex="a"), {}, "regex"),
        (rt.gen("x"), {"seed": 1}, "sampling_seed"),
        (rt.select("x", ["a", "b"]), {}, "select"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_it_cannot_do_is_refused_at_its_line(call: Any, options: Any, param: str) -> None:
    with (
        fake_server(lambda path, body: []) as server,
        rt.Anthropic("m", base_url=server.url) as backend,
        pytest.raises(Unsupported) as raised,
    ):
        chatting(ASKED, rt.assistant(call)).run(backend=backend, **options)
    assert raised.value.param == param and server.requests == []


START = event({"type": "message_start", "message": {"usage": {
    "input_tokens": 5, "cache_read_input_tokens": 3, "cache_creation_input_tokens": 2,
    "output_tokens": 1}}})  # fmt: skip
TEXT = event({"type": "content_block_delta", "delta": {"type": "text_delta", "text": "hi"}})
STOP = event({"type": "message_stop"})


def ended(reason: str) -> bytes:
    return event(
        {"type": "message_delta", "delta": {"stop_reason": reason}, "usage": {"output_tokens": 4}}
    )


def ask(play: Any, *parts: Any) -> tuple[rt.ProgramState, Any]:
    given = parts or (ASKED, rt.assistant("So" + rt.gen("a", top_k=3)))
    with (
        fake_server(play) as server,
        rt.Anthropic("m", base_url=server.url, api_key="secret") as backend,
    ):
        return chatting(*given).run(backend=backend), server.requests


def test_the_request_and_the_counts_are_the_apis() -> None:
    ping = event({"type": "ping"})
    run, requests = ask(lambda path, body: [head(), START, ping, TEXT, ended("end_turn"), STOP])
    ((path, headers, body),) = requests
    assert run["a"] == "hi" and run.messages()[-1]["content"] == "Sohi"
    assert path == "/v1/messages" and headers["x-api-key"] == "secret"
    assert headers["anthropic-version"] == "2023-06-01"
    assert body == {
        "model": "m", "max_tokens": 128, "stream": True, "top_k": 3,
        "messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "So"}],
    }  # fmt: skip
    usage = run.usage
    counts = (usage.prompt_tokens, usage.cached_tokens, usage.computed_tokens)
    assert counts == (10, 3, 7) and usage.completion_tokens == 4


@pytest.mark.parametrize(
    ("parts", "error", "says"),
    [
        ([START, TEXT], ServerUnreachable, "in the middle"),
        ([START, ended("refusal"), STOP], EngineError, "refused"),
        ([START, ended("tool_use"), STOP], EngineError, "tool_use"),
        ([event({"type": "error", "error": {"type": "overloaded_error", "message": "busy"}})],
         ServerUnavailable, "busy"),
        ([event({"type": "error", "error": {"type": "api_error", "message": "bad"}})],
         EngineError, "bad"),
    ],
)  # fmt: skip
def test_an_answer_that_is_none_is_an_error(parts: Any, error: Any, says: str) -> None:
    with pytest.raises(error, match=says):
        ask(lambda path, body: [head(), *parts])


def test_refusals_are_told_in_the_servers_words() -> None:
    refusal = json_answer({"type": "error", "error": {"type": "t", "message": "its words"}}, 403)
    with pytest.raises(NotAllowed, match="its words"):
        ask(lambda path, body: refusal)


def test_a_late_system_turn_is_refused_before_anything_is_sent() -> None:
    with (
        fake_server(lambda path, body: []) as server,
        rt.Anthropic("m", base_url=server.url) as backend,
    ):
        program = chatting(ASKED, rt.system("late"), ASKED, rt.assistant(rt.gen("a")))
        with pytest.raises(InvalidPrompt, match="system"):
            program.run(backend=backend)
    assert server.requests == []


def test_thoughts_are_in_the_meta_info_and_in_no_text() -> None:
    thinking = {"type": "thinking_delta", "thinking": "hm"}
    signed = {"type": "signature_delta", "signature": "s"}
    deltas = [event({"type": "content_block_delta", "delta": d}) for d in (thinking, signed)]
    run, _ = ask(lambda path, body: [head(), START, *deltas, TEXT, ended("end_turn"), STOP])
    assert run["a"] == "hi" and run.get_meta_info("a")["reasoning"] == "hm"


def test_counts_that_are_not_told_are_unknown() -> None:
    silent = event({"type": "message_delta", "delta": {"stop_reason": "end_turn"}})
    start = event({"type": "message_start", "message": {}})
    run, _ = ask(lambda path, body: [head(), start, TEXT, silent, STOP])
    (call,) = run.usage.calls
    assert call.tokens is None and run.usage.num_unknown == 1
    assert run.get_meta_info("a")["completion_tokens"] is None
