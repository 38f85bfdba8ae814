"""Requests to ``/v1/chat/completions`` over plain HTTP, and what a scripted model answers."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager
from typing import Any

import httpx
from api_models import ThinkingTokenizer, answering, call_text
from server_harness import PATIENCE_S, RunningServer, serving

from rtlang.errors import NumericalError
from rtlang.testing import Reply

PATH = "/v1/chat/completions"
ADD = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
TOOLS = [
    {"type": "function", "function": {"name": "add", "description": "adds", "parameters": ADD}},
    {"type": "function", "function": {"name": "now"}},
]
TWO_CALLS = f"Sure.{call_text('add', a=1)}\n{call_text('add', a=22)}"
ANSWERS: dict[str, Reply | str] = {
    "hi": "Hello there.",
    "red fox": "A fox.",
    "": "Nothing.",
    "long": Reply("abcd", eos=False),
    "two": TWO_CALLS,
    "call": call_text("add", a=7),
    "json": '{"x": 1}',
    "think": "<think>\nhm, well\n</think>\n\nYes.",
    "think json": '<think>\nhm\n</think>\n\n{"x": 1}',
    "fail": Reply(error=NumericalError("NaN in the logits"), delay_s=0.02),
    "endless": Reply("ab", eos=False),
    "42": "So it is 42.",
}


def chat_serving(reasoning_parser: str) -> AbstractContextManager[RunningServer]:
    """A server of the model "m", which answers with ``ANSWERS``."""
    model = answering(ANSWERS, tokenizer=ThinkingTokenizer())
    return serving(model, served_model_name="m", reasoning_parser=reasoning_parser)


def user(text: Any = "hi") -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


def post(server: RunningServer, path: str = PATH, **body: Any) -> httpx.Response:
    return httpx.post(server.url + path, json=body, timeout=PATIENCE_S)


def answer(server: RunningServer, text: Any = "hi", **body: Any) -> dict[str, Any]:
    reply = post(server, messages=user(text), **body)
    assert reply.status_code == 200, reply.text
    found: dict[str, Any] = reply.json()
    return found


def message(server: RunningServer, text: Any = "hi", **body: Any) -> dict[str, Any]:
    found: dict[str, Any] = answer(server, text, **body)["choices"][0]["message"]
    return found


def events(server: RunningServer, text: Any = "hi", **body: Any) -> list[dict[str, Any]]:
    """The chunks of a stream that ends well."""
    reply = post(server, messages=user(text), stream=True, **body)
    assert reply.status_code == 200, reply.text
    assert reply.headers["content-type"].startswith("text/event-stream")
    lines = [line for line in reply.text.split("\n\n") if line]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def choices(chunks: list[dict[str, Any]], index: int = 0) -> list[dict[str, Any]]:
    return [c for chunk in chunks for c in chunk["choices"] if c["index"] == index]


def joined(chunks: list[dict[str, Any]], field: str = "content", index: int = 0) -> str:
    return "".join(c["delta"].get(field) or "" for c in choices(chunks, index))


def refused(server: RunningServer, status: int = 400, **body: Any) -> dict[str, Any]:
    """The error, which a stream answers with the same status and body (E4)."""
    error: dict[str, Any] | None = None
    for stream in (False, True):
        reply = post(server, **{"messages": user(), "stream": stream, **body})
        assert reply.status_code == status, reply.text
        assert reply.headers["content-type"] == "application/json"
        found = reply.json()["error"]
        assert set(found) >= {"message", "type", "param", "code"}
        assert found["code"] is None or isinstance(found["code"], str)
        assert error in (None, found)
        error = found
    assert error is not None
    return error
