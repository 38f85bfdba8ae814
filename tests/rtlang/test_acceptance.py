"""The language's acceptance programs: exact token counts on the real scheduler and cache.

Byte tokenizer (one byte, one token, no BOS), page size 1, an empty cache, ample memory.
"""

from __future__ import annotations

import dataclasses
import math
import threading
import time
from collections.abc import Mapping
from typing import Any

import pytest
from conftest import MakeEngine
from served_engines import engines_of_both_kinds

import rtlang as rt
from rtlang.errors import (
    DeadlineExceeded,
    EngineError,
    ForkErrors,
    ProgramError,
    TruncatedOutput,
    UnknownVariable,
)
from rtlang.runtime.engine import Engine
from rtlang.testing import Reply, ScriptedModel

#: Every program here does the same, to the last count, with a server in between.
engines = engines_of_both_kinds


def counts(run: rt.ProgramState) -> list[tuple[int, int]]:
    """(computed, cached) of each call, in order."""
    return [(c.computed_tokens, c.cached_tokens) for c in run.usage.calls]


def totals(run: rt.ProgramState) -> tuple[int, int]:
    return run.usage.computed_tokens, run.usage.cached_tokens


def assert_counts_are_the_engines(run: rt.ProgramState, engine: Engine) -> None:
    stats = engine.stats()
    assert totals(run) == (stats["computed_tokens"], stats["cached_tokens"])


# -- 1 multi-turn reuse -----------------------------------------------------------------------


@rt.function
def three_turns(s: rt.ProgramState, **options: Any) -> None:
    s += "x" * 100
    s += rt.gen("a", **options)
    s += "y" * 10
    s += rt.gen("b")
    s += "z" * 7 + rt.gen("c")


def test_program_1_each_turn_computes_only_what_is_new(make_engine: MakeEngine) -> None:
    engine = make_engine(ScriptedModel(["abc", "de", "f"]))
    run = three_turns.run(backend=engine)
    assert counts(run) == [(100, 0), (10, 103), (7, 115)]
    assert totals(run) == (117, 218)
    assert (run["a"], run["b"], run["c"]) == ("abc", "de", "f")
    assert_counts_are_the_engines(run, engine)


def test_program_1_the_last_sampled_token_has_no_kv_yet(make_engine: MakeEngine) -> None:
    engine = make_engine(ScriptedModel([Reply("abcdefgh"), "de", "f"]))
    run = three_turns.bind(max_tokens=3).run(backend=engine)
    assert run["a"] == "abc"
    assert counts(run)[1] == (11, 102)


# -- 2 fork hint ------------------------------------------------------------------------------


def test_program_2_a_fork_computes_its_prefix_once(make_engine: MakeEngine) -> None:
    script = {"0....": Reply("a" * 9), "1....": Reply("b" * 6), "2....": Reply("c")}
    engine = make_engine(ScriptedModel(script))

    @rt.function
    def program(s: rt.ProgramState) -> list[str]:
        s += "p" * 200
        forks = s.fork(3)
        forks += lambda i: f"{i}...." + rt.gen("v")
        return forks.join()["v"]

    run = program.run(backend=engine)
    assert run.value == run["v"] == ["a" * 9, "b" * 6, "c"]  # branch 2 has ended first
    hints = run.usage.of_kind("fork")
    assert [(h.computed_tokens, h.cached_tokens) for h in hints] == [(200, 0)]
    gens = run.usage.of_kind("gen")
    assert [(g.computed_tokens, g.cached_tokens) for g in gens] == [(5, 200)] * 3
    assert run.usage.computed_tokens == 215
    assert_counts_are_the_engines(run, engine)


# -- 3 judge ----------------------------------------------------------------------------------


