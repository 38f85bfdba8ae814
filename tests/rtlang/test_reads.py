"""Reading a state: what waits, what raises at once, and that nothing ever hangs."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from conftest import MakeEngine
from fake_backend import FakeBackend, Play

import rtlang as rt
from rtlang.errors import DeadlineExceeded, EngineError, ProgramError, UnknownVariable
from rtlang.testing import ByteTokenizer, ScriptedModel


def run_body(body: Callable[[rt.ProgramState], Any], backend: FakeBackend, **options: Any) -> Any:
    return rt.function(body).run(backend=backend, **options)


def test_appending_does_not_wait_and_reading_does() -> None:
    gate = threading.Event()
    backend = FakeBackend(lambda call: Play("abc", gate=gate))

    def body(s: rt.ProgramState) -> None:
        s += "p" + rt.gen("x")
        s += "q" + rt.gen("y")
        gate.set()
        assert "x" in s and "z" not in s  # waits for the pending one
        assert s["x"] == s.get_var("x") == "abc"
        assert s.get_meta_info("y")["completion_tokens"] == 4

    run_body(body, backend)
    assert backend.prompts() == ["p", "pabcq"]


def test_set_variables_take_their_turn() -> None:
    gate = threading.Event()
    backend = FakeBackend(lambda call: Play("generated", gate=gate))

    def body(s: rt.ProgramState) -> None:
        s["a"] = 1
        assert s["a"] == 1
        s += "p" + rt.gen("x")
        s["x"] = "mine"  # after the gen, which is still pending
        s.set_var("b", [2])
        gate.set()
        assert (s["x"], s["b"], s.get_meta_info("b")) == ("mine", [2], None)

    assert run_body(body, backend).text() == "pgenerated"


def test_unknown_names_raise_at_once_and_name_what_is_near() -> None:
    gate = threading.Event()
    backend = FakeBackend(lambda call: Play("abc", gate=gate))

    def body(s: rt.ProgramState) -> None:
        with pytest.raises(UnknownVariable, match="none yet"):
            s["answer"]
        s += "p" + rt.gen("answer")
        with pytest.raises(UnknownVariable, match="mean 'answer'"):
            s["anwser"]
        with pytest.raises(KeyError):
            s.get_meta_info("q")
        with pytest.raises(UnknownVariable):
            list(s.text_iter("q"))
        gate.set()

    run_body(body, backend)


def test_unnamed_gens_are_numbered_and_never_lost() -> None:
    answers = iter(["a", "b", "c"])
    backend = FakeBackend(lambda call: next(answers))

    def body(s: rt.ProgramState) -> None:
        s += "p" + rt.gen() + rt.gen("named") + rt.gen()

    run = run_body(body, backend)
    assert (run["gen_0"], run["named"], run["gen_1"]) == ("a", "b", "c")


def test_wrong_expressions_raise_at_their_line_and_append_nothing() -> None:
    def body(s: rt.ProgramState) -> None:
        s += "text"
        for wrong in (None, 5, s, object()):
            with pytest.raises(TypeError):
                s += wrong  # type: ignore[arg-type]
        assert s.text() == "text"

    run_body(body, FakeBackend())


def test_g5_n_samples_are_a_list_and_no_text() -> None:
    answers = iter(["a1", "a2", "a3"])
    backend = FakeBackend(lambda call: next(answers))

    def body(s: rt.ProgramState) -> None:
        s += "p" + rt.gen("x", n=3, stop="!") + "."
        with pytest.raises(TypeError, match="pick one"):
            s += s["x"]
        s += s["x"][1]

    run = run_body(body, backend)
    assert run["x"] == ["a1", "a2", "a3"]
    assert [m["completion_tokens"] for m in run.get_meta_info("x")] == [3, 3, 3]
    assert run.text() == "pa1.a2"
    assert [(c.choice, c.params.n, c.params.stop) for c in backend.calls] == [
        (0, 1, ("!",)), (1, 1, ("!",)), (2, 1, ("!",)),
    ]  # fmt: skip


def test_one_failing_sample_aborts_its_siblings() -> None:
    plays = iter([Play("x" * 1000, delay_s=0.01), Play(error=EngineError("boom"))])
    backend = FakeBackend(lambda call: next(plays))
    with pytest.raises(EngineError, match="boom"):
        run_body(lambda s: s.__iadd__("p" + rt.gen("x", n=2)), backend)
    assert len(backend.aborted) == 1 and backend.num_running == 0


def test_after_a_failure_appends_are_accepted_and_every_read_raises_the_same() -> None:
    error = ValueError("from the backend")
    backend = FakeBackend(lambda call: Play("ab", error))

    def body(s: rt.ProgramState) -> None:
        s += "p" + rt.gen("x") + "q" + rt.gen("y")
        with pytest.raises(ValueError, match="from the backend") as raised:
            s["y"]  # never started
        assert raised.value is error
        s += "more" + rt.gen("z")
        forks = s.fork(2)
        forks += "branch" + rt.gen("v")
        for read in (lambda: s["z"], lambda: s["no such"], s.text, s.sync, s.messages,
                     s.token_ids, forks.join, forks[0].sync, lambda: forks[1]["v"],
                     lambda: list(s.text_iter()), lambda: list(s.text_iter("x"))):  # fmt: skip
            with pytest.raises(ValueError, match="from the backend") as again:
                read()
            assert again.value is error

    run = run_body(body, backend, raise_errors=False)
    assert run.error is error
    assert len(backend.calls) == 1


def test_a_refusal_by_the_backend_is_an_error_of_the_program() -> None:
    backend = FakeBackend()
    backend.refuse = EngineError("closed")
    with pytest.raises(EngineError) as raised:
        run_body(lambda s: s.__iadd__("p" + rt.gen("x")), backend)
    assert raised.value is backend.refuse
    assert "test_reads.py" in raised.value.__notes__[0]


def test_a_deadline_carries_the_partial_text() -> None:
    error = DeadlineExceeded("too late")
    backend = FakeBackend(lambda call: Play("partial", error))
    with pytest.raises(DeadlineExceeded) as raised:
        run_body(lambda s: s.__iadd__("p" + rt.gen("x", timeout=5)), backend)
    assert raised.value is error and raised.value.text == "partial"


def test_a_var_scope_holds_the_text_inside() -> None:
    backend = FakeBackend(lambda call: "42")

    def body(s: rt.ProgramState) -> None:
        s += "a "
        with s.var_scope("outer"):
            s += "b " + rt.gen("x")
            with s.var_scope("inner"):
                s += "!"
        assert s["outer"] == "b 42!" and s["inner"] == "!"
        with pytest.raises(RuntimeError, match="user"), s.var_scope("broken"):
            s += "c"
            raise RuntimeError("user")
        assert s["broken"] == "c"

    run_body(body, backend)


def test_cancel_ends_a_state() -> None:
    backend = FakeBackend(lambda call: Play("x" * 1000, delay_s=0.01))

    def body(s: rt.ProgramState) -> None:
        s += "p" + rt.gen("x")
        while not backend.calls:
            time.sleep(0.001)
        s.cancel()
        with pytest.raises(EngineError, match="cancelled"):
            s["x"]

    run = run_body(body, backend, raise_errors=False)
    assert isinstance(run.error, EngineError)
    assert len(backend.aborted) == 1 and backend.num_running == 0


def test_a_state_goes_on_after_its_program() -> None:
    backend = FakeBackend()
    run = run_body(lambda s: s.__iadd__("p" + rt.gen("x")), backend)
    run += " and " + rt.gen("y")
    assert run["y"] == "ok" and run.text() == "pok and ok"


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_interrupts_a_blocking_read() -> None:
    backend = FakeBackend(lambda call: Play("x" * 10000, delay_s=0.01))

    def body(s: rt.ProgramState) -> None:
        s += "p" + rt.gen("x")
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
        s.sync()

    with pytest.raises(KeyboardInterrupt):
        run_body(body, backend)
    deadline = time.monotonic() + 10
    while backend.num_running and time.monotonic() < deadline:
        time.sleep(0.005)
    assert backend.num_running == 0


def test_a_forked_process_runs_programs_and_refuses_to_wait_for_its_parents() -> None:
    gate = threading.Event()
    backend = FakeBackend(lambda call: Play("abc", gate=gate))

    def body(s: rt.ProgramState) -> None:
        s += "p" + rt.gen("x")
        while not backend.calls:
            time.sleep(0.001)
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                s["x"]
            except ProgramError:
                run = run_body(lambda t: t.__iadd__("q" + rt.gen("y")), FakeBackend())
                code = 0 if run["y"] == "ok" else 2
            finally:
                os._exit(code)
        _, status = os.waitpid(pid, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        gate.set()
        assert s["x"] == "abc"

    run_body(body, backend)


def test_logprobs_are_in_the_meta_info_with_sglangs_keys(make_engine: MakeEngine) -> None:
    engine = make_engine(ScriptedModel(logits=lambda ids: {97: 0.0, 98: -1.0, 256: -9.0}))

    @rt.function
    def program(s: rt.ProgramState) -> None:
        s += "prompt"
        s += rt.gen("x", 2, temperature=0, return_logprob=True, top_logprobs_num=2,
                    logprob_start_len=4, return_text_in_logprobs=True)  # fmt: skip

    meta = program.run(backend=engine).get_meta_info("x")
    assert [token for _, token, _ in meta["input_token_logprobs"]] == list(b"pt")
    assert [(token, text) for _, token, text in meta["output_token_logprobs"]] == [(97, "a")] * 2
    assert [[t for _, t, _ in row] for row in meta["output_top_logprobs"]] == [[97, 98]] * 2
    assert meta["output_token_logprobs"][0][0] == pytest.approx(-0.3133, abs=1e-3)
    assert meta["finish_reason"]["type"] == "length"


def test_neighbouring_text_merges_and_generated_ids_stay() -> None:
    """Law 7: a merge across the border of text and answer neither loses KV nor changes ids."""

    class Merging(ByteTokenizer):
        """Every "ab" of a text is one token, 261."""

        def encode(self, text: str, *, add_bos: bool = True, control: bool = True) -> list[int]:
            pieces = [list(piece.encode()) for piece in text.split("ab")]
            return sum(([261, *piece] for piece in pieces[1:]), pieces[0])

    backend = FakeBackend(lambda call: "b", tokenizer=Merging())

    def body(s: rt.ProgramState) -> None:
        s += "xa"
        s += "b"  # one text with what is before it
        s += "-a" + rt.gen("x") + "a" + rt.gen("y")

    run_body(body, backend)
    a, b, dash = b"ab-"
    assert [list(c.input_ids) for c in backend.calls] == [
        [ord("x"), 261, dash, a],
        [ord("x"), 261, dash, a, b, a],
    ]
