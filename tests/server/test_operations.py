"""Requests that end before their time: clients that leave, equal ids, deadlines, draining."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from conftest import assert_balanced
from server_harness import PATIENCE_S, RunningServer, serving, wait_until

from rtlang.testing import Reply, ScriptedModel

#: Seconds of the longest answer here, if nobody ended it.
LONG_S = 8000 * 0.01


def model() -> ScriptedModel:
    return ScriptedModel(
        lambda p: "fine" if "short" in p else Reply("ab" * 50, eos=False), step_s=0.01
    )


def body(text: str = "long", num_tokens: int = 8000, **fields: Any) -> dict[str, Any]:
    return {"text": text, "sampling_params": {"max_new_tokens": num_tokens}, **fields}


def in_state(server: RunningServer, state: str, count: int = 1) -> None:
    wait_until(lambda: server.engine.stats()["queue"][state] >= count)


def call(server: RunningServer, sent: dict[str, Any]) -> socket.socket:
    """A connection on which a request was sent, and whose answer nobody reads."""
    content = json.dumps(sent).encode()
    head = f"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: {len(content)}\r\n"
    connection = socket.create_connection(("127.0.0.1", server.frontend.port))
    connection.sendall(head.encode() + b"Content-Type: application/json\r\n\r\n" + content)
    return connection


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("state", ["waiting", "prefill", "running"])
def test_b3_who_leaves_is_gone_from_the_engine(state: str, stream: bool) -> None:
    """The others go on as if it had never been, and nothing of it is held."""
    options = {"chunked_prefill_size": 16, "max_running_requests": 1 if state == "waiting" else 4}
    with serving(model(), engine=options) as server, ThreadPoolExecutor() as pool:
        other = pool.submit(
            httpx.post, f"{server.url}/generate", json=body("other", 300), timeout=LONG_S
        )
        in_state(server, "running")
        start = time.monotonic()
        sent = body("x" * 8000, 100) if state == "prefill" else body(num_tokens=8000)
        connection = call(server, {**sent, "rid": "victim", "stream": stream})
        in_state(server, state, 2 if state == "running" else 1)
        connection.close()
        wait_until(lambda: "victim" not in server.state.running)
        assert time.monotonic() - start < LONG_S
        assert other.result().json()["output_ids"] == list(b"ab" * 50 + b"b" * 200)
        server.wait_idle()
        assert_balanced(server.engine)
        spent = server.engine.stats()["completion_tokens"] - 300
        assert spent == 0 if state != "running" else 0 < spent < 8000


def test_b6_equal_ids_at_once_and_one_after_the_other() -> None:
    with serving(model()) as server, ThreadPoolExecutor() as pool:
        url = f"{server.url}/generate"
        first = pool.submit(httpx.post, url, json=body(rid="same", num_tokens=60), timeout=60)
        wait_until(lambda: "same" in server.state.running)
        for stream in (False, True):
            second = httpx.post(url, json=body("short", rid="same", stream=stream))
            assert second.status_code == 400
            assert second.json()["error"]["code"] == "duplicate_request_id"
        for ids in (["one", "one"], ["one", "same"]):
            several = {"text": ["short", "short"], "rid": ids}
            assert httpx.post(url, json=several).status_code == 400
        assert first.result().json()["output_ids"] == list(b"ab" * 30)
        again = httpx.post(url, json=body("short", rid="same"))
        assert again.json()["text"] == "fine"
        assert again.json()["meta_info"]["id"] == "same"


def test_an_abort_ends_exactly_the_request_that_it_names() -> None:
    with serving(model()) as server, ThreadPoolExecutor() as pool:
        url = f"{server.url}/generate"
        found: dict[str, Future[httpx.Response]] = {}
        for rid in ("req-1", "req-10"):
            found[rid] = pool.submit(httpx.post, url, json=body(rid=rid), timeout=LONG_S)
            wait_until(functools.partial(server.state.running.get, rid))
        httpx.post(f"{server.url}/abort_request", json={"rid": "req-1"})
        ended = found["req-1"].result(PATIENCE_S)
        assert ended.json()["error"]["code"] == "aborted"
        assert list(server.state.running) == ["req-10"]
        httpx.post(f"{server.url}/abort_request", json={"abort_all": True})
        assert found["req-10"].result(PATIENCE_S).json()["error"]["code"] == "aborted"


def test_the_server_s_own_timeout_ends_a_request_and_a_shorter_one_is_kept() -> None:
    with serving(model(), request_timeout_s=0.3) as server:
        url = f"{server.url}/generate"
        ended = httpx.post(url, json=body(timeout=1000), timeout=60)
        assert ended.status_code == 504
        assert ended.json()["error"]["code"] == "deadline_exceeded"
        with httpx.stream("POST", url, json=body(stream=True), timeout=60) as answer:
            assert answer.status_code == 200
            assert "deadline_exceeded" in list(answer.iter_lines())[-4]
        assert httpx.post(url, json=body("short")).status_code == 200


@contextlib.contextmanager
def draining(server: RunningServer, patience_s: float) -> Iterator[tuple[Any, Callable[[], None]]]:
    """(the future of ``shut_down``, what hurries it)."""
    frontend = server.frontend
    loop = frontend.server.servers[0].get_loop()
    hurry = asyncio.run_coroutine_threadsafe(_event(), loop).result()
    future = asyncio.run_coroutine_threadsafe(frontend.shut_down(patience_s, hurry), loop)
    wait_until(lambda: server.state.phase.value == "draining")
    yield future, lambda: loop.call_soon_threadsafe(hurry.set)  # type: ignore[misc]


async def _event() -> asyncio.Event:
    return asyncio.Event()


def test_h3_draining_refuses_what_is_new_and_lets_the_rest_end() -> None:
    with serving(model()) as server, ThreadPoolExecutor() as pool:
        url = f"{server.url}/generate"
        running = pool.submit(httpx.post, url, json=body(num_tokens=100), timeout=60)
        wait_until(lambda: server.state.running)
        with draining(server, 60) as (ended, _):
            for stream in (False, True):
                late = httpx.post(url, json=body("short", stream=stream))
                assert (late.status_code, late.headers["retry-after"]) == (503, "5")
                assert late.json()["error"]["type"] == "overloaded_error"
            assert httpx.get(f"{server.url}/health").status_code == 503
            assert not ended.done()
            assert running.result().json()["meta_info"]["completion_tokens"] == 100
            assert ended.result(PATIENCE_S) is True


@pytest.mark.parametrize("by", ["deadline", "second signal"])
def test_h3_what_is_cut_hears_of_it(by: str) -> None:
    with serving(model()) as server, ThreadPoolExecutor() as pool:
        url = f"{server.url}/generate"
        whole = pool.submit(httpx.post, url, json=body(), timeout=60)
        streamed = pool.submit(httpx.post, url, json=body(stream=True), timeout=60)
        wait_until(lambda: len(server.state.running) == 2)
        wait_until(lambda: server.engine.stats()["queue"]["running"] == 2)
        with draining(server, 0.05 if by == "deadline" else 600) as (ended, hurry):
            if by != "deadline":
                hurry()
            assert ended.result(PATIENCE_S) is False
        assert whole.result().status_code == 503
        assert whole.result().json()["error"]["code"] == "server_unavailable"
        assert streamed.result().status_code == 200
        events = [line for line in streamed.result().text.split("\n\n") if line]
        assert '"server_unavailable"' in events[-2]
        assert not any('"type":"stop"' in e or '"type":"length"' in e for e in events)


def test_a_call_whose_answer_cannot_be_written_is_not_left_running(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A bug between the request's start and its first chunk."""
    with serving(model(), concurrency=1) as server:
        with monkeypatch.context() as patch:
            patch.setattr("rtlang.runtime.server.routes.native._Writer", lambda *_, **__: 1 / 0)
            assert httpx.post(f"{server.url}/generate", json=body()).status_code == 500
        server.wait_idle()
        assert httpx.post(f"{server.url}/generate", json=body("short")).status_code == 200


def test_health_generate_goes_all_the_way() -> None:
    with serving(model()) as server:
        before = server.engine.stats()["completion_tokens"]
        assert httpx.get(f"{server.url}/health_generate").status_code == 200
        assert server.engine.stats()["completion_tokens"] == before + 1