def test_program_3_branch_solve_merge(make_engine: MakeEngine) -> None:
    def script(prompt: str) -> str:
        return "final" if prompt.endswith("Score 1-10") else f"{prompt[300]} is fine...."[:12]

    engine = make_engine(ScriptedModel(script))

    @rt.function
    def judge(s: rt.ProgramState) -> None:
        s += "e" * 300
        forks = s.fork(6)
        forks += [f"{i}" + "d" * 19 + rt.gen("judgement") for i in range(6)]
        forks.join()
        s += "m" * 30
        for i in range(6):
            s += f"Judge {i}:" + forks[i]["judgement"]
        s += "Score 1-10"
        s += rt.gen("score", max_tokens=8)

    run = judge.run(backend=engine)
    assert run["score"] == "final"
    assert run["judgement"] == [f"{i} is fine...."[:12] for i in range(6)]
    assert len(run.usage.of_kind("gen")) == 7
    assert totals(run) == (580, 2100)
    assert sum(c.prompt_tokens for c in run.usage.of_kind("gen")) == 2380
    assert_counts_are_the_engines(run, engine)


# -- 4 tree of thought --------------------------------------------------------------------------


def test_program_4_tree_of_thought(make_engine: MakeEngine) -> None:
    engine = make_engine(ScriptedModel([f"thought{i:03}" for i in range(30)], step_s=0.01))
    leaves: list[int] = []

    def grow(s: rt.ProgramState, level: int) -> list[rt.ProgramState]:
        forks = s.fork(2)
        forks += rt.gen(f"thought_{level}")
        if level == 4:
            return list(forks)
        forks += "u" * 40
        return [leaf for branch in forks for leaf in grow(branch, level + 1)]

    @rt.function
    def tree(s: rt.ProgramState) -> None:
        s += "q" * 120
        threads.append(threading.active_count())
        found = grow(s, 1)
        for leaf in found:
            leaf.sync()
            threads.append(threading.active_count())
        leaves.extend(len(leaf.token_ids()) for leaf in found)

    threads: list[int] = []
    tree.run(backend=make_engine(ScriptedModel([])))  # the background loop is running
    threads.clear()
    leaves.clear()
    run = tree.run(backend=engine)
    assert len(run.usage.of_kind("gen")) == 30
    assert run.usage.computed_tokens <= 710
    assert leaves == [280] * 16
    assert engine.stats()["peak_running"] >= 8
    assert len(set(threads)) == 1
    assert_counts_are_the_engines(run, engine)


# -- 5 ReAct batch ------------------------------------------------------------------------------


@pytest.mark.parametrize("num_threads", [1, 10])
def test_program_5_react_batch(make_engine: MakeEngine, num_threads: int) -> None:
    engine = make_engine(ScriptedModel(lambda prompt: f"think about it {prompt[500]}"[-15:]))
    calls: list[int] = []
    bodies: list[int] = []

    @rt.function
    def agent(s: rt.ProgramState, number: int) -> None:
        bodies.append(number)
        s += "t" * 500
        s += f"{number}: what is it, here?"
        for step in range(3):
            s += rt.gen(f"step_{step}")
            if step < 2:
                calls.append(number)
                s += f"observation {step}: nothing 42"[:25]
            else:
                calls.append(number)

    runs = agent.run_batch(
        ({"number": i} for i in range(10)), backend=engine, num_threads=num_threads
    )
    assert [run.error for run in runs] == [None] * 10
    assert sum(len(run.usage.of_kind("gen")) for run in runs) == 30
    computed = sum(run.usage.computed_tokens for run in runs)
    cached = sum(run.usage.cached_tokens for run in runs)
    assert (computed, cached) == (1200, 15600)
    assert len(calls) == 30
    assert sorted(bodies) == list(range(10))
    assert [run["step_2"][-1] for run in runs] == [str(i) for i in range(10)]  # in order


# -- 6 failing branch ---------------------------------------------------------------------------


def failing_branch_script() -> Mapping[str, Reply]:
    boom = Reply(error=EngineError("boom"), delay_s=0.05)
    return {"0": Reply("v0"), "1": boom, "2": Reply("v2"), "after": Reply("fine")}


def test_program_6_a_failing_branch_raises_its_own_exception(make_engine: MakeEngine) -> None:
    engine = make_engine(ScriptedModel(failing_branch_script(), step_s=0.001))
    seen: list[BaseException] = []

    @rt.function
    def program(s: rt.ProgramState) -> None:
        s += "prefix "
        forks = s.fork(3)
        forks += lambda i: f"{i}" + rt.gen("v", ignore_eos=i == 1)
        forks += " more text" + rt.gen("never")
        with pytest.raises(ForkErrors) as raised:
            forks.join()
        seen.extend(raised.value.exceptions)
        with pytest.raises(EngineError) as again:
            forks[1].text()
        seen.append(again.value)
        s += "after" + rt.gen("w")

    run = program.run(backend=engine)
    assert run["w"] == "fine"
    assert len(seen) == 2 and seen[0] is seen[1]
    assert isinstance(seen[0], EngineError) and seen[0].index == 1 and "boom" in str(seen[0])


