"""Automata against plain sets of words: all those of at most six letters."""

from __future__ import annotations

import functools
import itertools
import operator
import random
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ir_oracle import matches

from rtlang.errors import GrammarTooLarge
from rtlang.grammar import dfa_cycles
from rtlang.grammar.charset import CharSet
from rtlang.grammar.dfa import Dfa
from rtlang.grammar.dfa_ir import to_expr
from rtlang.grammar.ir import Chars, Expr, Grammar, Ref, Repeat
from rtlang.grammar.ir_walk import fold

LONGEST = 6
WORDS = ["".join(word) for n in range(LONGEST + 1) for word in itertools.product("ab", repeat=n)]
ALL = frozenset(WORDS)


class Both(NamedTuple):
    """A language as an automaton, and its words of at most ``LONGEST`` letters a, b."""

    dfa: Dfa
    words: frozenset[str]


def joined(a: frozenset[str], b: frozenset[str]) -> frozenset[str]:
    return frozenset(x + y for x in a for y in b if len(x + y) <= LONGEST)


def repeated(words: frozenset[str], low: int, high: int | None) -> frozenset[str]:
    now = frozenset([""])
    for _ in range(low):
        now = joined(now, words)
    for _ in range(LONGEST if high is None else high - low):
        now |= joined(now, words)
    return now


LEAVES = st.one_of(
    st.sets(st.sampled_from(WORDS[:31]), max_size=4).map(
        lambda words: Both(Dfa.words(words), frozenset(words))
    ),
    st.sampled_from(["a", "b", "ab", "bc"]).map(
        lambda chars: Both(Dfa.chars(CharSet.of(chars)), frozenset(chars) & ALL)
    ),
    st.sampled_from(
        [
            Both(Dfa.nothing(), frozenset()),
            Both(Dfa.empty_text(), frozenset([""])),
            Both(Dfa.everything(), ALL),
        ]
    ),
)


def combined(inner: st.SearchStrategy[Both]) -> st.SearchStrategy[Both]:
    two = st.tuples(inner, inner)
    lows = st.integers(0, 3)
    return st.one_of(
        inner.map(lambda a: Both(~a.dfa, ALL - a.words)),
        two.map(lambda p: Both(p[0].dfa & p[1].dfa, p[0].words & p[1].words)),
        two.map(lambda p: Both(p[0].dfa | p[1].dfa, p[0].words | p[1].words)),
        two.map(lambda p: Both(p[0].dfa - p[1].dfa, p[0].words - p[1].words)),
        two.map(lambda p: Both(p[0].dfa + p[1].dfa, joined(p[0].words, p[1].words))),
        st.tuples(inner, lows, st.none() | st.integers(0, 2)).map(_repeated),
        st.tuples(inner, lows, st.none() | st.integers(0, 2)).map(_with_length),
    )


def _repeated(given: tuple[Both, int, int | None]) -> Both:
    both, low, more = given
    high = None if more is None else low + more
    return Both(both.dfa.repeat(low, high), repeated(both.words, low, high))


def _with_length(given: tuple[Both, int, int | None]) -> Both:
    both, low, more = given
    high = None if more is None else low + more
    words = (w for w in both.words if low <= len(w) and (high is None or len(w) <= high))
    return Both(both.dfa.with_length(low, high), frozenset(words))


LANGUAGES = st.recursive(LEAVES, combined, max_leaves=6)


@settings(max_examples=150, deadline=None)
@given(LANGUAGES)
def test_operations_are_those_of_sets_of_words(both: Both) -> None:
    assert {word for word in WORDS if both.dfa.accepts(word)} == both.words


@settings(max_examples=80, deadline=None)
@given(LANGUAGES, LANGUAGES)
def test_equal_languages_are_equal_objects(a: Both, b: Both) -> None:
    x, y = a.dfa, b.dfa
    assert ~~x == x
    assert ~(x | y) == ~x & ~y
    assert x + Dfa.empty_text() == x | x == x
    assert (x - y) | (x & y) == x
    assert hash(x & y) == hash(y & x)
    assert (x == y) is x.equals(y) is (x.includes(y) and y.includes(x))
    assert x.is_empty is (x == Dfa.nothing())
    assert x.is_everything is (~x).is_empty


@settings(max_examples=80, deadline=None)
@given(LANGUAGES)
def test_words_of_a_language(both: Both) -> None:
    dfa = both.dfa
    shortest = dfa.shortest()
    assert (shortest is None) is dfa.is_empty
    if shortest is not None:
        assert dfa.accepts(shortest)
        assert all(len(shortest) <= len(word) for word in both.words)
    words = dfa.some_words(1000)
    if words is not None:
        assert dfa == Dfa.words(words) and words == sorted(set(words)) and dfa.is_finite
        assert dfa.some_words(len(words)) == words
        assert dfa.some_words(len(words) - 1) is None
    if not dfa.is_finite:  # then there is a longer word than there are states
        assert not dfa.with_length(dfa.num_states, None).is_empty


