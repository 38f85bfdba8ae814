"""``function`` and the ways to run a program."""

from __future__ import annotations

import inspect
import threading
import time
from typing import Any, assert_type

import pytest
from conftest import MakeEngine
from fake_backend import FakeBackend, Play

import rtlang as rt
from rtlang.errors import (
    ConfigError,
    InvalidParameter,
    ProgramError,
    PromptTooLong,
    RequestAborted,
    Unsupported,
)
from rtlang.testing import ScriptedModel


@rt.function
def answer(state: rt.ProgramState, question: str, *, style: str = "short") -> str:
    """Answer a question."""
    state += f"{question} ({style}): "
    state += rt.gen("answer")
    return question.upper()


class Agent:
    def __init__(self, name: str) -> None:
        self.name = name

    @rt.function
    def ask(self, me: rt.ProgramState, question: str) -> str:
        me += f"{self.name}: {question}" + rt.gen("answer")
        return self.name


def test_a_program_keeps_its_functions_face() -> None:
    assert answer.__name__ == "answer" and answer.__doc__ == "Answer a question."
    assert answer.__wrapped__.__name__ == "answer"
    assert str(inspect.signature(answer)) == "(question: 'str', *, style: 'str' = 'short') -> 'str'"
    assert "answer(question" in repr(answer)


def test_methods_are_programs_too() -> None:
    backend = FakeBackend()
    run = Agent("Ann").ask.run("hi?", backend=backend)
    assert (run.value, run["answer"], backend.prompts()) == ("Ann", "ok", ["Ann: hi?"])
    assert list(inspect.signature(Agent("Ann").ask).parameters) == ["question"]


def test_run_returns_the_state_with_value_and_usage() -> None:
    run = answer.run(question="why", style="long", backend=FakeBackend())
    assert_type(run.value, str)
    assert run["answer"] == "ok" and run.value == run.ret_value == "WHY" and run.error is None
    assert run.text() == "why (long): ok"
    assert run.usage.prompt_tokens == len("why (long): ")
    assert run.get_meta_info("answer")["finish_reason"]["type"] == "stop"


def test_bound_arguments_yield_to_the_calls_own() -> None:
    backend = FakeBackend()
    bound = answer.bind(question="q", style="bound")
    bound.run(backend=backend)
    bound.run(style="own", backend=backend)
    bound.run("pos", backend=backend)
    assert backend.prompts() == ["q (bound): ", "q (own): ", "pos (bound): "]
    with pytest.raises(ProgramError, match="colour"):
        answer.bind(colour="red")


def test_wrong_arguments_of_the_body_are_type_errors() -> None:
    with pytest.raises(TypeError):
        answer.run(backend=FakeBackend())
    with pytest.raises(TypeError, match="nonsense"):
        answer.run("q", nonsense=1, backend=FakeBackend())


def test_an_option_that_is_also_a_parameter_is_ambiguous() -> None:
    @rt.function
    def program(s: rt.ProgramState, stop: str) -> None:
        s += stop + rt.gen("x")

    with pytest.raises(ProgramError, match="stop"):
        program.run(stop="x", backend=FakeBackend())
    assert program.run("x", backend=FakeBackend())["x"] == "ok"


def test_wrong_options_raise_at_run() -> None:
    with pytest.raises(InvalidParameter, match="temperature"):
        answer.run("q", temperature=-1, backend=FakeBackend())
    with pytest.raises(Unsupported, match="beam_width"):
        answer.run("q", beam_width=2, backend=FakeBackend())
    with pytest.raises(InvalidParameter, match="seed"):
        answer.run_batch([("q",)], seed=2**64, backend=FakeBackend())


def test_what_cannot_be_a_program_is_refused_when_decorated() -> None:
    with pytest.raises(ProgramError, match="first parameter"):
        rt.function(lambda: None)

    def generator(s: rt.ProgramState) -> Any:
        yield s

    with pytest.raises(ProgramError, match="generator"):
        rt.function(generator)
    with pytest.raises(Unsupported, match="num_api_spec_tokens"):
        rt.function(num_api_spec_tokens=8)