def test_program_6_keep_leaves_a_placeholder_at_its_index(make_engine: MakeEngine) -> None:
    engine = make_engine(ScriptedModel(failing_branch_script(), step_s=0.001))

    @rt.function
    def program(s: rt.ProgramState) -> None:
        s += "prefix "
        forks = s.fork(3)
        forks += lambda i: f"{i}" + rt.gen("v", ignore_eos=i == 1)
        forks.join(on_error="keep")
        s += "after" + rt.gen("w")

    run = program.run(backend=engine)
    first, failed, last = run["v"]
    assert (first, last) == ("v0", "v2")
    assert isinstance(failed, rt.Failed) and not failed and failed.index == 1
    assert "boom" in str(failed.error)
    assert run["w"] == "fine"


# -- 7 errors on read ---------------------------------------------------------------------------


def test_program_7_every_read_raises_the_original_exception(make_engine: MakeEngine) -> None:
    engine = make_engine(
        ScriptedModel([Reply(error=EngineError("boom"), delay_s=0.02)], step_s=0.001)
    )
    seen: list[BaseException] = []

    @rt.function
    def program(s: rt.ProgramState) -> None:
        s += "prompt" + rt.gen("x")
        with pytest.raises(UnknownVariable, match="'x'"):
            s["xx"]  # at once: nothing can set it
        for read in (lambda: s["x"], s.text, s.sync, s.messages, lambda: "x" in s):
            with pytest.raises(EngineError) as raised:
                read()
            seen.append(raised.value)
        s += "more" + rt.gen("y")
        with pytest.raises(EngineError) as raised:
            s["y"]
        seen.append(raised.value)

    with pytest.raises(EngineError, match="boom") as raised:
        program.run(backend=engine)
    assert len(seen) == 6 and all(error is raised.value for error in seen)
    notes = "".join(raised.value.__notes__)
    assert "test_acceptance.py" in notes and "'x'" in notes
    assert len(raised.value.__notes__) == 1


def test_program_7_a_stream_gives_its_chunks_then_raises(make_engine: MakeEngine) -> None:
    engine = make_engine(
        ScriptedModel([Reply(error=EngineError("boom"), delay_s=0.05)], step_s=0.002)
    )

    @rt.function
    def program(s: rt.ProgramState) -> None:
        s += "prompt" + rt.gen("x")

    run = program.run(backend=engine, stream=True)
    received: list[str] = []
    with pytest.raises(EngineError, match="boom") as raised:
        received.extend(run.text_iter("x"))
        raise AssertionError("the iteration ended normally")
    with pytest.raises(EngineError) as late:
        for chunk in run.text_iter("x"):
            received.append(chunk)
    assert late.value is raised.value is run.error
    assert "." in received


# -- 8 streaming fidelity -----------------------------------------------------------------------


def test_program_8_streaming_fidelity(make_engine: MakeEngine) -> None:
    engine = make_engine(ScriptedModel(["héllo 🙂 STOPPER"]))

    @rt.function
    def program(s: rt.ProgramState) -> None:
        s += "say it: " + rt.gen("x", stop="STOP")

    run = program.run(backend=engine, stream=True)
    chunks: list[str] = []
    for chunk in run.text_iter("x"):
        chunks.append(chunk)
        time.sleep(0.01)  # a slow consumer loses nothing
    assert "".join(chunks) == "héllo 🙂 " == run["x"]
    assert not any("S" in c or "\ufffd" in c for c in chunks)
    assert len(chunks) > 3
    assert list(run.text_iter("x")) == chunks  # a second, late consumer
    assert "".join(run.text_iter()) == run.text() == "say it: héllo 🙂 "


# -- 9 select -----------------------------------------------------------------------------------

