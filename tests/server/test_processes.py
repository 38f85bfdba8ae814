"""The server as processes that are killed, frozen, drained and left alone."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest
from project_tree import ROOT, run_python
from real_server import PATIENCE_S, ServerProcess, Stream, server_process, wait_until

from rtlang.cli.main import main
from rtlang.runtime.config import EngineConfig
from rtlang.runtime.server.config import ServerConfig
from rtlang.runtime.server.listen import bind

#: Each process imports torch, which takes long on a machine that does other things too.
pytestmark = pytest.mark.timeout(300)


def error_of(stream: Stream) -> str:
    """The code of the error event that the stream ended with."""
    last = json.loads([event for event in stream.events if event != "[DONE]"][-1])
    code: str = last["error"]["code"]
    return code


def test_h6_a_port_that_is_taken_is_told_within_two_seconds() -> None:
    holder = bind(ServerConfig(port=0))
    port = holder.getsockname()[1]
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "rtlang", "serve", "--port", str(port)],
        capture_output=True, text=True, timeout=PATIENCE_S, cwd=ROOT, check=False,
    )  # fmt: skip
    took = time.monotonic() - start
    holder.close()
    imported = {line.rsplit("|", 1)[-1].strip() for line in done.stderr.splitlines()}
    assert done.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}" in done.stderr
    assert not imported & {"torch", "transformers", "fastapi", "uvicorn"}  # nothing was loaded
    assert took < 10  # alone it takes a third of a second


def test_h6_a_port_of_all_addresses_is_taken_on_each() -> None:
    everywhere = bind(ServerConfig(host="0.0.0.0", port=0))
    port = everywhere.getsockname()[1]
    with pytest.raises(ValueError, match=str(port)):
        bind(ServerConfig(host="127.0.0.1", port=port))
    everywhere.close()
    bind(ServerConfig(host="127.0.0.1", port=port)).close()  # at once, not after minutes


def test_wrong_options_are_told_before_anything_loads(capsys: pytest.CaptureFixture[str]) -> None:
    for options, complaint in (
        (["--port", "99999"], "port must be in"),
        (["--page-size", "3"], "page_size=3"),
        (["--tls-cert", "x"], "both tls_cert and tls_key"),
        (["--host", "no.such.host.invalid"], "cannot listen on no.such.host.invalid"),
    ):
        assert main(["serve", *options]) == 1
        assert complaint in capsys.readouterr().err


def test_every_option_of_the_server_and_the_engine_is_one_of_the_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        main(["serve", "--help"])
    shown = capsys.readouterr().out
    for config in (ServerConfig, EngineConfig):
        names = set(config.__dataclass_fields__) - {"debug", "scheduler_process"}
        assert [n for n in names if "--" + n.replace("_", "-") not in shown] == []


def test_the_command_line_loads_neither_torch_nor_the_web_framework() -> None:
    code = "import sys, rtlang.cli.main\n"
    code += "print([n for n in ('torch', 'fastapi', 'uvicorn', 'httpx') if n in sys.modules])"
    assert run_python(code).strip() == "[]"


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One frontend. Its tests stand in their order: the last one ends it."""
    folder = tmp_path_factory.mktemp("alone")
    with server_process(folder, "--stall-timeout-s", "2", "--log-json") as server:
        assert server.status() in (0, 503)  # never ready before the model is loaded
        server.wait_ready()
        yield server


def test_h2_an_idle_server_needs_next_to_nothing_and_answers_at_once(alone: ServerProcess) -> None:
    short = {"text": "short", "sampling_params": {"max_new_tokens": 4}}
    with httpx.Client(base_url=alone.url) as client:
        client.post("/generate", json=short)
        processes = [alone.tree, *alone.children()]
        before = sum(sum(p.cpu_times()[:2]) for p in processes)
        start = time.monotonic()
        time.sleep(3)
        used = sum(sum(p.cpu_times()[:2]) for p in processes) - before
        assert used / (time.monotonic() - start) < 0.05
        start = time.monotonic()
        client.post("/generate", json=short)
        first = time.monotonic() - start
        again = []
        for _ in range(5):
            start = time.monotonic()
            client.post("/generate", json=short)
            again.append(time.monotonic() - start)
        assert first < max(again) + 0.25


