"""Constraints and typed values in programs: arguments, values, truncation, selection."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable
from typing import Any, Literal

import pytest
from conftest import MakeEngine
from fake_backend import FakeBackend

import rtlang as rt
from rtlang.backends.base import Capabilities
from rtlang.errors import (
    ConflictingConstraints,
    InvalidEbnf,
    InvalidJson,
    InvalidRegex,
    InvalidSchema,
    ProgramError,
    TruncatedOutput,
    Unsupported,
    UnsupportedKeyword,
)
from rtlang.grammar.spec import GrammarSpec
from rtlang.runtime.sampling_params import SamplingParams
from rtlang.testing import Reply, ScriptedModel


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


@dataclasses.dataclass
class Ordered:
    low: int
    high: int

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError("low is above high")


def run(engine: Any, *exprs: Any, **options: Any) -> rt.ProgramRun[None]:
    @rt.function
    def program(s: rt.ProgramState) -> None:
        s += "Q"
        for expr in exprs:
            s += expr

    return program.run(backend=engine, **options)


# -- what is wrong is raised where it is written ----------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"regex": "("}, InvalidRegex),
        ({"regex": r"(a)\1"}, InvalidRegex),
        ({"json_schema": "{"}, InvalidJson),
        ({"json_schema": {"type": "text"}}, InvalidSchema),
        ({"json_schema": {"$ref": "https://example.com/x"}}, UnsupportedKeyword),
        ({"ebnf": 'root ::= "a'}, InvalidEbnf),
        ({"structural_tag": {"type": "structural_tag"}}, InvalidSchema),
        ({"type": set}, ProgramError),
        ({"dtype": list}, ProgramError),
        ({"dtype": "list"}, ProgramError),
        ({"pattern": "text"}, ProgramError),
        ({"regex": "a", "json_schema": "{}"}, ConflictingConstraints),
        ({"type": int, "dtype": int}, ConflictingConstraints),
        ({"regex": "a", "ignore_eos": True}, ConflictingConstraints),
        ({"regex": "a", "whitespace": 2}, ProgramError),
        ({"type": int, "whitespace": 2}, ProgramError),
        ({"whitespace": 2}, ProgramError),
        ({"regex": "a", "choices": ["a", "b"]}, ProgramError),
        ({"choices": ["a", "b"], "whitespace": 2}, ProgramError),
        ({"regex": "a", "jump_forward": "always"}, ValueError),
    ],
    ids=str,
)
def test_a_wrong_constraint_raises_where_it_is_written(
    arguments: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        rt.gen("x", **arguments)


def test_the_constraint_reaches_the_call() -> None:
    backend = FakeBackend()
    run(backend, rt.gen("x", regex="ok|no", jump_forward="canonical"), jump_forward="off")
    assert backend.calls[0].params.grammar == GrammarSpec.regex("ok|no")
    assert backend.calls[0].params.jump_forward == "canonical"
    run(backend, rt.gen("x", json_schema='{"type": "string"}', whitespace=0))
    schema = GrammarSpec.json_schema({"type": "string"}, whitespace=0)
    assert backend.calls[1].params.grammar == schema


@pytest.mark.parametrize(
    "expr",
    [
        rt.gen("x", regex="a"),
        rt.gen("x", type=int),
        rt.select("x", ["a"], choices_method="grammar"),
        rt.gen("x", jump_forward="canonical"),
    ],
)
def test_a_backend_without_constraints_refuses_them(expr: Any) -> None:
    names = frozenset(SamplingParams.__struct_fields__) - {"grammar", "jump_forward"}
    backend = FakeBackend(capabilities=Capabilities(sampling=names))
    with pytest.raises(Unsupported, match=r"grammar|jump_forward"):
        run(backend, expr)
    assert backend.calls == []
    run(backend, rt.gen("x", type=str))  # any text: no constraint


# -- values -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "text", "value"),
    [
        ({"regex": "[a-z]+"}, "abc", "abc"),
        ({"ebnf": 'root ::= "a" | "b"'}, "b", "b"),
        ({"json_schema": {"type": "integer"}}, "12", "12"),
        ({"json_schema": '{"const": "é"}'}, '"é"', '"é"'),
        ({"type": int}, "-12", -12),
        ({"type": float}, "-1.5e-3", -0.0015),
        ({"type": bool}, "False", False),
        ({"type": str}, '"as it is', '"as it is'),
        ({"type": Literal["a", "ab"]}, "ab", "ab"),
        ({"type": Colour}, "blue", Colour.BLUE),
        ({"type": int | None}, "null", None),
        ({"type": list[Point]}, '[{"x": 1}]', [Point(1)]),
        ({"type": Point, "whitespace": 0}, '{"x":1,"y":2}', Point(1, 2)),
        ({"dtype": "int"}, "+3", 3),
        ({"dtype": float}, "2", 2.0),
        ({"dtype": bool}, "True", True),
        ({"dtype": str}, '"O\'Neil, 3.5%: \\"x\\"\\n"', 'O\'Neil, 3.5%: "x"\n'),
    ],
    ids=str,
)
def test_the_value_of_a_constrained_gen(
    make_engine: MakeEngine, arguments: dict[str, Any], text: str, value: Any
) -> None:
    engine = make_engine(ScriptedModel([text, "end"]))
    state = run(engine, rt.gen("x", **arguments), ".", rt.gen("after"))
    assert state["x"] == value and type(state["x"]) is type(value)
    assert state.text() == f"Q{text}.end"


def test_gen_int_and_gen_string(make_engine: MakeEngine) -> None:
    engine = make_engine(ScriptedModel(["-4", '"a b"']))
    state = run(engine, rt.gen_int("n", 8), " ", rt.gen_string("s", max_tokens=8, temperature=0))
    assert (state["n"], state["s"]) == (-4, "a b")


def test_n_gives_a_list_of_values(make_engine: MakeEngine) -> None:
    engine = make_engine(ScriptedModel(["1", "2", "3"]))
    state = run(engine, rt.gen("x", type=int, n=3))
    assert sorted(state["x"]) == [1, 2, 3]
    assert state.text() == f"Q{state['x'][0]}"
    assert len(state.get_meta_info("x")) == 3


def test_a_typed_variable_is_no_text(make_engine: MakeEngine) -> None:
    engine = make_engine(ScriptedModel(["7"]))

    @rt.function
    def program(s: rt.ProgramState) -> None:
        s += "Q" + rt.gen("x", type=int)
        with pytest.raises(TypeError, match=r"str\(\.\.\.\)"):
            s += s["x"]
        s += str(s["x"])

    assert program.run(backend=engine).text() == "Q77"


def test_the_text_of_a_typed_gen_streams(make_engine: MakeEngine) -> None:
    engine = make_engine(ScriptedModel(["-125"]))

    @rt.function
    def program(s: rt.ProgramState) -> None:
        s += "Q" + rt.gen("x", type=int)

    state = program.run(backend=engine, stream=True)
    assert "".join(state.text_iter("x")) == "-125"
    assert state["x"] == -125


def test_values_of_branches_are_gathered(make_engine: MakeEngine) -> None:
    engine = make_engine(ScriptedModel({"0": "10", "1": "11"}))

    @rt.function
    def program(s: rt.ProgramState) -> list[int]:
        s += "Q"
        forks = s.fork(2)
        forks += lambda i: str(i) + rt.gen("x", type=int)
        return forks.join()["x"]

    assert program.run(backend=engine).value == [10, 11]


# -- cut --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"type": int}, "123"),  # there may be more digits
        ({"type": list[int]}, "[1, 2"),
        ({"type": Literal["John", "John Doe"]}, "John"),
        ({"dtype": str}, '"abc'),
    ],
)
def test_a_value_that_is_cut_raises_wherever_it_is_read(
    make_engine: MakeEngine, arguments: dict[str, Any], text: str
) -> None:
    engine = make_engine(ScriptedModel([Reply(text, eos=False)]))
    expr = rt.gen("x", len(text), **arguments)
    state = run(engine, expr, " then ", rt.gen("y"), raise_errors=False)
    assert isinstance(state.error, TruncatedOutput)
    assert (state.error.text, state.error.name) == (text, "x")
    assert "max_new_tokens" in str(state.error)
    reads: list[Callable[[], Any]] = [
        lambda: state["x"], lambda: state["y"], state.sync, state.text
    ]  # fmt: skip
    for read in reads:
        with pytest.raises(TruncatedOutput) as raised:
            read()
        assert raised.value is state.error
    assert state.usage.calls[0].completion_tokens == len(text)


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (Point, '{"x": 1}', Point(1)),
        (bool, "True", True),
        (Literal["John", "John Doe"], "John Doe", "John Doe"),
    ],
)
def test_a_value_that_ends_at_the_limit_is_whole(
    make_engine: MakeEngine, kind: Any, text: str, value: Any
) -> None:
    engine = make_engine(ScriptedModel([Reply(text, eos=False)]))
    state = run(engine, rt.gen("x", len(text), type=kind))
    assert state["x"] == value
    assert state.get_meta_info("x")["finish_reason"]["type"] in ("length", "stop")


def test_a_stop_that_ends_a_value_counts_and_one_inside_of_it_does_not(
    make_engine: MakeEngine,
) -> None:
    engine = make_engine(ScriptedModel(["12", "[1, 2]"]))
    assert run(engine, rt.gen("x", type=int, stop_token_ids=[ord("2")]))["x"] == 1
    with pytest.raises(TruncatedOutput, match="a stop"):
        run(engine, rt.gen("x", type=list[int], stop=","))


def test_the_end_of_the_context_cuts_too(make_engine: MakeEngine) -> None:
    engine = make_engine(ScriptedModel([Reply("1", eos=False)], context_length=16))
    with pytest.raises(TruncatedOutput, match="the context"):
        run(engine, rt.gen("x", None, type=int))


def test_text_that_is_cut_is_text(make_engine: MakeEngine) -> None:
    engine = make_engine(ScriptedModel(["abcdef"]))
    assert run(engine, rt.gen("x", 3, regex="[a-z]+"))["x"] == "abc"


def test_a_types_own_checks_fail_the_call(make_engine: MakeEngine) -> None:
    text = '{"low": 2, "high": 1}'
    engine = make_engine(ScriptedModel([text]))
    with pytest.raises(ValueError, match="low is above high") as raised:
        run(engine, rt.gen("x", type=Ordered))
    assert any(text in note for note in raised.value.__notes__)


# -- select by grammar --------------------------------------------------------------------------


@pytest.mark.parametrize("by_gen", [False, True])
def test_select_by_grammar_is_one_call(make_engine: MakeEngine, by_gen: bool) -> None:
    options = ["Mary", "John", "John Doe"]
    engine = make_engine(ScriptedModel(["John", "end"]))
    expr = (
        rt.gen("x", choices=options, choices_method="grammar")
        if by_gen
        else rt.select("x", options, choices_method="grammar")
    )
    state = run(engine, expr, ".", rt.gen("y"), max_new_tokens=3, stop="J")
    assert state["x"] == "John"  # run()'s limits are for texts
    assert state.text() == "QJohn.end"
    assert state.get_meta_info("x")["choices_method"] == "grammar"
    assert [c.kind for c in state.usage.calls] == ["select", "gen"]
    # The model is asked, so it may end after "John" or go on.
    engine = make_engine(ScriptedModel(["John Doe!"]))
    assert run(engine, rt.select("x", options, choices_method="grammar"))["x"] == "John Doe"


def test_select_by_grammar_draws_with_a_seed(make_engine: MakeEngine) -> None:
    engine = make_engine(ScriptedModel(logits=lambda tokens: dict.fromkeys(range(257), 0.0)))

    def pick(seed: int) -> str:
        expr = rt.select("x", ["a", "b"], temperature=1.0, choices_method="grammar", seed=seed)
        found: str = run(engine, expr)["x"]
        return found

    found = [pick(seed) for seed in range(12)]
    assert set(found) == {"a", "b"}
    assert found == [pick(seed) for seed in range(12)]


def test_select_by_grammar_knows_no_probabilities() -> None:
    with pytest.raises(ProgramError, match="probabilities"):
        rt.select("x", ["a"], choices_method="grammar", probs=True)
    with pytest.raises(ProgramError, match="grammar"):
        rt.select("x", ["a"], choices_method="best")


# -- what constraints cost ------------------------------------------------------------------------


def test_a_schema_in_many_programs_compiles_once(make_engine: MakeEngine) -> None:
    engine = make_engine(ScriptedModel(lambda prompt: '{"x": 1}'))
    for _ in range(100):
        assert run(engine, rt.gen("x", type=Point))["x"] == Point(1)
    assert engine.stats()["grammar_compiles"] == 1


def test_forced_tokens_are_counted(make_engine: MakeEngine) -> None:
    ebnf = 'root ::= "The answer is " [0-9] ", and that is all there is to say."'
    text = "The answer is 7, and that is all there is to say."
    engine = make_engine(ScriptedModel([text, text]))
    plain = run(engine, rt.gen("x", ebnf=ebnf))
    jumped = run(engine, rt.gen("x", ebnf=ebnf, jump_forward="canonical"))
    assert plain["x"] == jumped["x"] == text
    assert plain.usage.forced_tokens == 0
    assert jumped.usage.forced_tokens >= len(text) - 5
    assert jumped.usage.forced_tokens == jumped.usage.calls[0].forced_tokens
    assert jumped.get_meta_info("x")["forced_tokens"] == jumped.usage.forced_tokens
    assert engine.stats()["forced_tokens"] == jumped.usage.forced_tokens