def written(dfa: Dfa) -> Grammar:
    rules: dict[str, Expr] = {}

    def define(expr: Expr) -> Ref:
        rules[f"r{len(rules)}"] = expr
        return Ref(f"r{len(rules) - 1}")

    root = to_expr(dfa, lambda chars: Chars(chars.ranges), define)
    return Grammar({"root": root, **rules})


@settings(max_examples=80, deadline=None)
@given(LANGUAGES)
def test_expressions_have_the_same_texts(both: Both) -> None:
    grammar = written(both.dfa)
    texts = [*WORDS[:31], "ababab", "bbbbba", "abc", "c", "ca", "bcb"]
    assert [t for t in texts if matches(grammar, None, t)] == list(filter(both.dfa.accepts, texts))


def texts_near(words: list[str]) -> Iterator[str]:
    for word in words:
        yield from (word, word[:-1], word + "x", word[:-1] + "é", "")


def test_anything_but_words() -> None:
    words = ["name", "names", "nest", "id", "é", 'say "hi"']
    grammar = written(~Dfa.words(words))
    for text in texts_near(words):
        assert matches(grammar, None, text) is (text not in words)


@pytest.mark.parametrize(("low", "high"), [(0, 3), (2, 2), (2, 5), (3, None), (0, None)])
def test_lengths_are_written_as_one_count(low: int, high: int | None) -> None:
    grammar = written(Dfa.length(low, high))
    assert grammar.rules == {"root": Repeat(Chars(CharSet.ANY.ranges), low, high)}
    for n in range(7):
        accepted = low <= n and (high is None or n <= high)
        assert Dfa.length(low, high).accepts("x" * n) is accepted
        assert matches(grammar, None, "x" * n) is accepted


def counts(grammar: Grammar) -> list[int]:
    """The bounds of all repetitions in it."""
    found: list[int] = []

    def look(node: Expr, parts: list[None]) -> None:
        if isinstance(node, Repeat) and node.high is not None:
            found.append(node.high)

    for expr in grammar.rules.values():
        fold(expr, look)
    return found


EITHER = Dfa.chars(CharSet.of("ab"))
SOME = EITHER.repeat(0, None)


@pytest.mark.parametrize(
    "language",
    [
        SOME + Dfa.text("/") + SOME,
        EITHER + SOME + Dfa.text("/") + EITHER.repeat(2, None),
        (Dfa.text("/") + SOME + Dfa.text("/") | Dfa.empty_text()) + EITHER + SOME,
        SOME + (Dfa.text("/") | Dfa.text("/x")) + SOME,
    ],
)
def test_a_count_that_many_places_share_is_written_as_rules(language: Dfa) -> None:
    dfa = language.with_length(1, 12)
    grammar = written(dfa)
    assert max(counts(grammar), default=0) <= 2  # one for each place would go up to 11
    rng = random.Random(0)
    texts = ["".join(rng.choices("ab/x", (6, 6, 2, 1), k=rng.randrange(15))) for _ in range(1500)]
    expected = [text for text in texts if dfa.accepts(text)]
    assert [text for text in texts if matches(grammar, None, text)] == expected
    assert len(expected) > 100


def test_a_count_that_few_places_share_stays_one() -> None:
    dfa = (Dfa.text("x") + EITHER.repeat(0, 50)) | (Dfa.text("yz") + EITHER.repeat(3, 50))
    assert 50 in counts(written(dfa))
    places = [Dfa.text("/" * n) + EITHER.repeat(0, 100 * n) for n in range(1, 6)]
    apart = functools.reduce(operator.or_, places)  # they share one chain, far from each other
    grammar = written(apart)
    assert max(counts(grammar)) == 500 and len(grammar.rules) < 20


def test_long_things_need_no_recursion() -> None:
    chain = Dfa.text("ab" * 3000)
    assert chain.some_words(1) == ["ab" * 3000]
    assert len(written(chain).rules) > 1
    assert Dfa.chars(CharSet.of("ab")).repeat(0, 5000).num_states == 5001


def test_states_are_limited() -> None:
    either = Dfa.chars(CharSet.of("ab"))
    beyond: list[Callable[[], Dfa]] = [
        lambda: either.repeat(0, None) + Dfa.text("a") + either.repeat(20, 20),
        lambda: Dfa.length(0, 10**9),
        lambda: either.repeat(0, 10**9),
        lambda: Dfa.words(f"{n:06}" for n in range(20_000)),
    ]
    for operation in beyond:
        with pytest.raises(GrammarTooLarge) as error:
            operation()
        assert error.value.limit == "states"


def test_entangled_cycles_are_refused() -> None:
    either = Dfa.chars(CharSet.of("ab"))
    with pytest.raises(GrammarTooLarge) as error:
        written(Dfa.everything() + Dfa.text("a") + either.repeat(10, 10))
    assert error.value.limit == "states"


def test_components_come_after_what_they_lead_to() -> None:
    successors = [[1, 2], [0], [3], [4], [3, 3], [0]]
    assert dfa_cycles.components(successors) == [[3, 4], [2], [0, 1], [5]]
