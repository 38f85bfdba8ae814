"""Usage rows: they add up to the engine's counters, and a database can harm no request."""

from __future__ import annotations

import concurrent.futures
import datetime
import logging
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from observed_server import (
    call,
    generate,
    leave_early,
    mixed_calls,
    mixed_script,
    observed,
    scraped,
    value,
)
from server_harness import RunningServer
from sqlalchemy.exc import OperationalError

from rtlang.errors import ConfigError, InvalidParameter, RateLimited, ServerUnavailable
from rtlang.runtime.messages import Usage as Tokens
from rtlang.runtime.server import usage as usage_module
from rtlang.runtime.server.keys import Principal
from rtlang.runtime.server.usage import Usage
from rtlang.runtime.server.usage_rows import TEXT_LEN, parse_since
from rtlang.testing import ScriptedModel

COUNTERS = ("prompt_tokens", "cached_tokens", "computed_tokens", "completion_tokens",
            "forced_tokens")  # fmt: skip


@pytest.fixture
def file(tmp_path: Path) -> str:
    return str(tmp_path / "usage.sqlite")


@pytest.fixture
def usage(file: str) -> Iterator[Usage]:
    found = Usage(file)
    yield found
    found.close()


def rows_of(file: str) -> list[dict[str, Any]]:
    with sqlite3.connect(file) as connection:
        connection.row_factory = sqlite3.Row
        return [dict(row) for row in connection.execute("SELECT * FROM rtlang_usage")]


def ended(usage: Usage, /, **changes: Any) -> None:
    tokens = Tokens(
        prompt_tokens=9, cached_tokens=4, computed_tokens=5, completion_tokens=3, forced_tokens=1
    )
    usage.ended(call(**{"usage": tokens, "finished": 102.0, **changes}))


def get(server: RunningServer, **params: str) -> dict[str, Any]:
    reply = httpx.get(server.url + "/usage", params=params)
    assert reply.status_code == 200, reply.text
    found: dict[str, Any] = reply.json()
    return found


def until(holds: Any) -> None:
    limit = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < limit
        time.sleep(0.01)


# -- totals ---------------------------------------------------------------------------------


def test_rows_add_up_to_the_engine_s_counters_however_calls_end(file: str) -> None:
    with observed(ScriptedModel(mixed_script, step_s=0.001), usage_db=file) as server:
        mixed_calls(server)
        generate(server, "x", sampling_params={"regex": "(ab){3}c", "jump_forward": "canonical"})
        generate(server, "too long " * 2000)
        mixed_calls(server)
        report, stats = get(server), server.engine.stats()
        expected = {name: stats[name] for name in COUNTERS}
        assert {name: report["total"][name] for name in COUNTERS} == expected
        assert report["total"]["calls"] == 2 * 9 + 2
        assert expected["cached_tokens"] > 0 and expected["forced_tokens"] > 0
        outcomes = {row["outcome"] for row in rows_of(file)}
        assert outcomes == {
            "ok", "engine_error", "aborted", "deadline_exceeded", "context_length_exceeded"
        }  # fmt: skip


def test_rows_add_up_when_memory_is_short_and_calls_are_retracted(file: str) -> None:
    model = ScriptedModel(mixed_script, max_total_tokens=700, step_s=0.0005)
    with observed(model, engine={"max_running_requests": 6}, usage_db=file) as server:
        params = {"max_new_tokens": 250, "n": 2}
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            prompts = [f"{number} {'word ' * 8}long" for number in range(6)]
            left = pool.submit(leave_early, server, "endless")
            for reply in pool.map(lambda p: generate(server, p, sampling_params=params), prompts):
                assert reply.status_code == 200
            left.result()
        server.wait_idle()
        report, stats = get(server), server.engine.stats()
        assert stats["num_retractions"] > 0 and stats["recomputed_tokens"] > 0
        assert {name: report["total"][name] for name in COUNTERS} == {
            name: stats[name] for name in COUNTERS
        }


def test_a_row_says_what_the_answer_says(file: str) -> None:
    with observed(ScriptedModel(mixed_script), usage_db=file) as server:
        generate(server, "hello")
        reply = generate(server, "hello")
        get(server)  # waits for what is on its way
        row = rows_of(file)[1]
    meta = reply.json()["meta_info"]
    assert row["request_id"] == reply.headers["x-request-id"]
    assert (row["key"], row["route"], row["outcome"]) == ("", "/generate", "ok")
    assert row["model"] == "ScriptedModel"
    for name in ("prompt_tokens", "cached_tokens", "completion_tokens"):
        assert row[name] == meta[name]
    assert row["cached_tokens"] == 4 and row["computed_tokens"] == 1
    assert row["duration_s"] > 0
    age = datetime.datetime.now(datetime.UTC).replace(
        tzinfo=None
    ) - datetime.datetime.fromisoformat(row["time"])
    assert datetime.timedelta(0) <= age < datetime.timedelta(minutes=5)


