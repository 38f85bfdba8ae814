"""Forks: what branches share, how they end, and that no announced branch is left over."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from conftest import MakeEngine
from fake_backend import FakeBackend, Play

import rtlang as rt
from rtlang.errors import EngineError, ForkErrors, ProgramError, Unsupported
from rtlang.testing import ScriptedModel


def run_body(body: Callable[[rt.ProgramState], Any], backend: FakeBackend, **options: Any) -> Any:
    return rt.function(body).run(backend=backend, **options)


def last_char(call: Any) -> str:
    return chr(call.input_ids[-1])


def test_g1_fork_as_the_first_statement_and_after_text() -> None:
    backend = FakeBackend(lambda call: last_char(call).upper())

    def body(s: rt.ProgramState) -> None:
        forks = s.fork(3)  # nothing to announce
        forks += ["a", "b", "c"]
        forks += rt.gen("x")
        forks.join()
        s += "text"
        later = s.fork(2)
        s += " of the parent"
        later += lambda i: f"{i}" + rt.gen("y")
        later[0].__iadd__(" of a branch")
        later.join()
        assert [f.text() for f in later] == ["text00 of a branch", "text11"]

    run = run_body(body, backend)
    assert run["x"] == ["A", "B", "C"] and run["y"] == ["0", "1"]
    assert run.text() == "text of the parent"
    assert backend.announced == [(list(b"text"), 2)]
    assert [c.fork_id for c in backend.calls] == ["", "", "", "fork-1", "fork-1"]


def test_children_equal_their_parent() -> None:
    backend = FakeBackend(lambda call: "ok")

    def body(s: rt.ProgramState) -> None:
        s += rt.system("be kind")
        s += rt.user("hi") + rt.assistant(rt.gen("a"))
        s["b"] = 7
        s += rt.user_begin() + "open "
        for child in s.fork(2):
            assert child["a"] == "ok" and child["b"] == 7
            assert child.get_meta_info("a") == s.get_meta_info("a")
            assert child.text() == s.text() and child.messages() == s.messages()
            assert child.token_ids() == s.token_ids()
            child += "end" + rt.user_end()  # the role is open there, too
            assert child.messages()[-1] == {"role": "user", "content": "open end"}

    run_body(body, backend)


def test_only_the_first_call_of_a_branch_carries_the_fork_id() -> None:
    backend = FakeBackend()

    def body(s: rt.ProgramState) -> None:
        s += "prefix"
        forks = s.fork(2)
        forks += "a" + rt.gen("x") + rt.gen("y", n=2)
        forks.join()

    run_body(body, backend)
    assert sorted(c.fork_id for c in backend.calls) == [""] * 4 + ["fork-1"] * 2
    assert backend.branch_balance("fork-1") == 0 and backend.closed == []


def test_branches_without_a_call_are_closed_however_they_end() -> None:
    backend = FakeBackend(lambda call: Play(error=EngineError("boom")))

    def joined(s: rt.ProgramState) -> None:
        s += "prefix"
        forks = s.fork(3)
        forks += "text"
        forks.join()
        assert backend.branch_balance("fork-1") == 0

    def program_ends(s: rt.ProgramState) -> None:
        s += "prefix"
        kept.append(s.fork(2))

    def failed(s: rt.ProgramState) -> None:
        s += "prefix"
        kept.append(s.fork(2))
        s += rt.gen("x")

    def dropped(s: rt.ProgramState) -> None:
        s += "prefix"
        s.fork(2)
        s.sync()
        gc.collect()
        deadline = time.monotonic() + 5
        while backend.branch_balance("fork-4") and time.monotonic() < deadline:
            time.sleep(0.005)
        assert backend.branch_balance("fork-4") == 0

    kept: list[Any] = []
    for body in (joined, program_ends, failed, dropped):
        run_body(body, backend, raise_errors=body is not failed)
    assert [backend.branch_balance(f"fork-{i}") for i in range(1, 5)] == [0] * 4


def test_a_nested_fork_keeps_its_share_until_its_own_announcement_is_computed() -> None:
    gate = threading.Event()
    backend = FakeBackend(announcement=Play(gate=gate))

    def body(s: rt.ProgramState) -> None:
        s += "a"
        outer = s.fork(2)
        outer += "b"
        inner = [branch.fork(2) for branch in outer]
        for forks in inner:
            forks += "c" + rt.gen("x")
        for forks in inner:
            assert forks.join() == {"x": ["ok", "ok"]}
        assert backend.branch_balance("fork-1") == 2  # announcements do not end before the gate
        gate.set()

    run_body(body, backend)
    assert [ids for ids, _ in backend.announced] == [list(b"a"), list(b"ab"), list(b"ab")]
    assert [backend.branch_balance(f"fork-{i}") for i in (1, 2, 3)] == [0, 0, 0]


def test_a_failed_announcement_hangs_nobody_and_is_not_lost() -> None:
    error = EngineError("no room")
    backend = FakeBackend(announcement=Play(error=error))

    def body(s: rt.ProgramState) -> None:
        s += "prefix"
        forks = s.fork(2)
        forks += rt.gen("x")
        assert [f["x"] for f in forks] == ["ok", "ok"]  # branches stand alone

    run = run_body(body, backend, raise_errors=False)
    assert run.error is error


def test_a_refused_announcement_fails_parent_and_branches() -> None:
    class Refusing(FakeBackend):
        def announce(self, *args: Any, **kwargs: Any) -> Any:
            raise error

    error = EngineError("refused")

    def body(s: rt.ProgramState) -> None:
        s += "prefix"
        forks = s.fork(2)
        forks += rt.gen("x")
        for read in (lambda: forks[1]["x"], forks.join, s.sync):
            with pytest.raises(EngineError) as raised:
                read()
            assert raised.value is error

    run = run_body(body, Refusing(), raise_errors=False)
    assert run.error is error


def test_join_gathers_names_that_the_parent_had_and_their_metas() -> None:
    backend = FakeBackend(lambda call: last_char(call).upper())

    def body(s: rt.ProgramState) -> None:
        s += "p"
        s["x"] = "old"
        for letters in ("ab", "cd"):  # a second fork on one name loses nothing
            forks = s.fork(2)
            forks += list(letters)
            forks += rt.gen("x")
            lists = forks.join("gather_variable")
            assert lists == {"x": [c.upper() for c in letters]} and s["x"] == lists["x"]
            assert [m["completion_tokens"] for m in s.get_meta_info("x")] == [2, 2]

    run_body(body, backend)


def test_names_that_only_some_branches_set_keep_their_index() -> None:
    def body(s: rt.ProgramState) -> None:
        s += "p"
        forks = s.fork(3)
        forks[1].set_var("odd", 1)
        forks += rt.gen("x")
        assert forks.join() == {"odd": [None, 1, None], "x": ["ok"] * 3}

    run_body(body, FakeBackend())


def test_fork_takes_a_list_and_groups_take_lists_functions_and_text() -> None:
    backend = FakeBackend()

    def body(s: rt.ProgramState) -> None:
        forks = s.fork(["a", "b" + rt.gen("x")])
        forks += "1"
        forks += ["2", "3"]
        forks += lambda i: f"<{i}>"
        assert [f.text() for f in forks] == ["a12<0>", "bok13<1>"]
        assert len(forks) == 2 and forks[1]["x"] == "ok"
        lengths: list[list[str]] = [["only one"], ["1", "2", "3"]]
        for wrong in lengths:
            with pytest.raises(ProgramError, match="2 branches"):
                forks += wrong
        with pytest.raises(TypeError):
            forks += None  # type: ignore[arg-type]

    run_body(body, backend)


def test_wrong_forks_and_joins_are_refused() -> None:
    def body(s: rt.ProgramState) -> None:
        s += "p"
        numbers: list[Any] = [0, -1, [], "text", True]
        for wrong in numbers:
            with pytest.raises(ProgramError):
                s.fork(wrong)
        forks = s.fork(2)
        with pytest.raises(Unsupported, match="concate_and_append"):
            forks.join("concate_and_append")
        for mode, options in (("best", {}), ("gather", {"on_error": "ignore"}),
                              ("gather", {"k": 1}), ("first", {"k": 3})):  # fmt: skip
            with pytest.raises(ProgramError):
                forks.join(mode, **options)  # type: ignore[arg-type]

    run_body(body, FakeBackend())


def failing(call: Any) -> Play:
    if last_char(call) in "bd":
        return Play("x", EngineError(last_char(call)), delay_s=0.01)
    return Play("fine" if last_char(call) == "a" else "slow " * 200, delay_s=0.005)


def test_join_raises_a_group_of_the_branches_own_exceptions() -> None:
    backend = FakeBackend(lambda call: failing(call) if last_char(call) in "abd" else "ok")

    def body(s: rt.ProgramState) -> None:
        s += "p"
        forks = s.fork(["a", "b", "c", "d"])
        forks += rt.gen("x")
        with pytest.raises(ForkErrors) as raised:
            forks.join()
        group = raised.value
        errors: list[Any] = list(group.exceptions)
        assert [(e.index, str(e)) for e in errors] == [(1, "b"), (3, "d")]
        for error in errors:
            with pytest.raises(EngineError) as again:
                forks[error.index].sync()
            assert again.value is error
        with pytest.raises(ProgramError):
            s["x"]

    assert run_body(body, backend).error is None  # the errors were told


def test_keep_leaves_placeholders_even_where_all_branches_failed() -> None:
    backend = FakeBackend(lambda call: Play(error=EngineError(last_char(call))))

    def body(s: rt.ProgramState) -> None:
        s += "p"
        forks = s.fork(["a", "b"])
        forks += rt.gen("x")
        forks.join(on_error="keep")
        assert [(f.index, str(f.error)) for f in s["x"]] == [(0, "a"), (1, "b")]

    run_body(body, backend)


def test_cancel_aborts_the_siblings_of_the_first_failure() -> None:
    backend = FakeBackend(failing)

    def body(s: rt.ProgramState) -> None:
        s += "p"
        forks = s.fork(["b", "c", "e"])
        forks += rt.gen("x")
        with pytest.raises(ForkErrors) as raised:
            forks.join(on_error="cancel")
        assert [getattr(e, "index", None) for e in raised.value.exceptions] == [0]

    run_body(body, backend)
    assert len(backend.aborted) == 2 and backend.num_running == 0


def test_first_takes_the_winners_in_branch_order_and_aborts_the_rest() -> None:
    backend = FakeBackend(
        lambda call: Play(last_char(call) * (3 if last_char(call) in "bd" else 5000), delay_s=0.002)
    )

    def body(s: rt.ProgramState) -> None:
        s += "p"
        forks = s.fork(["a", "b", "c", "d", "e"])
        forks += rt.gen("x")
        assert forks.join("first", k=2) == {"x": ["bbb", "ddd"]}
        assert s["x"] == ["bbb", "ddd"]

    run_body(body, backend)
    assert len(backend.aborted) == 3 and backend.num_running == 0
    assert backend.branch_balance("fork-1") == 0


def test_first_ignores_failures_while_enough_branches_are_left() -> None:
    backend = FakeBackend(failing)

    def body(s: rt.ProgramState) -> None:
        s += "p"
        forks = s.fork(["b", "a"])
        forks += rt.gen("x")
        assert forks.join("first") == {"x": ["fine"]}
        forks = s.fork(["b", "d"])
        forks += rt.gen("x")
        with pytest.raises(ForkErrors) as raised:
            forks.join("first")
        assert len(raised.value.exceptions) == 2

    run_body(body, backend)


def test_a_branchs_error_that_nobody_saw_is_the_programs() -> None:
    error = EngineError("boom")
    backend = FakeBackend(lambda call: Play(error=error))

    def body(s: rt.ProgramState) -> None:
        s += "p"
        forks = s.fork(2)
        forks[1].__iadd__(rt.gen("x"))

    with pytest.raises(EngineError) as raised:
        run_body(body, backend)
    assert raised.value is error


def test_an_error_that_was_told_of_a_branch_is_told_of_its_own_branches() -> None:
    backend = FakeBackend(lambda call: Play(error=EngineError("boom")))

    def body(s: rt.ProgramState) -> None:
        s += "p"
        branch = s.fork(2)[0]
        branch += rt.gen("x")
        inner = branch.fork(2)
        inner += rt.gen("y")
        with pytest.raises(EngineError):
            branch.sync()

    assert run_body(body, backend).error is None


def test_a_fork_inside_an_open_turn_announces_all_of_it() -> None:
    backend = FakeBackend()

    def body(s: rt.ProgramState) -> None:
        with s.user():
            s += "shared question: "
            forks = s.fork(2)
        forks += lambda i: f"{i}" + rt.user_end() + rt.assistant(rt.gen("x"))
        forks.join()

    run_body(body, backend)
    (ids, _) = backend.announced[0]
    assert bytes(i for i in ids if i < 256).endswith(b"user\nshared question: ")
    assert all(list(c.input_ids)[: len(ids)] == ids for c in backend.calls)


def test_run_waits_for_branches_that_nobody_joins() -> None:
    backend = FakeBackend(lambda call: Play("abc", delay_s=0.02))
    kept: list[Any] = []

    def body(s: rt.ProgramState) -> None:
        s += "p"
        forks = s.fork(2)
        forks += rt.gen("x")
        kept.extend(forks)

    run_body(body, backend)
    assert backend.num_running == 0
    assert [branch["x"] for branch in kept] == ["abc", "abc"]


def test_blocks_join_and_copies_keep_their_variables() -> None:
    backend = FakeBackend()

    def body(s: rt.ProgramState) -> None:
        s += "p"
        with s.fork(2) as forks:
            forks += rt.gen("x")
        assert s["x"] == ["ok", "ok"]
        with s.copy() as twin:
            twin += " copy" + rt.gen("y")
            assert twin["y"] == "ok"
        assert "y" not in s and s.text() == "p"
        with pytest.raises(RuntimeError, match="user"), s.fork(2) as forks:
            forks += "q" + rt.gen("z")
            raise RuntimeError("user")

    run = run_body(body, backend)
    assert "z" not in run
    assert backend.branch_balance("fork-1") == backend.branch_balance("fork-2") == 0


def test_many_programs_and_forks_need_no_threads(make_engine: MakeEngine) -> None:
    engine = make_engine(ScriptedModel(lambda prompt: "ok"))
    peak: list[int] = []

    @rt.function
    def program(s: rt.ProgramState, i: int) -> None:
        s += f"program {i}"
        forks = s.fork(4)
        forks += rt.gen("x")
        peak.append(threading.active_count())
        forks.join()

    before = threading.active_count()
    runs = program.run_batch([(i,) for i in range(64)], backend=engine, num_threads=8)
    assert all(run["x"] == ["ok"] * 4 for run in runs)
    assert max(peak) <= before + 8 + 1  # the workers, and the one loop


def test_a_fork_in_text_makes_the_same_ids_in_every_branch(make_engine: MakeEngine) -> None:
    engine = make_engine(ScriptedModel(lambda prompt: "ok"))

    @rt.function
    def program(s: rt.ProgramState, together: bool) -> list[list[int]]:
        s += "shared "
        branches: list[rt.ProgramState] = list(s.fork(2)) if together else [s.copy(), s.copy()]
        for i, branch in enumerate(branches):
            branch += f"own {i}" + rt.gen("x")
        return [branch.token_ids() for branch in branches]

    assert program.run(True, backend=engine).value == program.run(False, backend=engine).value
