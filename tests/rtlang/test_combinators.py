"""Patterns: one call for several variables, and what each of them gets."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any, Literal

import pytest
from conftest import MakeEngine
from hypothesis import given
from hypothesis import strategies as st

import rtlang as rt
from rtlang.combinators import (
    Pattern,
    PatternMeaning,
    cap,
    digit,
    digits,
    integer,
    json,
    letters,
    line,
    number,
    one_of,
    optional,
    regex,
    repeat,
    spaces,
)
from rtlang.errors import InvalidRegex, ProgramError, TruncatedOutput, UnsupportedKeyword
from rtlang.grammar import accepts
from rtlang.testing import Reply, ScriptedModel


@dataclasses.dataclass
class Point:
    x: int
    y: int


def run(engine: Any, expr: Any, **options: Any) -> rt.ProgramRun[None]:
    @rt.function
    def program(s: rt.ProgramState) -> None:
        s += "Q"
        s += expr

    return program.run(backend=engine, **options)


def read(pattern: Pattern, text: str) -> dict[str, Any]:
    return dict(PatternMeaning(pattern.compiled).read(text)[1])


PAIR = "(" + cap("a", digits) + ", " + cap("b", int) + ")"


def test_captures_of_one_call(make_engine: MakeEngine) -> None:
    engine = make_engine(ScriptedModel(["(12, -3)"]))
    state = run(engine, rt.gen("whole", pattern=PAIR))
    assert (state["a"], state["b"], state["whole"]) == ("12", -3, "(12, -3)")
    assert [c.kind for c in state.usage.calls] == ["gen"]
    assert state.get_meta_info("a") == state.get_meta_info("whole")
    assert state.text() == "Q(12, -3)"


def test_the_model_can_say_nothing_else(make_engine: MakeEngine) -> None:
    engine = make_engine(ScriptedModel(["(x1y, 5z"]))  # the lowest byte comes instead
    state = run(engine, rt.gen(pattern=PAIR, max_tokens=30))
    assert re.fullmatch(r"\(\d+, [-+]?\d+\)", state.text()[1:])
    assert state["gen_0"] == state.text()[1:] and state["b"] == int(state["gen_0"].split()[1][:-1])


def test_n_gives_lists_and_branches_gather_captures(make_engine: MakeEngine) -> None:
    engine = make_engine(ScriptedModel(["(1, 2)", "(3, 4)"]))
    state = run(engine, rt.gen("w", pattern=PAIR, n=2))
    assert sorted(zip(state["a"], state["b"], strict=True)) == [("1", 2), ("3", 4)]
    assert sorted(state["w"]) == ["(1, 2)", "(3, 4)"]
    engine = make_engine(ScriptedModel(["(1, 2)", "(3, 4)"]))

    @rt.function
    def program(s: rt.ProgramState) -> dict[str, list[Any]]:
        s += "Q"
        forks = s.fork(2)
        forks += rt.gen("w", pattern=PAIR)
        return forks.join()

    value = program.run(backend=engine).value
    assert value is not None and sorted(value["b"]) == [2, 4] and set(value) == {"w", "a", "b"}


def test_a_pattern_that_is_cut_raises(make_engine: MakeEngine) -> None:
    engine = make_engine(ScriptedModel([Reply("(12, 3", eos=False)]))
    state = run(engine, rt.gen("w", 6, pattern=PAIR), raise_errors=False)
    assert isinstance(state.error, TruncatedOutput) and state.error.text == "(12, 3"
    for name in ("a", "b", "w"):
        with pytest.raises(TruncatedOutput):
            _ = state[name]


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        (cap("x", letters) + spaces + cap("y", number), "née  -1.5e3", {"x": "née", "y": "-1.5e3"}),
        (cap("x", integer) + optional("." + cap("y", digits)), "12", {"x": "12", "y": None}),
        (cap("x", integer) + optional("." + cap("y", digits)), "12.5", {"x": "12", "y": "5"}),
        (repeat(cap("x", line) + "\n"), "a\nb c\n", {"x": ["a", "b c"]}),
        (repeat(cap("x", line) + "\n"), "", {"x": []}),
        (repeat(cap("x", digit), 2, 3), "123", {"x": ["1", "2", "3"]}),
        (one_of(cap("x", int), cap("y", bool)), "True", {"x": None, "y": True}),
        (cap("x", "a" + cap("y", digit)), "a1", {"x": "a1", "y": "1"}),
        (cap("x", regex("a+")) + cap("y", regex("a*")), "aaa", {"x": "aaa", "y": ""}),
        (cap("x", one_of("a", "ab")) + cap("y", regex("b*c")), "abc", {"x": "a", "y": "bc"}),
        ("p: " + cap("p", Point) + "!", 'p: {"x": 1, "y": 2}!', {"p": Point(1, 2)}),
        (cap("p", Literal["a b", "a"]) + " b", "a b b", {"p": "a b"}),
        (cap("p", json({"type": "array"})) + "]", "[[1], []]]", {"p": "[[1], []]"}),
        ("\0" + cap("x", '"\\\n'), '\0"\\\n', {"x": '"\\\n'}),
    ],
    ids=str,
)
def test_what_captures_get(pattern: Pattern, text: str, expected: dict[str, Any]) -> None:
    assert accepts(pattern.compiled.spec, text)
    assert read(pattern, text) == expected
    assert not accepts(pattern.compiled.spec, text + "\x01")


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: cap("", digits), ProgramError),
        (lambda: cap("x", str), ProgramError),
        (lambda: cap("x", set), ProgramError),
        (lambda: "a" + cap("x", 3), ProgramError),
        (lambda: one_of(), ProgramError),
        (lambda: repeat("a", 3, 2), ProgramError),
        (lambda: repeat("a", -1), ProgramError),
        (lambda: digits + "\ud800", ProgramError),
        (lambda: regex("("), InvalidRegex),
        (lambda: json({"$ref": "https://example.com"}), UnsupportedKeyword),
        (lambda: rt.gen(pattern=cap("x", "a") + cap("x", "b")), ProgramError),
        (lambda: rt.gen("x", pattern=cap("x", "a")), ProgramError),
        (lambda: rt.gen("x", pattern=digits, n=0), ValueError),
        (lambda: rt.user("a") + digits, TypeError),
    ],
)
def test_a_wrong_pattern_raises_where_it_is_written(
    make: Callable[[], Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        make()


def test_long_patterns_and_long_texts(make_engine: MakeEngine) -> None:
    pattern: Any = "start"
    for i in range(400):
        pattern = pattern + "," + cap(f"x{i}", digit)
    text = "start" + ",7" * 400
    assert set(read(pattern, text).values()) == {"7"}
    evil = cap("x", repeat(repeat(one_of("a", "aa"), 1), 1)) + "b"
    assert read(evil, "a" * 500 + "b") == {"x": "a" * 500}


@given(st.integers(), st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1))
def test_what_is_written_is_read(value: int, rest: str) -> None:
    pattern = cap("n", integer) + ": " + cap("rest", line)
    found = read(pattern, f"{value}: {rest}")
    assert found == {"n": str(value), "rest": rest}