TABLE = {  # probability of a byte, given the text after the prompt
    "": {"y": 0.30, "n": 0.25, "#": 0.45},
    "y": {"e": 0.10, "#": 0.90},
    "ye": {"s": 1.00},
    "n": {"o": 0.60, "#": 0.40},
    "no": {"t": 0.90, "#": 0.10},
}


def table_logits(tokens: list[int]) -> Mapping[int, float]:
    if len(tokens) < 50:  # without the prompt: all letters alike
        return {ord(c): 0.0 for c in "yesnotur #"}
    said = bytes(tokens[50:]).decode()
    if said in TABLE:
        return {ord(c): math.log(p) for c, p in TABLE[said].items()}
    if said.startswith("not"):  # the predictable tail of the long option
        rest = "not sure"[len(said) :] or "."
        return {ord(rest[0]): 0.0}
    return {ord("#"): 0.0}


def run_select(engine: Engine, **options: Any) -> rt.ProgramState:
    @rt.function
    def program(s: rt.ProgramState) -> None:
        s += "Q" * 50
        s += rt.select("answer", ["yes", "no", "not sure"], **options)

    return program.run(backend=engine)


def test_program_9_methods_scores_and_counts(
    make_engine: MakeEngine, request: pytest.FixtureRequest
) -> None:
    engine = make_engine(ScriptedModel(logits=table_logits))
    # "no" begins "not sure": over several connections the longer one may arrive first, and then
    # the last token of the shorter one is computed again (see docs/language.md).
    late = int("over HTTP" in request.node.name)
    yes = [math.log(0.30), math.log(0.10), 0.0]
    no = [math.log(0.25), math.log(0.60)]
    unsure = [*no, math.log(0.90), 0.0, 0.0, 0.0, 0.0, 0.0]
    run = run_select(engine, probs=True)
    meta = run.get_meta_info("answer")
    for expected, got in zip([yes, no, unsure], meta["input_token_logprobs"], strict=True):
        assert [v for v, _, _ in got] == pytest.approx(expected, abs=1e-5)
    means = [sum(row) / len(row) for row in (yes, no, unsure)]  # a 0.0 counts
    assert meta["normalized_prompt_logprobs"] == pytest.approx(means, abs=1e-5)
    assert run["answer"] == "not sure"  # the mean likes the predictable tail
    assert sum(meta["probs"]) == pytest.approx(1.0)
    likelihoods = [math.exp(sum(row)) for row in (yes, no, unsure)]
    assert meta["probs"] == pytest.approx([p / sum(likelihoods) for p in likelihoods], abs=1e-5)
    assert run.usage.computed_tokens <= 50 + 11 + late
    assert_counts_are_the_engines(run, engine)


def test_program_9_greedy_and_unconditional_differ_from_the_mean(make_engine: MakeEngine) -> None:
    engine = make_engine(ScriptedModel(logits=table_logits))
    assert run_select(engine, choices_method=rt.greedy_token_selection)["answer"] == "yes"
    run = run_select(engine, choices_method="unconditional_likelihood_normalized")
    meta = run.get_meta_info("answer")
    # Without a prompt (and without BOS) nothing predicts an option's first token.
    assert [row[0] for row in meta["unconditional_token_logprobs"]] == [None] * 3
    alike = math.log(0.1)
    gains = [
        (math.log(0.30) + math.log(0.10) - alike - alike) / 3,
        (math.log(0.25) + math.log(0.60) - alike) / 2,
        (math.log(0.25) + math.log(0.60) + math.log(0.90) - 7 * alike) / 8,
    ]
    assert meta["normalized_unconditional_prompt_logprobs"] == pytest.approx(gains, abs=1e-5)
    assert run["answer"] == "not sure"


def test_program_9_the_winner_is_cached_for_what_follows(make_engine: MakeEngine) -> None:
    engine = make_engine(ScriptedModel(logits=table_logits))

    @rt.function
    def program(s: rt.ProgramState) -> None:
        s += "Q" * 50
        s += rt.select("answer", ["yes", "no", "not sure"], choices_method="greedy_token_selection")
        s += "."
        s += rt.gen("more", max_tokens=1)

    run = program.run(backend=engine)
    assert run["answer"] == "yes"
    assert run.usage.of_kind("gen")[0].computed_tokens <= 2


