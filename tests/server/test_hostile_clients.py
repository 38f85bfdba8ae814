"""What one client can do to the others: by numbers, names and sizes, and by reading nothing."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from server_harness import PATIENCE_S, RunningServer, serving, wait_until

from rtlang.cli.main import main
from rtlang.errors import ServerUnavailable
from rtlang.runtime.byte_tokenizer import ByteTokenizer
from rtlang.runtime.chunk import Chunk
from rtlang.runtime.server.board import Board
from rtlang.runtime.server.body import MAX_PARTS, MAX_SEQUENCES
from rtlang.runtime.server.generation import MAX_RID_LEN
from rtlang.runtime.server.record import CallRecord, now
from rtlang.testing import Reply, ScriptedModel


def model(**options: Any) -> ScriptedModel:
    return ScriptedModel(
        lambda p: Reply("ab" * 50, eos=False) if "long" in p else "fine", **options
    )


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with serving(model()) as running:
        yield running


def generate(server: RunningServer, **body: Any) -> httpx.Response:
    return httpx.post(f"{server.url}/generate", json=body, timeout=PATIENCE_S)


# -- numbers and names ----------------------------------------------------------------------


def test_a_fork_that_is_announced_twice_leaves_nothing_locked(server: RunningServer) -> None:
    announced = {"text": "a prefix", "fork_id": "f", "sampling_params": {"max_new_tokens": 0}}
    for _ in range(3):
        assert generate(server, announce=2, **announced).status_code == 200
    closed = {"fork_id": "f", "count": 2}
    assert httpx.post(f"{server.url}/close_branches", json=closed).status_code == 200
    stats = server.engine.stats()
    assert (stats["num_holds"], stats["locked_len"]) == (0, 0)
    assert httpx.post(f"{server.url}/flush_cache").status_code == 200


@pytest.mark.parametrize("number", [10**7, 2**63, 10**30])
def test_a_number_that_no_message_can_hold_is_refused(server: RunningServer, number: int) -> None:
    answer = generate(server, text="a", fork_id="f", announce=number)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == "announce"
    assert server.engine._client.num_streams == 0


@pytest.mark.parametrize("timeout", ["nan", "inf", "-1", "3601"])
def test_waiting_to_flush_has_an_end(server: RunningServer, timeout: str) -> None:
    answer = httpx.post(f"{server.url}/flush_cache?timeout={timeout}")
    assert answer.status_code == 400, answer.text


def test_a_long_rid_is_refused_wherever_it_may_stand(server: RunningServer) -> None:
    """Other frontends are told of aborts, line by line: a line must not be too long for them."""
    rid = "x" * (MAX_RID_LEN + 1)
    messages = [{"role": "user", "content": "hi"}]
    for path, body in (
        ("/generate", {"text": "a", "rid": rid}),
        ("/generate", {"text": ["a", "b"], "rid": ["ok", rid]}),
        ("/v1/completions", {"prompt": "a", "rid": rid}),
        ("/v1/chat/completions", {"messages": messages, "rid": rid}),
        ("/abort_request", {"rid": rid}),
    ):
        answer = httpx.post(server.url + path, json=body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "rid"), path
    assert generate(server, text="a", rid=rid[1:]).status_code == 200


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/generate", {"input_ids": [[1]] * (MAX_SEQUENCES + 1)}),
        ("/generate", {"text": ["a"] * 100, "sampling_params": {"n": 128}}),
        ("/v1/completions", {"prompt": [[1]] * (MAX_SEQUENCES + 1), "max_tokens": 1}),
        ("/v1/completions", {"prompt": ["a"] * 100, "n": 128}),
    ],
)
def test_e9_a_call_of_too_many_sequences_is_refused_at_once(
    server: RunningServer, path: str, body: dict[str, Any]
) -> None:
    before = server.engine.stats()["num_requests"]
    answer = httpx.post(server.url + path, json=body, timeout=PATIENCE_S)
    assert answer.status_code == 400, answer.text
    assert str(MAX_SEQUENCES) in answer.json()["error"]["message"]
    assert server.engine.stats()["num_requests"] == before


@pytest.mark.parametrize("part", ["[]", "{}", "[[]]"])
@pytest.mark.parametrize("path", ["/generate", "/v1/chat/completions", "/abort_request"])
def test_a_body_of_too_many_parts_is_refused_before_it_is_looked_at(
    server: RunningServer, path: str, part: str
) -> None:
    content = f'{{"x": [{",".join([part] * (MAX_PARTS + 1))}]}}'
    headers = {"content-type": "application/json"}
    answer = httpx.post(server.url + path, content=content, headers=headers, timeout=PATIENCE_S)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["param"], str(MAX_PARTS) in error["message"]) == ("x", True)


# -- names of others ------------------------------------------------------------------------


def add(path: Path, name: str, *options: str, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """The headers that a new key is sent in."""
    assert main(["keys", "add", str(path), name, *options]) == 0
    return {"x-api-key": capsys.readouterr().out.strip()}


def test_keys_do_not_meet_in_their_rids(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """B6 for each key alone: nobody learns of, takes or ends another key's request."""
    path = tmp_path / "keys.json"
    a, b = (add(path, name, capsys=capsys) for name in "ab")
    operator = add(path, "operator", "--operator", capsys=capsys)
    long = {"text": "long", "rid": "same", "sampling_params": {"max_new_tokens": 6000}}
    with (
        serving(model(step_s=0.005), api_key_file=str(path)) as server,
        ThreadPoolExecutor() as pool,
    ):

        def post(path: str, body: dict[str, Any], headers: dict[str, str]) -> httpx.Response:
            return httpx.post(server.url + path, json=body, headers=headers, timeout=PATIENCE_S)

        calls = [pool.submit(post, "/generate", long, headers) for headers in (a, b)]
        wait_until(lambda: server.engine.stats()["queue"]["running"] == 2)
        assert post("/generate", long, a).json()["error"]["code"] == "duplicate_request_id"
        post("/abort_request", {"rid": "same"}, a)
        assert calls[0].result().json()["error"]["code"] == "aborted"
        assert post("/generate", {**long, "text": "a"}, a).status_code == 200
        assert not calls[1].done()
        post("/abort_request", {"rid": "same"}, operator)
        assert calls[1].result().json()["error"]["code"] == "aborted"