def test_h1_a_frozen_scheduler_fails_what_runs_and_is_not_ready_until_it_answers(
    alone: ServerProcess,
) -> None:
    stream = Stream(alone, 3000)
    whole = Stream(alone, 3000, stream=False)
    stream.wait_started()
    scheduler = alone.scheduler()
    scheduler.suspend()
    try:
        stream.finish()
        whole.finish()
        assert error_of(stream) == error_of(whole) == "scheduler_stalled"
        assert (stream.status, whole.status) == (200, 503)
        assert alone.status("/health_generate") == alone.status("/health") == 503
        late = httpx.post(f"{alone.url}/generate", json={"text": "short"}, timeout=PATIENCE_S)
        assert late.status_code == 503
        assert late.headers["retry-after"]
    finally:
        scheduler.resume()
    wait_until(lambda: alone.status() == 200)
    assert alone.status("/health_generate") == 200


def test_h1_a_frozen_scheduler_is_seen_by_who_asks_for_readiness(alone: ServerProcess) -> None:
    scheduler = alone.scheduler()
    scheduler.suspend()
    try:
        start = time.monotonic()
        assert alone.status("/health_generate") == 503
        assert time.monotonic() - start < 30
        wait_until(lambda: alone.status() == 503)
    finally:
        scheduler.resume()
    wait_until(lambda: alone.status() == 200)


def test_h3_sigterm_lets_streams_end_and_refuses_what_is_new(alone: ServerProcess) -> None:
    streams = [Stream(alone, 150) for _ in range(3)]
    for stream in streams:
        stream.wait_started()
    alone.signal(signal.SIGTERM)
    wait_until(lambda: alone.status() == 503)
    late = httpx.post(f"{alone.url}/generate", json={"text": "short", "stream": True})
    assert late.status_code == 503
    assert late.headers["retry-after"]
    for stream in streams:
        stream.finish()
        assert stream.events[-1] == "[DONE]"
        assert json.loads(stream.events[-2])["meta_info"]["completion_tokens"] == 150
    assert alone.wait() == 0
    for line in alone.log.read_text().splitlines():
        if not line.startswith("rtlang.runtime.worker_main"):  # the scheduler's own
            assert json.loads(line)["level"], line


def test_h1_a_killed_scheduler_is_told_to_clients_and_ends_the_server(tmp_path: Path) -> None:
    with server_process(tmp_path) as server:
        server.wait_ready()
        stream = Stream(server, 3000)
        whole = Stream(server, 3000, stream=False)
        stream.wait_started()
        server.scheduler().kill()
        stream.finish()
        whole.finish()
        assert error_of(stream) == error_of(whole) == "scheduler_died"
        assert (stream.status, whole.status) == (200, 503)
        assert server.status("/health_generate") in (503, 0)
        assert server.wait() == 1


def test_h1_a_killed_scheduler_ends_several_frontends(tmp_path: Path) -> None:
    with server_process(tmp_path, "--frontends", "2") as server:
        server.wait_ready()
        streams = [Stream(server, 3000) for _ in range(4)]
        for stream in streams:
            stream.wait_started()
        server.scheduler().kill()
        for stream in streams:
            stream.finish()
            assert error_of(stream) == "scheduler_died"
        assert server.wait() == 1


def test_h3_at_the_deadline_the_rest_get_an_error_event(tmp_path: Path) -> None:
    with server_process(tmp_path, "--shutdown-timeout-s", "0.5") as server:
        server.wait_ready()
        stream = Stream(server, 3000)
        stream.wait_started()
        server.signal(signal.SIGINT)
        stream.finish()
        assert error_of(stream) == "server_unavailable"
        assert server.wait() == 1