# -- who sees what --------------------------------------------------------------------------


def test_usage_is_summed_by_key_model_and_route(usage: Usage) -> None:
    ended(usage, key="a")
    ended(usage, key="a", route="/v1/messages", error=RateLimited("no"))
    ended(usage, key="b", model="other")
    by_key = usage.report(None, "key", None)
    assert [(row["key"], row["calls"], row["completion_tokens"]) for row in by_key["data"]] == [
        ("a", 2, 6),
        ("b", 1, 3),
    ]
    assert by_key["total"] == {
        "calls": 3, "prompt_tokens": 27, "cached_tokens": 12, "computed_tokens": 15,
        "completion_tokens": 9, "forced_tokens": 3, "duration_s": 6.0,
    }  # fmt: skip
    by_model = {row["model"]: row["calls"] for row in usage.report(None, "model", None)["data"]}
    assert by_model == {"m": 2, "other": 1}
    by_route = {row["route"]: row["calls"] for row in usage.report(None, "route", "a")["data"]}
    assert by_route == {"/generate": 1, "/v1/messages": 1}
    empty = usage.report("2999-01-01", "key", None)
    assert empty["data"] == [] and empty["total"]["calls"] == 0


def test_a_key_sees_its_own_rows_and_an_operator_all(
    file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with observed(ScriptedModel(mixed_script), usage_db=file) as server:
        for name, operator in (("alice", False), ("bob", False), ("root", True)):
            found = Principal(name=name, operator=operator)
            monkeypatch.setattr(server.state.keys, "find", lambda secret, found=found: found)
            generate(server, "x")
            if name != "alice":
                names = [row["key"] for row in get(server)["data"]]
                assert names == (["alice", "bob", "root"] if operator else ["bob"])


def test_since_is_a_time_in_any_zone(usage: Usage) -> None:
    ended(usage)
    now = datetime.datetime.now(datetime.UTC)
    early, late = now - datetime.timedelta(hours=1), now + datetime.timedelta(hours=1)
    zone = datetime.timezone(datetime.timedelta(hours=9))
    for at, calls in ((early, 1), (late, 0)):
        for text in (at.isoformat(), at.astimezone(zone).isoformat(), str(at.timestamp())):
            assert usage.report(text, "key", None)["total"]["calls"] == calls, text
    assert parse_since("2026-01-02") == datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)


@pytest.mark.parametrize(
    "params", [{"by": "outcome"}, {"since": "yesterday"}, {"since": "9" * 40}, {"since": ""}]
)
def test_a_wrong_question_is_refused(file: str, params: dict[str, str]) -> None:
    with observed(ScriptedModel(mixed_script), usage_db=file) as server:
        reply = httpx.get(server.url + "/usage", params=params)
        assert reply.status_code == 400
        assert reply.json()["error"]["param"] == next(iter(params))


def test_a_server_without_rows_says_so() -> None:
    with observed(ScriptedModel(mixed_script)) as server:
        reply = httpx.get(server.url + "/usage")
        assert reply.status_code == 404 and "usage_db" in reply.json()["error"]["message"]


# -- a database that is slow, gone, or will not have it -------------------------------------