def test_the_name_of_the_operator_in_the_environment_is_taken(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is kept by name (responses, usage, limits) would be shared with the operator."""
    assert main(["keys", "add", str(tmp_path / "keys.json"), "environment"]) == 1
    assert "environment" in capsys.readouterr().err


def test_operators_read_no_passwords_in_server_info(tmp_path: Path) -> None:
    secrets: dict[str, Any] = {
        "usage_db": "postgresql://me:hunter2@db.example/usage",
        "otlp_endpoint": "https://me:hunter3@otlp.example/v1?token=hunter4",
    }
    with serving(model(), **secrets) as server:
        answer = httpx.get(f"{server.url}/server_info")
        assert answer.status_code == 200
        assert "hunter" not in answer.text
        assert "db.example" in answer.json()["server"]["usage_db"]
        assert "otlp.example" in answer.json()["server"]["otlp_endpoint"]


# -- sizes ----------------------------------------------------------------------------------


class SlowTokenizer(ByteTokenizer):
    """Long texts take until ``go`` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()
        self.entered = threading.Event()

    def encode(self, text: str, *, add_bos: bool = True, control: bool = True) -> list[int]:
        self._wait(len(text))
        return super().encode(text, add_bos=add_bos, control=control)

    def encode_rendered(self, rendered: str, *, continued: bool = False) -> list[int]:
        self._wait(len(rendered))
        return super().encode_rendered(rendered, continued=continued)

    def decode(self, ids: Any, *, skip_special_tokens: bool = True) -> str:
        self._wait(len(ids))
        return super().decode(ids, skip_special_tokens=skip_special_tokens)

    def _wait(self, length: int) -> None:
        if length > 40_000:
            self.entered.set()
            self.go.wait(5)


LONG = "x" * 50_000
TURNS = [{"role": "user", "content": LONG}]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/generate", {"text": LONG}),
        ("/v1/completions", {"prompt": LONG}),
        ("/v1/chat/completions", {"messages": TURNS}),
        ("/v1/messages", {"model": "m", "max_tokens": 1, "messages": TURNS}),
        ("/v1/messages/count_tokens", {"model": "m", "messages": TURNS}),
        ("/v1/responses", {"input": LONG}),
        ("/tokenize", {"prompt": LONG}),
        ("/detokenize", {"tokens": [97] * 50_000}),
    ],
)
def test_a_long_prompt_is_tokenized_while_others_are_served(
    path: str, body: dict[str, Any]
) -> None:
    tokenizer = SlowTokenizer()
    with (
        serving(model(tokenizer=tokenizer), served_model_name="m") as server,
        ThreadPoolExecutor() as pool,
    ):
        url = server.url
        call = pool.submit(httpx.post, url + path, json=body, timeout=PATIENCE_S)
        assert tokenizer.entered.wait(PATIENCE_S)
        try:
            assert httpx.get(f"{url}/health", timeout=4).status_code == 200
            assert not call.done()
        finally:
            tokenizer.go.set()
        assert call.result().status_code in (200, 400)


