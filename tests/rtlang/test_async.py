"""Async bodies and callers: the same core, and no thread per program."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from conftest import MakeEngine
from fake_backend import FakeBackend, Play

import rtlang as rt
from rtlang.errors import EngineError, ForkErrors, ProgramError, RequestAborted
from rtlang.testing import ScriptedModel


@rt.function
async def chat(s: rt.ProgramState, question: str) -> str:
    async with s.user():
        s += question
    s += rt.assistant(rt.gen("answer"))
    answer: str = await s.get("answer")
    forks = s.fork(2)
    forks += rt.user("more") + rt.assistant(rt.gen("more"))
    await forks.async_join()
    return answer.upper()


@rt.function
def sync_chat(s: rt.ProgramState, question: str) -> str:
    with s.user():
        s += question
    s += rt.assistant(rt.gen("answer"))
    answer: str = s["answer"]
    forks = s.fork(2)
    forks += rt.user("more") + rt.assistant(rt.gen("more"))
    forks.join()
    return answer.upper()


def test_sync_and_async_bodies_and_callers_are_the_same_program(make_engine: MakeEngine) -> None:
    engine = make_engine(ScriptedModel(logits=lambda ids: dict.fromkeys(range(97, 123), 0.0)))
    options: dict[str, Any] = {"backend": engine, "seed": 1, "max_new_tokens": 6}
    traces = []
    for program in (chat, sync_chat):
        for run in (program.run("q", **options), asyncio.run(program.arun("q", **options))):
            traces.append((run.value, run["answer"], run["more"], run.text()))
    assert traces[1:] == traces[:-1]


def test_async_methods_and_signatures() -> None:
    class Agent:
        @rt.function
        async def ask(self, s: rt.ProgramState, q: str) -> int:
            """Ask."""
            s += q + rt.gen("x")
            return len(await s.get("x"))

    assert Agent().ask.run("q", backend=FakeBackend()).value == 2
    assert Agent.ask.__doc__ == "Ask."


def test_a_blocking_read_in_an_async_body_is_an_error_not_a_deadlock() -> None:
    @rt.function
    async def program(s: rt.ProgramState) -> None:
        s += "p" + rt.gen("x")
        for read in (lambda: s["x"], s.text, s.sync, lambda: "x" in s, lambda: list(s.text_iter())):
            with pytest.raises(ProgramError, match="await"):
                read()
        await s.async_sync()
        assert s["x"] == "ok" and s.text() == await s.async_text() == "pok"

    def backend() -> FakeBackend:
        return FakeBackend(lambda call: Play("ok", delay_s=0.01))

    program.run(backend=backend())
    asyncio.run(program.arun(backend=backend()))


def test_run_inside_an_async_body_of_run_is_an_error() -> None:
    @rt.function
    async def outer(s: rt.ProgramState) -> None:
        with pytest.raises(ProgramError, match="arun"):
            chat.run("q", backend=FakeBackend())
        inner = await chat.arun("q", backend=FakeBackend())
        s += "inner said " + inner["answer"]

    assert outer.run(backend=FakeBackend()).text() == "inner said ok"


def test_async_streams() -> None:
    backend = FakeBackend(lambda call: Play("abc", delay_s=0.001))

    async def main() -> None:
        run = await chat.arun("q", backend=backend, stream=True)
        assert [chunk async for chunk in run.text_async_iter("answer")] == ["a", "b", "c"]
        text = "".join([chunk async for chunk in run.text_async_iter()])
        await run.async_wait()
        assert text == run.text() and run.value == "ABC"

    asyncio.run(main())


def test_async_errors_are_the_original_ones() -> None:
    error = EngineError("boom")
    backend = FakeBackend(lambda call: Play("ab", error))

    @rt.function
    async def program(s: rt.ProgramState) -> None:
        s += "p"
        forks = s.fork(2)
        forks += rt.gen("x")
        with pytest.raises(ForkErrors):
            await forks.async_join()
        s += rt.gen("y")
        received = []
        with pytest.raises(EngineError) as raised:
            async for chunk in s.text_async_iter("y"):
                received.append(chunk)
        assert received == ["a", "b"] and raised.value is error
        with pytest.raises(EngineError):
            await s.get("unknown")

    with pytest.raises(EngineError) as raised:
        asyncio.run(program.arun(backend=backend))
    assert raised.value is error
    run = asyncio.run(program.arun(backend=backend, raise_errors=False))
    assert run.error is error


def test_cancelling_the_task_aborts_the_program() -> None:
    backend = FakeBackend(lambda call: Play("x" * 10000, delay_s=0.005))

    async def main(program: Any) -> None:
        task = asyncio.create_task(program.arun("q", backend=backend))
        while not backend.calls:
            await asyncio.sleep(0.002)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        while backend.num_running:
            await asyncio.sleep(0.002)
        backend.calls.clear()

    asyncio.run(main(chat))
    asyncio.run(main(sync_chat))
    assert len(backend.aborted) == 2


def test_a_thousand_programs_need_no_thread_each() -> None:
    backend = FakeBackend(lambda call: Play("ok", delay_s=0.001))
    peak: list[int] = []

    @rt.function
    async def program(s: rt.ProgramState, i: int) -> int:
        s += f"{i}" + rt.gen("x")
        await s.get("x")
        peak.append(threading.active_count())
        return i

    before = threading.active_count()
    items = [{"i": i} for i in range(1000)]
    runs = asyncio.run(program.abatch(items, backend=backend, concurrency=1000))
    assert [run.value for run in runs] == list(range(1000))
    assert max(peak) <= before + 1


def test_abatch_keeps_errors_at_their_positions() -> None:
    def play(call: Any) -> Play | str:
        return Play(error=EngineError("boom")) if bytes(call.input_ids) == b"3" else "ok"

    @rt.function
    async def program(s: rt.ProgramState, i: int) -> None:
        s += f"{i}" + rt.gen("x")
        if i == 5:
            raise ValueError("user")

    backend = FakeBackend(play)
    runs = asyncio.run(program.abatch([(i,) for i in range(8)], backend=backend, concurrency=3))
    assert [type(run.error).__name__ for run in runs if run.error] == ["EngineError", "ValueError"]
    assert [i for i, run in enumerate(runs) if run.error] == [3, 5]
    sync_runs = asyncio.run(sync_chat.abatch([("q",)] * 4, backend=FakeBackend()))
    assert [run.value for run in sync_runs] == ["OK"] * 4
    mixed = chat.run_batch([("q",)] * 4, backend=FakeBackend())
    assert [run.value for run in mixed] == ["OK"] * 4


def test_a_cancelled_abatch_stops_everything() -> None:
    backend = FakeBackend(lambda call: Play("x" * 10000, delay_s=0.005))

    async def main() -> None:
        task = asyncio.create_task(chat.abatch([("q",)] * 20, backend=backend, concurrency=4))
        while len(backend.calls) < 4:
            await asyncio.sleep(0.002)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        while backend.num_running:
            await asyncio.sleep(0.002)

    asyncio.run(main())
    assert len(backend.aborted) == len(backend.calls) == 4


def test_an_async_cancel_from_inside() -> None:
    backend = FakeBackend(lambda call: Play("x" * 10000, delay_s=0.002))

    @rt.function
    async def program(s: rt.ProgramState) -> None:
        s += "p"
        forks = s.fork(2)
        forks += rt.gen("x")
        async for _ in forks[0].text_async_iter("x"):
            break
        forks[0].cancel()
        forks[1].cancel()
        with pytest.raises(RequestAborted):
            await forks[0].get("x")

    assert program.run(backend=backend).error is None
    assert backend.num_running == 0
