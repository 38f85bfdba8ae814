"""The EBNF has exactly the grammar's language, as xgrammar reads it."""

from __future__ import annotations

import random

import pytest
from grammar_language import Engine, all_words, grammars, words
from hypothesis import given, settings
from hypothesis import strategies as st

from rtlang.errors import GrammarUnsatisfiable
from rtlang.grammar.emit import to_ebnf
from rtlang.grammar.ir import Alt, Chars, Dispatch, Expr, Grammar, Ref, Repeat, Seq, Text

EDGES = [0, 1, 9, 10, 13, 0x20, 0x22, 0x27, 0x2D, 0x5B, 0x5C, 0x5D, 0x5E, 0x7E, 0x7F, 0x80]
EDGES += [0xFF, 0x7FF, 0x800, 0xD7FF, 0xE000, 0xFFFE, 0xFFFF, 0x10000, 0x3FFFF, 0x40000, 0xFFFFF]
EDGES += [0x100000, 0x10FFFF]


def only(expr: Expr) -> Engine:
    return Engine(to_ebnf(Grammar({"root": expr})))


@settings(max_examples=300, deadline=None)
@given(grammars("ab"))
def test_words_of_random_grammars(grammar: Grammar) -> None:
    expected = words(grammar, "ab", 5)
    try:
        engine = Engine(to_ebnf(grammar))
    except GrammarUnsatisfiable:
        assert expected == set()
        return
    assert {w for w in all_words("ab", 5) if engine.accepts(w)} == expected


@pytest.mark.parametrize("point", EDGES)
def test_every_kind_of_character_in_text_and_class(point: int) -> None:
    char = chr(point)
    others = [chr(p) for p in EDGES if p != point]
    for engine in (only(Text(char)), only(Chars(((point, point),)))):
        assert engine.accepts(char)
        assert not any(engine.accepts(other) for other in others)
    assert only(Text(f"a{char}b{char}")).accepts(f"a{char}b{char}")


def test_classes_of_random_ranges_are_exact() -> None:
    rng = random.Random(5)
    valid = [*range(0xD800), *range(0xE000, 0x110000)]
    for _ in range(15):
        cuts = sorted(rng.sample(EDGES, 4) + [rng.choice(valid) for _ in range(4)])
        cuts = sorted(set(cuts))[: len(set(cuts)) // 2 * 2]
        ranges = [(a, b) for a, b in zip(cuts[::2], cuts[1::2], strict=True)]
        # surrogates are no characters: a range never spans them
        ranges = [r for r in ranges if not r[0] < 0xD800 <= 0xDFFF < r[1]]
        if not ranges:
            continue
        engine = only(Chars(tuple(ranges)))
        near = {p + d for r in ranges for p in r for d in (-1, 0, 1)} & {*valid}
        for point in near | {*EDGES}:
            inside = any(low <= point <= high for low, high in ranges)
            assert engine.accepts(chr(point)) == inside, (ranges, point)


@pytest.mark.parametrize(
    ("low", "high"), [(0, 0), (0, 1), (1, 1), (3, 3), (0, 2000), (7, 2000), (130, None), (0, None)]
)
@pytest.mark.parametrize("body", ["a", "é", "ab", "choice"])
def test_counts_are_exact(low: int, high: int | None, body: str) -> None:
    expr: Expr = Text(body)
    word = body
    if body == "choice":
        expr, word = Alt((Text("xy"), Text("z"))), "z"
    elif len(body) == 1:
        expr = Chars(((ord(body), ord(body)),))
    engine = only(Seq((Text("<"), Repeat(expr, low, high), Text(">"))))
    for count in {0, low - 1, low, low + 1, *(() if high is None else (high, high + 1))} - {-1}:
        expected = count >= low and (high is None or count <= high)
        assert engine.accepts(f"<{word * count}>") == expected, count


def test_a_large_count_of_one_class() -> None:
    engine = only(Repeat(Chars(((97, 122),)), 100_000, 100_000))
    assert engine.accepts("q" * 100_000)
    assert not engine.accepts("q" * 99_999)
    assert not engine.accepts("q" * 100_001)


def test_repeated_optional_parts_stay_cheap() -> None:
    optional = Alt((Text("a"), Text(""), Ref("b")))
    root = Seq((Repeat(optional, 2, 500), Text("!")))
    grammar: dict[str, Expr] = {"root": root, "b": Repeat(Text("b"), 0, 1)}
    engine = Engine(to_ebnf(Grammar(grammar)))
    assert engine.accepts("ab" * 250 + "!")
    assert engine.accepts("!")
    assert not engine.accepts("ab" * 250 + "a!")


@pytest.mark.parametrize("other", ["b", "é", "</f>"])
def test_free_text_with_triggers(other: str) -> None:
    free = Dispatch((("<f", "number"), ("<g", "name")), excludes=(other,))
    rules: dict[str, Expr] = {
        "root": Seq((Text("("), Ref("free"), Text(")"))),
        "free": free,
        "number": Alt((Text("1"), Text("2"))),
        "name": Repeat(Chars(((97, 97), (102, 103))), 0, 2),
    }
    grammar = Grammar(rules)
    engine = Engine(to_ebnf(grammar))
    alphabet = "(<fg1)" + other[-1]
    expected = words(grammar, alphabet, 5)
    inside = random.Random(1).sample(all_words(alphabet, 5), 2000)
    texts = expected | {f"({w[:3]})" for w in inside} | {w for w in inside if w[:1] == "("}
    assert {text for text in texts if engine.accepts(text)} == expected


def test_the_first_trigger_that_ends_counts() -> None:
    free = Dispatch((("aa", "one"), ("ba", "one")))
    grammar = Grammar({"root": free, "one": Text("b")})
    engine = Engine(to_ebnf(grammar))
    assert {w for w in all_words("ab", 7) if engine.accepts(w)} == words(grammar, "ab", 7)


def test_deep_nesting_becomes_rules() -> None:
    expr: Expr = Text("a")
    for _ in range(1200):
        expr = Alt((Seq((Text("("), expr, Text(")"))), Text("b")))
    engine = only(expr)
    assert engine.accepts("(" * 1200 + "a" + ")" * 1200)
    assert engine.accepts("(" * 1199 + "b" + ")" * 1199)
    assert not engine.accepts("(" * 1201 + "b" + ")" * 1201)
    assert not engine.accepts("(" * 1199 + "a" + ")" * 1199)


def test_a_rule_that_only_repeats_itself_is_never_written() -> None:
    # xgrammar crashes on it.
    dead: dict[str, Expr] = {"root": Alt((Text("a"), Ref("x"))), "x": Repeat(Ref("x"), 1, 3)}
    assert Engine(to_ebnf(Grammar(dead))).accepts("a")


def test_a_root_of_another_name() -> None:
    engine = Engine(to_ebnf(Grammar({"top": Text("a")}, "top")))
    assert engine.accepts("a")
    assert not engine.accepts("")


@settings(max_examples=50, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=20))
def test_any_text_is_written_as_it_is(text: str) -> None:
    assert only(Text(text)).accepts(text)
    assert only(Dispatch(())).accepts(text)