def test_those_who_wait_for_the_scheduler_leave_room_for_prompts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Threads of a pool are few; who asks what is not answered must not take them up."""
    go = threading.Event()

    def stats(timeout: float | None = None) -> Any:
        go.wait(PATIENCE_S)
        raise ServerUnavailable("late")

    with (
        serving(model()) as server,
        ThreadPoolExecutor(48) as pool,
        monkeypatch.context() as patch,
    ):
        patch.setattr(server.engine, "stats", stats)
        live = f"{server.url}/live"
        waiting = [pool.submit(httpx.get, live, timeout=PATIENCE_S) for _ in range(40)]
        try:
            body = {"prompt": "x" * 40_000}
            answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=5)
            assert answer.status_code == 400  # too long, and told so
        finally:
            go.set()
        assert {call.result().status_code for call in waiting} == {503}
        patch.undo()


def test_latencies_of_calls_that_nobody_looks_at_take_bounded_room() -> None:
    board = Board()
    record = CallRecord(
        request_id="r", route="/", key="", model="m", stream=True, num_sequences=1, received=now()
    )
    for _ in range(50_000):
        board.tokens(record, Chunk(text="a", token_ids=[97]), None)
    assert len(board._ttft) <= 20_000


# -- who reads nothing ----------------------------------------------------------------------


def test_a_client_that_reads_nothing_takes_bounded_room_and_harms_nobody() -> None:
    """The stream of 6000 cumulative texts has 20 MB; what nobody reads is not even written."""
    sent = {"text": "long", "stream": True, "sampling_params": {"max_new_tokens": 6000}}
    content = json.dumps(sent).encode()
    head = f"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: {len(content)}\r\n"
    with serving(model()) as server, contextlib.closing(socket.socket()) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", server.frontend.port))
        client.sendall(head.encode() + b"Content-Type: application/json\r\n\r\n" + content)
        wait_until(lambda: server.engine.stats()["num_finished"] == 1)
        assert generate(server, text="a").status_code == 200
        (slow,) = [
            c
            for c in server.frontend.server.server_state.connections
            if c.transport.get_extra_info("peername") == client.getsockname()
        ]
        assert slow.transport.get_write_buffer_size() < 1 << 20
        assert server.state.running  # it is not over: its end was not written
        client.close()
        wait_until(lambda: not server.state.running)


def test_c1_no_line_of_a_stream_ends_inside_of_a_text() -> None:
    """Clients that take Unicode's line ends for a line's end find one line an event; and of
    characters that tokens cut, no half."""
    text = "a\u2028b\u2029c\u0085d\r\ne\x0bf\x0cg\x1ch \u4e2d \U0001f642"
    with serving(ScriptedModel(lambda _: text), served_model_name="m") as server:
        message = {"messages": [{"role": "user", "content": "hi"}]}
        for path, body in (
            ("/generate", {"text": "hi", "incremental": True}),
            ("/v1/completions", {"prompt": "hi", "max_tokens": 99}),
            ("/v1/chat/completions", message),
            ("/v1/messages", {"model": "m", "max_tokens": 99, **message}),
            ("/v1/responses", {"input": "hi"}),
        ):
            answer = httpx.post(server.url + path, json={**body, "stream": True})
            lines = [line for line in answer.text.splitlines() if line]
            assert {line.split(":")[0] for line in lines} <= {"data", "event"}, path
            found = "".join(map(_text, lines))
            assert found == text, path


_DELTAS = ("content_block_delta", "response.output_text.delta")


def _text(line: str) -> str:
    if not line.startswith("data: {"):
        return ""
    event = json.loads(line.removeprefix("data: "))
    for choice in event.get("choices", ()):
        found: str = choice["text"] if "text" in choice else choice["delta"].get("content", "")
        return found
    kind = event.get("type")
    if kind is None:
        return str(event["text"])  # of /generate
    delta = event["delta"] if kind in _DELTAS else ""
    return delta["text"] if isinstance(delta, dict) else delta