def test_a_program_called_with_a_state_continues_on_it() -> None:
    backend = FakeBackend()

    @rt.function
    def outer(s: rt.ProgramState) -> str:
        s += "a "
        return str(answer(s, "inner"))

    run = outer.run(backend=backend)
    assert run.value == "INNER" and run["answer"] == "ok"
    assert backend.prompts() == ["a inner (short): "]
    assert answer("q", backend=backend)["answer"] == "ok"  # without a state it is run()


def test_run_waits_for_everything_and_raises_the_first_error() -> None:
    error = RuntimeError("boom")

    @rt.function
    def program(s: rt.ProgramState) -> str:
        s += "p" + rt.gen("x")
        return "done"

    backend = FakeBackend(lambda call: Play("abc", error, delay_s=0.01))
    with pytest.raises(RuntimeError) as raised:
        program.run(backend=backend)
    assert raised.value is error
    run = program.run(backend=backend, raise_errors=False)
    assert run.error is error
    with pytest.raises(RuntimeError):
        run["x"]
    with pytest.raises(RuntimeError):
        _ = run.value


def test_an_exception_of_the_body_aborts_what_still_runs() -> None:
    backend = FakeBackend(lambda call: Play("x" * 1000, delay_s=0.01))

    @rt.function
    def program(s: rt.ProgramState) -> None:
        s += "p"
        forks = s.fork(3)
        forks += rt.gen("x")
        while len(backend.calls) < 3:
            time.sleep(0.001)
        raise ValueError("user")

    with pytest.raises(ValueError, match="user"):
        program.run(backend=backend)
    assert len(backend.aborted) == 3 and backend.num_running == 0


def test_no_backend_and_no_backend_object_are_clear_errors() -> None:
    with pytest.raises(ProgramError, match="set_default_backend"):
        answer.run("q")
    with pytest.raises(ConfigError):
        answer.run("q", backend="smollm2")


def test_default_backend_use_and_run_have_precedence_in_this_order() -> None:
    default, scoped, own = FakeBackend(), FakeBackend(), FakeBackend()
    rt.set_default_backend(default)
    try:
        answer.run("q")
        with rt.use(scoped, temperature=0.5, max_new_tokens=7):
            answer.run("q")
            with rt.use(temperature=0.25):
                answer.run("q")
            answer.run("q", backend=own, temperature=0.1)
            rt.flush_cache()
    finally:
        rt.set_default_backend(None)
    assert [len(b.calls) for b in (default, scoped, own)] == [1, 2, 1]
    assert [c.params.temperature for c in scoped.calls] == [0.5, 0.25]
    assert (own.calls[0].params.temperature, own.calls[0].params.max_new_tokens) == (0.1, 7)
    assert (default.num_flushed, scoped.num_flushed) == (0, 1)


def test_two_threads_with_two_backends_never_cross() -> None:
    backends = [FakeBackend(lambda call: "b0"), FakeBackend(lambda call: "b1")]
    found: dict[int, set[str]] = {0: set(), 1: set()}

    def work(i: int) -> None:
        with rt.use(backends[i]):
            for _ in range(20):
                found[i].add(answer.run("q")["answer"])
            runs = answer.run_batch([("q",)] * 20, num_threads=4)
            found[i].update(run["answer"] for run in runs)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {0: {"b0"}, 1: {"b1"}}


# -- batches ------------------------------------------------------------------------------------