def break_database(usage: Usage, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Writing fails until the event is set."""
    healed = threading.Event()
    begin = usage._engine.begin

    def fail_or_begin() -> Any:
        if not healed.is_set():
            raise OperationalError("INSERT", {}, Exception("the server is gone"))
        return begin()

    monkeypatch.setattr(usage._engine, "begin", fail_or_begin)
    return healed


def test_rows_wait_while_the_database_is_gone(
    file: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "rtlang.runtime.server.usage")
    with observed(ScriptedModel(mixed_script), usage_db=file) as server:
        assert server.state.observability is not None
        usage = server.state.observability.usage
        assert usage is not None
        healed = break_database(usage, monkeypatch)
        for _ in range(3):
            assert generate(server, "x").status_code == 200
        until(lambda: value(scraped(server), "rtlang_usage_retries_total") >= 2)
        assert rows_of(file) == []
        healed.set()
        until(lambda: len(rows_of(file)) == 3)
        assert value(scraped(server), "rtlang_usage_rows_lost_total") == 0
    said = [record.message for record in caplog.records]
    assert said == [
        "usage rows cannot be written, trying again: the server is gone",
        "usage rows are written again",
    ]


def test_a_queue_that_is_full_loses_and_counts_rows(
    file: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lost: list[int] = []
    usage = Usage(file, on_lost=lost.append, max_waiting=2)
    healed = break_database(usage, monkeypatch)
    ended(usage)
    until(lambda: usage._failing)  # the thread has taken it
    for _ in range(5):
        ended(usage)
    assert sum(lost) == 3
    assert sum("come faster" in record.message for record in caplog.records) == 1
    healed.set()
    usage.close()
    assert len(rows_of(file)) == 3


def test_closing_writes_what_is_left(file: str) -> None:
    usage = Usage(file)
    for _ in range(2000):
        ended(usage)
    usage.close()
    usage.close()
    assert len(rows_of(file)) == 2000


def test_closing_does_not_wait_for_a_database_that_is_gone(
    file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost: list[int] = []
    monkeypatch.setattr(usage_module, "CLOSE_S", 0.3)
    usage = Usage(file, on_lost=lost.append)
    break_database(usage, monkeypatch)
    for _ in range(3):
        ended(usage)
    usage.close()
    assert sum(lost) == 3 and not usage._thread.is_alive()


def test_a_locked_file_is_waited_for(file: str, usage: Usage) -> None:
    other = sqlite3.connect(file, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    ended(usage)
    assert not usage.flush(0.1)
    other.execute("COMMIT")
    other.close()
    assert usage.flush(30)
    assert len(rows_of(file)) == 1


def test_a_row_that_is_refused_takes_no_other_with_it(
    file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost: list[int] = []
    usage = Usage(file, on_lost=lost.append)
    healed = break_database(usage, monkeypatch)
    ended(usage)
    until(lambda: usage._failing)
    wrong = Tokens(completion_tokens=2**70)  # no database has room for it
    for tokens in (Tokens(), wrong, Tokens()):
        ended(usage, usage=tokens)
    healed.set()
    assert usage.flush(30)
    assert sum(lost) == 1
    assert len(rows_of(file)) == 3
    usage.close()


def test_a_row_that_was_written_before_its_failure_was_told_is_written_once(
    file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost: list[int] = []
    usage = Usage(file, on_lost=lost.append)
    write, failed = usage._write, threading.Event()

    def write_and_fail(batch: Any) -> bool:
        done = write(batch)
        if failed.is_set():
            return done
        failed.set()
        return False

    monkeypatch.setattr(usage, "_write", write_and_fail)
    ended(usage)
    assert usage.flush(30)
    assert failed.is_set() and len(rows_of(file)) == 1 and not lost
    usage.close()


def test_texts_that_no_column_holds_are_made_to_fit(file: str, usage: Usage) -> None:
    ended(usage, model="\ud800\x00" + "x" * 1000, request_id="y" * 500)
    assert usage.flush(30)
    row = rows_of(file)[0]
    assert row["model"] == ("\ufffd\ufffd" + "x" * 1000)[:TEXT_LEN]
    assert row["request_id"] == "y" * TEXT_LEN


@pytest.mark.parametrize(
    ("database", "reason"),
    [
        ("/no/such/folder/usage.sqlite", "unable to open"),
        ("nosuchdb://host/name", "nosuchdb"),
        ("://", "parse"),
        ("mysql+pymysql://me:secret@host/name", "pymysql"),
    ],
)
def test_a_database_that_cannot_be_opened_is_a_configuration_error(
    database: str, reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason) as raised:
        Usage(database)
    assert "secret" not in str(raised.value)


def test_reading_says_when_the_database_does_not_answer(
    usage: Usage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> Any:
        raise OperationalError("SELECT", {}, Exception("gone"))

    monkeypatch.setattr(usage._engine, "connect", fail)
    with pytest.raises(ServerUnavailable):
        usage.report(None, "key", None)
    with pytest.raises(InvalidParameter):
        usage.report(None, "secret", None)


def test_several_frontends_write_one_file(file: str) -> None:
    writers = [Usage(file) for _ in range(3)]

    def write(usage: Usage) -> None:
        for _ in range(200):
            ended(usage)

    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        list(pool.map(write, writers))
    for writer in writers:
        writer.close()
    assert len(rows_of(file)) == 600
