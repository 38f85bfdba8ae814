"""Streams: every consumer gets everything, in order; nothing waits for ever."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from fake_backend import FakeBackend, Play

import rtlang as rt
from rtlang.errors import EngineError, UnknownVariable


@rt.function
def two_steps(s: rt.ProgramState, prompt: str) -> None:
    s += prompt
    s += rt.gen("type")
    if s["type"] == "abcdef":
        s += " then " + rt.gen("value")
    s += "."


def test_a_slow_consumer_gets_the_tail() -> None:
    run = two_steps.run("p", backend=FakeBackend(lambda call: "abcdef"), stream=True)
    chunks = []
    for chunk in run.text_iter("type"):
        chunks.append(chunk)
        if len(chunks) == 1:
            _ = run.value  # the program has long ended
    assert chunks == list("abcdef")


def test_chunks_come_while_the_call_runs() -> None:
    gate = threading.Event()
    plays = [Play("abcdef"), Play("value", gate=gate)]
    run = two_steps.run("p", backend=FakeBackend(lambda call: plays.pop(0)), stream=True)
    stream = run.text_iter()
    assert [next(stream) for _ in range(8)] == ["p", *"abcdef", " then "]
    gate.set()
    assert list(stream) == [*"value", "."]
    assert "".join(run.text_iter()) == run.text() == "pabcdef then value."


def test_g2_a_variable_that_comes_later_or_never() -> None:
    backend = FakeBackend(lambda call: Play("abcdef", delay_s=0.002))
    run = two_steps.run("p", backend=backend, stream=True)
    assert "".join(run.text_iter("value")) == "abcdef"  # not created yet when asked for
    assert "".join(run.text_iter("type")) == "abcdef"
    with pytest.raises(UnknownVariable, match="'value'"):
        list(run.text_iter("valeu"))
    other = two_steps.run("p", backend=FakeBackend(lambda call: "x"), stream=True)
    with pytest.raises(UnknownVariable):
        list(other.text_iter("value"))  # ends when the program ends
    with pytest.raises(UnknownVariable):
        other["value"]
    assert "value" not in other


def test_many_consumers_read_the_same() -> None:
    backend = FakeBackend(lambda call: Play("abcdef" * 20, delay_s=0.0005))

    @rt.function
    def program(s: rt.ProgramState) -> None:
        s += "p" + rt.gen("x")

    run = program.run(backend=backend, stream=True)
    found: list[str] = []

    def consume(pause: float) -> None:
        chunks = []
        for chunk in run.text_iter("x"):
            chunks.append(chunk)
            time.sleep(pause)
        found.append("".join(chunks))

    threads = [threading.Thread(target=consume, args=(p,)) for p in (0.0, 0.0, 0.002)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == ["abcdef" * 20] * 3
    next(run.text_iter("x"))  # one that leaves early disturbs nobody
    assert "".join(run.text_iter("x")) == run["x"]


def test_selected_and_set_variables_stream_their_value_once() -> None:
    @rt.function
    def program(s: rt.ProgramState) -> None:
        s["number"] = 7
        s += "a "
        with s.var_scope("scope"):
            s += "b " + rt.gen("x")

    run = program.run(backend=FakeBackend(), stream=True)
    assert list(run.text_iter("number")) == ["7"] and run["number"] == 7
    assert list(run.text_iter("scope")) == ["b ok"]


def test_an_error_of_the_body_ends_every_iteration_with_it() -> None:
    error = ValueError("user")

    @rt.function
    def program(s: rt.ProgramState) -> None:
        s += "p" + rt.gen("x")
        s.sync()
        raise error

    run = program.run(backend=FakeBackend(), stream=True)
    received = []
    with pytest.raises(ValueError, match="user") as raised:
        for chunk in run.text_iter():
            received.append(chunk)
    assert raised.value is error is run.error
    assert received == ["p", "o", "k"]
    assert list(run.text_iter("x")) == ["o", "k"]
    for read in (lambda: run["y"], lambda: list(run.text_iter("y")), lambda: run.value):
        with pytest.raises(ValueError, match="user"):
            read()


def test_a_body_streams_its_own_state() -> None:
    seen: list[str] = []

    @rt.function
    def program(s: rt.ProgramState) -> None:
        s += "p" + rt.gen("x")
        seen.extend(s.text_iter("x"))
        s += "q" + rt.gen("x")  # the same name again: the newest one
        seen.extend(s.text_iter("x"))
        with pytest.raises(UnknownVariable):
            list(s.text_iter("y"))
        seen.append("|")
        seen.extend(s.text_iter())

    answers = iter(["ab", "cd"])
    program.run(backend=FakeBackend(lambda call: next(answers)))
    assert seen == ["a", "b", "c", "d", "|", "p", "a", "b", "q", "c", "d"]


def test_branches_stream_what_they_begin_with_and_their_own() -> None:
    @rt.function
    def program(s: rt.ProgramState) -> list[str]:
        s += "p" + rt.gen("x")
        forks = s.fork(2)
        forks += lambda i: f"-{i}-" + rt.gen("y")
        return ["".join(f.text_iter()) for f in forks]

    assert program.run(backend=FakeBackend()).value == ["pok-0-ok", "pok-1-ok"]


def test_roles_stream_with_their_markers() -> None:
    @rt.function
    def program(s: rt.ProgramState) -> None:
        s += rt.user("hi") + rt.assistant("so: " + rt.gen("x"))
        s += rt.user("bye") + rt.assistant(rt.gen("y"))

    run = program.run(backend=FakeBackend(), stream=True)
    assert "".join(run.text_iter()) == run.text()
    assert list(run.text_iter("y")) == ["o", "k"]  # generated text only


def test_a_streaming_program_can_be_cancelled() -> None:
    backend = FakeBackend(lambda call: Play("x" * 10000, delay_s=0.002))
    run = two_steps.run("p", backend=backend, stream=True)
    stream = run.text_iter("type")
    next(stream)
    run.cancel()
    with pytest.raises(EngineError, match="cancelled"):
        list(stream)
    with pytest.raises(EngineError, match="cancelled"):
        _ = run.value
    assert backend.num_running == 0 and len(backend.aborted) == 1


def test_waiting_for_a_stream_costs_no_cpu() -> None:
    gate = threading.Event()
    backend = FakeBackend(lambda call: Play("abc", gate=gate))
    run = two_steps.run("p", backend=backend, stream=True)
    checks = 0
    ready: Any = None

    def counting() -> bool:
        nonlocal checks
        checks += 1
        return bool(ready())

    reader = run._reader("value")
    ready = reader.ready
    thread = threading.Thread(target=run._core.run.wait, args=(counting,), daemon=True)
    thread.start()
    time.sleep(0.2)
    gate.set()
    thread.join()
    assert checks < 30  # woken by changes, it does not poll


def test_no_race_at_the_end_of_a_stream() -> None:
    backend = FakeBackend(lambda call: "abcdef")
    for _ in range(150):
        run = two_steps.run("p", backend=backend, stream=True)
        assert "".join(run.text_iter()) == "pabcdef then abcdef."