def test_g4_errors_of_a_batch_stay_at_their_own_positions() -> None:
    refused = PromptTooLong("too long")

    def play(call: Any) -> Play | str:
        prompt = bytes(call.input_ids).decode()
        return Play(error=refused) if prompt.startswith("7 ") else f"answer to {prompt[:2].strip()}"

    bodies: list[str] = []

    @rt.function
    def program(s: rt.ProgramState, q: str) -> None:
        bodies.append(q)
        s += f"{q} " + rt.gen("answer")
        if q == "12":
            raise ValueError("user code")

    runs = program.run_batch([{"q": str(i)} for i in range(20)], backend=FakeBackend(play))
    assert sorted(bodies, key=int) == [str(i) for i in range(20)]  # each body ran once
    for i, run in enumerate(runs):
        if i == 7:
            assert run.error is refused
            with pytest.raises(PromptTooLong):
                run["answer"]
        elif i == 12:
            assert isinstance(run.error, ValueError)
            with pytest.raises(ValueError, match="user code"):
                run["answer"]
        else:
            assert run.error is None and run["answer"] == f"answer to {i}"


def test_a_batch_takes_any_iterable_and_keeps_order() -> None:
    backend = FakeBackend(lambda call: Play("z", delay_s=0.02 if call.input_ids[0] == 48 else 0))
    runs = answer.run_batch(((f"{i}",) for i in range(5)), backend=backend, num_threads=2)
    assert [run.value for run in runs] == ["0", "1", "2", "3", "4"]
    assert answer.run_batch([], backend=backend) == []


def test_a_generator_style_batch_takes_items_as_results_are_read() -> None:
    taken: list[int] = []

    def items() -> Any:
        for i in range(100):
            taken.append(i)
            yield (f"{i}",)

    results = answer.run_batch(items(), backend=FakeBackend(), num_threads=2, generator_style=True)
    assert next(results).value == "0"
    assert len(taken) <= 5
    assert [run.value for run in results] == [str(i) for i in range(1, 100)]


def test_a_bad_item_or_worker_count_is_an_error_of_the_call() -> None:
    with pytest.raises(TypeError, match="item 1"):
        answer.run_batch([("q",), "text"], backend=FakeBackend())
    with pytest.raises(InvalidParameter):
        answer.run_batch([("q",)], num_threads=0, backend=FakeBackend())


def test_an_interrupted_batch_cancels_everything() -> None:
    backend = FakeBackend(lambda call: Play("x" * 1000, delay_s=0.01))
    ends: list[BaseException] = []

    @rt.function
    def program(s: rt.ProgramState, i: int) -> None:
        s += f"{i}" + rt.gen("x")
        if i == 3:
            while len(backend.calls) < 4:
                time.sleep(0.001)
            raise KeyboardInterrupt
        try:
            s.sync()
        except RequestAborted as error:
            ends.append(error)

    with pytest.raises(KeyboardInterrupt):
        # The interrupt comes out of the newest item, while the others still run.
        list(program.run_batch(((i,) for i in (3, 0, 1, 2)), backend=backend, generator_style=True))
    deadline = time.monotonic() + 10
    while (len(ends) < 3 or backend.num_running) and time.monotonic() < deadline:
        time.sleep(0.005)
    assert len(ends) == 3 and backend.num_running == 0


def test_a_progress_bar_counts_programs(capsys: pytest.CaptureFixture[str]) -> None:
    answer.run_batch([("q",)] * 3, backend=FakeBackend(), progress_bar=True)
    assert "100%" in capsys.readouterr().out


def test_same_seed_same_trace_whatever_runs_beside(make_engine: MakeEngine) -> None:
    engine = make_engine(ScriptedModel(logits=lambda ids: dict.fromkeys(range(97, 123), 0.0)))

    @rt.function
    def program(s: rt.ProgramState, q: str) -> tuple[str, list[str]]:
        s += q + rt.gen("a", max_tokens=8)
        forks = s.fork(2)
        forks += rt.gen("b", max_tokens=8)
        return s["a"], forks.join()["b"]

    items: list[dict[str, Any]] = [{"q": f"{i}"} for i in range(12)]
    alone = [program.run(**item, backend=engine, seed=5).value for item in items]
    beside = [run.value for run in program.run_batch(items, backend=engine, seed=5)]
    other = program.run(q="0", backend=engine, seed=6).value
    assert alone == beside
    assert other != alone[0]
    assert alone[0][1][0] != alone[0][1][1]  # branches draw differently