# -- 10 typed output ----------------------------------------------------------------------------


@dataclasses.dataclass
class City:
    name: str
    population: int
    capital: bool


CITY_TEXT = '{"name": "O\'Neil\u2013\\"x\\"", "population": 12, "capital": true}'


def contrary(tokens: list[int]) -> Mapping[int, float]:
    """Likes most what cannot come at its place, and next to that what ``CITY_TEXT`` has."""
    text = CITY_TEXT.encode()
    said = len(tokens) - 10
    wanted = text[said] if said < len(text) else 256
    in_the_name = 10 <= said <= text.index(b'", "pop')
    illegal = b"\xff\x00" if in_the_name else b"]x#\xff\x00"
    return {wanted: 5.0, **dict.fromkeys(illegal, 9.0)}


def run_city(engine: Engine, **options: Any) -> rt.ProgramState:
    @rt.function
    def program(s: rt.ProgramState) -> None:
        s += "Q" * 10
        s += rt.gen("city", type=City, whitespace=1, **options)

    return program.run(backend=engine, temperature=0, max_new_tokens=200)


def test_program_10_a_typed_value_and_one_compilation(make_engine: MakeEngine) -> None:
    engine = make_engine(ScriptedModel([CITY_TEXT] * 100))

    @rt.function
    def program(s: rt.ProgramState) -> City:
        s += "Q" + rt.gen("city", type=City, max_tokens=200)
        city: City = s["city"]
        return city

    for run in program.run_batch([{}] * 100, backend=engine):
        city = run.value
        assert city == City(name='O\'Neil\u2013"x"', population=12, capital=True)
        assert type(city) is City
    assert engine.stats()["grammar_compiles"] == 1


def test_program_10_an_engine_that_prefers_what_is_illegal(make_engine: MakeEngine) -> None:
    engine = make_engine(ScriptedModel(logits=contrary))
    run = run_city(engine)
    assert run["city"] == City(name='O\'Neil\u2013"x"', population=12, capital=True)
    assert_counts_are_the_engines(run, engine)


def test_program_10_a_value_that_is_cut(make_engine: MakeEngine) -> None:
    engine = make_engine(ScriptedModel([CITY_TEXT]))
    with pytest.raises(TruncatedOutput) as raised:
        run_city(engine, max_tokens=5)
    assert raised.value.text == CITY_TEXT[:5] and raised.value.name == "city"


def test_program_10_a_type_without_a_constraint_is_refused_at_its_line() -> None:
    with pytest.raises(ProgramError, match="set"):
        rt.gen("x", type=set)


# -- 12 deadline and cancel ---------------------------------------------------------------------


def test_program_12_a_deadline_ends_the_call_with_its_partial_text(make_engine: MakeEngine) -> None:
    engine = make_engine(ScriptedModel([Reply("t" * 500)], step_s=0.02))

    @rt.function
    def program(s: rt.ProgramState) -> None:
        s += "p" * 20
        s += rt.gen("x", max_tokens=500, timeout=0.3)

    with pytest.raises(DeadlineExceeded) as raised:
        program.run(backend=engine)
    assert 0 < len(raised.value.text) < 100
    assert set(raised.value.text) == {"t"}


def test_program_12_the_first_branch_wins_and_the_losers_are_aborted(
    make_engine: MakeEngine,
) -> None:
    script = {f"{i}": Reply("slow" * 200) for i in (0, 1, 3)} | {"2": Reply("quick")}
    engine = make_engine(ScriptedModel(script, step_s=0.002))

    @rt.function
    def program(s: rt.ProgramState) -> None:
        s += "p" * 64
        forks = s.fork(4)
        forks += lambda i: f"{i}" + rt.gen("v", max_tokens=800)
        forks.join("first", k=1)

    run = program.run(backend=engine)
    assert run["v"] == ["quick"]
    stats = engine.stats()
    assert stats["num_aborted"] == 3
    assert sum(stats["queue"].values()) == stats["locked_len"] == stats["num_holds"] == 0
    again = engine.generate("p" * 64, {"max_new_tokens": 1})
    assert again.usage.cached_tokens == 63
