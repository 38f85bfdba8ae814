"""Strange requests on every path of our OpenAPI: no 500, and errors that clients can read."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import random
import time
from collections.abc import Iterator
from typing import Any

import httpx
import hypothesis
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.core.result import Ok
from server_harness import PATIENCE_S, RunningServer, serving

from rtlang.testing import ScriptedModel

#: Of all paths together; what has not been tried then is left.
SECONDS = 20.0
#: Change what the other requests find, or are long by their purpose.
LEFT_OUT = ("/openapi.json",)


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with serving(ScriptedModel(lambda _: "ok", context_length=600)) as running:
        yield running


def check(reply: httpx.Response, what: object) -> None:
    """No failure of ours; an error has a body that clients can read."""
    status = reply.status_code
    shown = (what, status, reply.text[:500])
    assert status < 500 or (status == 503 and "retry-after" in reply.headers), shown
    if status >= 400:
        assert reply.headers["content-type"] == "application/json", shown
        error = reply.json()["error"]
        assert isinstance(error, dict), shown
        assert isinstance(error["message"], str), shown
        assert error["message"], shown
        assert isinstance(error.get("code"), str | None), shown
        assert "Traceback" not in reply.text, shown


def operations(server: RunningServer) -> Iterator[Any]:
    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    for found in schema.get_all_operations():
        assert isinstance(found, Ok), found
        operation = found.ok()
        if operation.path not in LEFT_OUT:
            yield operation


def explore(server: RunningServer, max_examples: int, seconds: float) -> int:
    """How many requests were sent."""
    all_operations = list(operations(server))
    until = time.monotonic() + seconds
    sent = 0
    for operation, mode in itertools.product(
        all_operations, (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
    ):
        if time.monotonic() > until:
            break

        @hypothesis.settings(
            max_examples=max_examples,
            deadline=None,
            database=None,
            derandomize=True,
            phases=[Phase.explicit, Phase.generate],
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        )
        @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
        def send(case: Any) -> None:
            nonlocal sent
            sent += 1
            send_case(server, case)

        # Where nothing can be given, nothing can be wrong.
        with contextlib.suppress(Unsatisfiable):
            send()
    return sent


def send_case(server: RunningServer, case: Any) -> None:
    reply = case.call(base_url=server.url, timeout=PATIENCE_S)
    headers = {name: values[0] for name, values in reply.headers.items()}
    seen = httpx.Response(reply.status_code, headers=headers, content=reply.content)
    check(seen, case.as_transport_kwargs(base_url=server.url))


def test_e3_schemathesis_finds_no_failure_shortly(server: RunningServer) -> None:
    assert explore(server, 2, 5.0) > 0


@pytest.mark.slow
def test_e3_schemathesis_finds_no_failure(server: RunningServer) -> None:
    assert explore(server, 25, SECONDS) > 0


# -- every field with every strange value ---------------------------------------------------


class Raw:
    """A value as JSON text that ``json.dumps`` would not write."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return f"Raw({self.text[:20]})"


STRANGE: list[Any] = [
    None, True, False, 0, -1, 1.5, 2**63, 10**30, "", "x", "\0", [], [None], [[]], {}, {"": 0},
    [1], ["a"], [{"type": "text"}], {"type": "json_schema"}, {"type": "function"},
    Raw("NaN"), Raw("Infinity"), Raw("1e999"), Raw("-1" + "0" * 400), Raw("1" + "0" * 5000),
    Raw('"\\ud800"'), Raw('{"\\udfff": "\\ud800"}'), Raw('["\\ud83d\\ude00", "\\ud83d"]'),
    Raw('{"a": 1, "a": 2}'), Raw("[" * 99 + "]" * 99), Raw("[" * 3000 + "]" * 3000),
    Raw('{"a":' * 99 + "1" + "}" * 99), "(" * 500, "a" * 3000, "{" * 200, '{"a":' * 200,
    ["a"] * 200, {"type": "string", "pattern": "(["},
]  # fmt: skip

USER = {"role": "user", "content": "hi"}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [USER]},
    "/v1/completions": {"prompt": "hi"},
    "/generate": {"text": "hi"},
    "/tokenize": {"prompt": "hi"},
    "/detokenize": {"tokens": [1]},
    "/v1/responses": {"input": "hi"},
    "/v1/messages": {"model": "ScriptedModel", "max_tokens": 4, "messages": [USER]},
    "/v1/messages/count_tokens": {"model": "ScriptedModel", "messages": [USER]},
    "/abort_request": {},
}


