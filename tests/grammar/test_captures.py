"""Captures: the preferred parse is the one that ``re`` finds, whatever the grammar."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from grammar_language import all_words
from hypothesis import given
from hypothesis import strategies as st

from rtlang.grammar.captures import parse
from rtlang.grammar.ir import Alt, Chars, Expr, Grammar, Ref, Repeat, Seq, Text

A, B = Text("a"), Chars(((98, 98),))


def test_spans_of_watched_rules() -> None:
    grammar = Grammar(
        {
            "root": Seq((Text("("), Ref("x"), Text(", "), Ref("y"), Text(")"))),
            "x": Repeat(Chars(((48, 57),)), 1, None),
            "y": Repeat(Ref("x"), 0, 1),
        }
    )
    found = parse(grammar, "(12, 3)", {"x", "y"})
    assert found is not None and not found.open_ended
    assert found.spans == (("x", 1, 3), ("x", 5, 6), ("y", 5, 6))
    unwatched = parse(grammar, "(12, 3)")
    assert unwatched is not None and unwatched.spans == ()
    assert parse(grammar, "(12, 3") is None and parse(grammar, "x") is None


def test_the_first_option_and_the_longest_repetition_win() -> None:
    some = Repeat(A, 0, None)
    rules: dict[str, Expr] = {"root": Seq((Ref("x"), Ref("y"))), "x": some, "y": some}
    found = parse(Grammar(rules), "aaa", {"x", "y"})
    assert found is not None
    assert found.spans == (("x", 0, 3), ("y", 3, 3)) and found.open_ended
    rules = {"root": Seq((Ref("x"), Ref("y"))), "x": Alt((A, Text("ab"))), "y": Alt((Text("b"), B))}
    for text, span in (("ab", ("x", 0, 1)), ("abb", ("x", 0, 2))):
        found = parse(Grammar(rules), text, {"x"})
        assert found is not None and found.spans == (span,)


@pytest.mark.parametrize(
    ("expr", "text", "open_ended"),
    [
        (Repeat(A, 1, 3), "aa", True),
        (Repeat(A, 1, 3), "aaa", False),
        (Alt((Text("John"), Text("John Doe"))), "John", True),
        (Alt((Text("John"), Text("John Doe"))), "John Doe", False),
    ],
)
def test_whether_more_could_follow(expr: Expr, text: str, open_ended: bool) -> None:
    found = parse(Grammar({"root": expr}), text)
    assert found is not None and found.open_ended is open_ended


def test_recursion_and_repeated_emptiness_end() -> None:
    nested: dict[str, Expr] = {"root": Alt((Seq((Text("["), Ref("root"), Text("]"))), Text("")))}
    deep = "[" * 3000 + "]" * 3000
    assert parse(Grammar(nested), deep) is not None
    assert parse(Grammar(nested), deep + "]") is None
    empty = Repeat(Repeat(Repeat(A, 0, 1), 0, None), 2, None)
    assert parse(Grammar({"root": empty}), "a" * 2000) is not None
    assert parse(Grammar({"root": empty}), "a" * 2000 + "b") is None


def exprs() -> st.SearchStrategy[Expr]:
    leaves: st.SearchStrategy[Expr] = st.sampled_from(
        [A, B, Text("ab"), Text(""), Chars(((97, 98),))]
    )

    def wider(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
        parts = st.lists(inner, min_size=1, max_size=3).map(tuple)
        filled = inner.filter(lambda e: re.fullmatch(as_re(e), "") is None)
        counts = st.sampled_from([(0, 1), (0, None), (1, None), (1, 2), (2, 3)])
        repeats = st.builds(lambda e, c: Repeat(e, *c), filled, counts)
        return parts.map(Seq) | parts.map(Alt) | repeats

    return st.recursive(leaves, wider, max_leaves=6)


def as_re(expr: Expr) -> str:
    if isinstance(expr, Text):
        return re.escape(expr.text)
    if isinstance(expr, Chars):
        return "[" + "".join(f"{chr(low)}-{chr(high)}" for low, high in expr.ranges) + "]"
    if isinstance(expr, Seq):
        return "(?:" + "".join(map(as_re, expr.parts)) + ")"
    if isinstance(expr, Alt):
        return "(?:" + "|".join(map(as_re, expr.parts)) + ")"
    assert isinstance(expr, Repeat)
    high = "" if expr.high is None else str(expr.high)
    return f"(?:{as_re(expr.expr)}){{{expr.low},{high}}}"


def words() -> Iterator[str]:
    yield from all_words("ab", 5)


@given(exprs(), exprs(), exprs())
def test_the_parse_is_that_of_re(x: Expr, y: Expr, z: Expr) -> None:
    rules: dict[str, Expr] = {"root": Seq((Ref("x"), Ref("y"), Ref("z")))}
    grammar = Grammar({**rules, "x": x, "y": y, "z": z})
    pattern = re.compile(f"({as_re(x)})({as_re(y)})({as_re(z)})")
    matched = {word: pattern.fullmatch(word) for word in words()}
    for word, expected in matched.items():
        found = parse(grammar, word, {"x", "y", "z"})
        assert (found is None) == (expected is None), word
        if found is not None and expected is not None:
            assert [span[1:] for span in found.spans] == [expected.span(i) for i in (1, 2, 3)]