def test_a_model_that_cannot_load_ends_the_server_with_its_reason(tmp_path: Path) -> None:
    with server_process(tmp_path, model="breaks_in_loading") as server:
        assert server.wait() == 1
        assert "no such weights" in server.log.read_text()


def test_h4_a_kill_while_the_model_loads_leaves_nothing(tmp_path: Path) -> None:
    with server_process(tmp_path, model="never_loads") as server:
        wait_until(lambda: "process and imports" in server.log.read_text())
        assert server.status() == 503
        (scheduler,) = server.children()
        server.signal(signal.SIGKILL)
        server.wait()
        assert not psutil.wait_procs([scheduler], 5)[1]


def test_a_signal_while_the_model_loads_ends_the_server(tmp_path: Path) -> None:
    with server_process(tmp_path, model="never_loads") as server:
        wait_until(lambda: server.status() == 503)
        wait_until(lambda: server.children())
        children = server.children()
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
        assert not psutil.wait_procs(children, 5)[1]


def key_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[Path, str]:
    path = folder / "keys.json"
    main(["keys", "add", str(path), "user", "--concurrency", "2"])
    return path, capsys.readouterr().out.strip()


def test_h4_several_frontends_share_limits_and_aborts_and_leave_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, key = key_file(tmp_path, capsys)
    options = ("--frontends", "2", "--api-key-file", str(path))
    with server_process(tmp_path, *options, env={"RTLANG_API_KEY": "boss"}) as server:
        server.wait_ready()
        user = {"x-api-key": key}
        # Each has its own connection; which frontend takes it is the kernel's choice.
        first = Stream(server, 8000, headers=user, rid="first")
        second = Stream(server, 8000, headers=user, rid="second")
        first.wait_started()
        second.wait_started()
        answers = [post(server, user) for _ in range(8)]
        assert {a.status_code for a in answers} == {429}  # in whichever frontend
        for _ in range(8):  # by now both have heard it
            httpx.post(f"{server.url}/abort_request", json={"rid": "first"}, headers=user)
        first.finish()
        assert error_of(first) == "aborted"
        wait_until(lambda: post(server, user).status_code == 200)

        # A frontend that dies takes its requests along, and gives their places back.
        third = Stream(server, 8000, headers=user, rid="third")
        third.wait_started()
        victims = server.frontends()
        for victim in victims:
            victim.kill()
        second.finish()
        third.finish()
        assert second.failure is not None and third.failure is not None
        wait_until(lambda: len({*server.frontends()} - {*victims}) == 2)
        server.wait_ready()
        assert post(server, user).status_code == 200
        boss = {"authorization": "Bearer boss"}
        flushed = httpx.post(f"{server.url}/flush_cache?timeout=5", headers=boss)
        assert flushed.status_code == 200, flushed.text  # the scheduler has forgotten them, too
        assert server.status("/metrics", headers=user) == 200

        everything = [server.tree, *server.children()]
        server.signal(signal.SIGKILL)
        server.wait()
        assert not psutil.wait_procs(everything[1:], 5)[1]
        bind(ServerConfig(port=server.port)).close()


def post(server: ServerProcess, headers: dict[str, str]) -> httpx.Response:
    body = {"text": "short", "sampling_params": {"max_new_tokens": 4}}
    return httpx.post(f"{server.url}/generate", json=body, headers=headers, timeout=PATIENCE_S)


def test_several_frontends_drain_and_a_second_signal_cuts(tmp_path: Path) -> None:
    with server_process(tmp_path, "--frontends", "2") as server:
        server.wait_ready()
        stream = Stream(server, 3000)
        stream.wait_started()
        server.signal(signal.SIGTERM)
        wait_until(lambda: server.status() != 200)
        assert stream.is_alive()
        server.signal(signal.SIGTERM)
        stream.finish()
        assert error_of(stream) == "server_unavailable"
        assert server.wait() == 1