def _one_parameter(name: str, value: Any) -> dict[str, Any]:
    return {name: value}


#: Parts of bodies that OpenAPI does not describe.
INNER: dict[str, list[tuple[str, Any]]] = {
    "/v1/chat/completions": [
        ("messages", lambda value: [value]),
        ("messages", lambda value: [{"role": value, "content": "x"}]),
        ("messages", lambda value: [{"role": "user", "content": value}]),
        ("messages", lambda value: [{"role": "user", "content": [value]}]),
        ("messages", lambda value: [USER, {"role": "assistant", "tool_calls": value}]),
        ("messages", lambda value: [USER, {"role": "assistant", "tool_calls": [
            {"function": {"name": "f", "arguments": value}}]}]),
        ("tools", lambda value: [value]),
        ("tools", lambda value: [{"type": "function", "function": {"name": value}}]),
        ("tools", lambda value: [{"type": "function", "function": {
            "name": "f", "parameters": value}}]),
        ("response_format", lambda value: {"type": "json_schema", "json_schema": value}),
        ("response_format", lambda value: {"type": "json_schema", "json_schema": {
            "schema": value}}),
        ("response_format", lambda value: {"type": "structural_tag", "format": value}),
        ("structured_outputs", lambda value: {"json": value}),
        ("stream_options", lambda value: {"include_usage": value}),
        ("logit_bias", lambda value: {"1": value}),
    ],
    "/generate": [
        ("sampling_params", functools.partial(_one_parameter, name))
        for name in ("max_new_tokens", "stop", "regex", "json_schema", "ebnf", "structural_tag",
                     "logit_bias", "n", "stop_regex", "sampling_seed", "grammar", "choice")
    ],
}  # fmt: skip


def as_json(value: Any) -> str:
    """Like ``json.dumps``, with ``Raw`` inside of lists and objects."""
    if isinstance(value, Raw):
        return value.text
    if isinstance(value, dict):
        inner = (f"{json.dumps(name)}: {as_json(one)}" for name, one in value.items())
        return "{" + ", ".join(inner) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(as_json, value)) + "]"
    return json.dumps(value)


def strange_requests(server: RunningServer) -> list[tuple[str, str]]:
    """(path, body) for each field and value."""
    described = httpx.get(f"{server.url}/openapi.json").json()
    models = described["components"]["schemas"]
    found: list[tuple[str, str]] = []
    for path, whole in BODIES.items():
        content = described["paths"][path]["post"].get("requestBody", {}).get("content", {})
        reference = content.get("application/json", {}).get("schema", {}).get("$ref", "")
        fields = models.get(reference.rpartition("/")[2], {}).get("properties", {})
        places: list[tuple[str, Any]] = [(name, lambda value: value) for name in fields]
        places += [("no_such_field", lambda value: value)]
        for (name, put), value in itertools.product(places + INNER.get(path, []), STRANGE):
            bounded = {"max_tokens": 4} if path in ("/v1/chat/completions",) else {}
            found.append((path, as_json({**bounded, **whole, name: put(value)})))
    return found


def send_strange(server: RunningServer, seed: int, seconds: float) -> int:
    """In an order of chance, for so long; returns how many were sent."""
    requests = strange_requests(server)
    random.Random(seed).shuffle(requests)
    until = time.monotonic() + seconds
    headers = {"content-type": "application/json"}
    with httpx.Client(base_url=server.url, headers=headers, timeout=PATIENCE_S) as client:
        for number, (path, body) in enumerate(requests):
            if time.monotonic() > until:
                return number
            check(client.post(path, content=body), (path, body[:300]))
    return len(requests)


def test_e3_strange_values_in_some_fields(server: RunningServer) -> None:
    assert send_strange(server, 7, 3.0) > 0


@pytest.mark.slow
def test_e3_strange_values_in_most_fields(server: RunningServer) -> None:
    assert send_strange(server, 8, SECONDS) > 0


def test_e3_strange_values_have_their_way_into_the_body() -> None:
    """The test's own JSON writer."""
    text = as_json({"a": [Raw("NaN"), "\ud800"], "b": {"c": Raw('"\\ud800"')}})
    assert text == '{"a": [NaN, "\\ud800"], "b": {"c": "\\ud800"}}'
