"""User grammars: the notation, the place of each error, the limits."""

from __future__ import annotations

import random

import pytest
from grammar_language import Engine, all_words, words
from hypothesis import given, settings
from hypothesis import strategies as st

from rtlang.errors import GrammarTooLarge, InvalidEbnf
from rtlang.grammar.ebnf_parser import MAX_DEPTH, MAX_RULES, parse
from rtlang.grammar.emit import to_ebnf
from rtlang.grammar.ir import Alt, Chars, Expr, Grammar, Ref, Repeat, Seq, Text


def of(expression: str) -> Expr:
    return parse(f"root ::= {expression}").rules["root"]


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (r'"a\n\t\r\\\"\x41B\u00e9\U0001F600"', Text('a\n\t\r\\"AB\u00e9\U0001f600')),
        (r'"\f\b\v\a\0"', Text("\f\b\v\a\0")),
        ('""', Text("")),
        ("()", Text("")),
        ('"é😀 #"', Text("é😀 #")),
        ("[a-cx]", Chars(((97, 99), (120, 120)))),
        ("[^a]", Chars(((0, 96), (98, 0xD7FF), (0xE000, 0x10FFFF)))),
        (r"[\]\\\-\^]", Chars(((45, 45), (92, 94)))),
        (r"[a\-c]", Chars(((45, 45), (97, 97), (99, 99)))),
        ("[a-]", Chars(((45, 45), (97, 97)))),
        ("[-a]", Chars(((45, 45), (97, 97)))),
        ("[a^[]", Chars(((91, 91), (94, 94), (97, 97)))),
        (r"[\x41-\u0043]", Chars(((65, 67),))),
        ("[😀-😂]", Chars(((0x1F600, 0x1F602),))),
        ('"a"  # "b"\n "c"', Seq((Text("a"), Text("c")))),
        ('"a"\n|\n"b"', Alt((Text("a"), Text("b")))),
        ('("a" | "b") "c"', Seq((Alt((Text("a"), Text("b"))), Text("c")))),
        ('"ab"*', Repeat(Text("ab"), 0, None)),
        ('"ab"+', Repeat(Text("ab"), 1, None)),
        ('"ab" ?', Repeat(Text("ab"), 0, 1)),
        ('"ab"{3}', Repeat(Text("ab"), 3, 3)),
        ('"ab"{ 3 , }', Repeat(Text("ab"), 3, None)),
        ('"ab"{0003,5}', Repeat(Text("ab"), 3, 5)),
        ('"ab"{0}', Text("")),
        ('("a"{2})*', Repeat(Repeat(Text("a"), 2, 2), 0, None)),
    ],
)
def test_notation(written: str, meant: Expr) -> None:
    assert of(written) == meant


def test_rules_refer_to_one_another() -> None:
    text = 'a-b ::= "x" c.d |"y"\nroot::=a-b root | ""\n# end\nc.d ::= [0-9]\n a-b'
    grammar = parse(text.rpartition("\n")[0])
    assert grammar == Grammar(
        {
            "r1": Alt((Seq((Text("x"), Ref("r2"))), Text("y"))),
            "root": Alt((Seq((Ref("r1"), Ref("root"))), Text(""))),
            "r2": Chars(((48, 57),)),
        }
    )


@pytest.mark.parametrize(
    ("text", "line", "column", "says"),
    [
        ("", 1, 1, "no rule called root"),
        ('x ::= "a"', 1, 1, "no rule called root"),
        ("root", 1, 1, "name ::= expression"),
        ('root = "a"', 1, 6, "::="),
        ("root ::=", 1, 9, 'expected a literal "...", a class'),
        ('root ::= "a" |', 1, 15, "expected a literal"),
        ('root ::= | "a"', 1, 10, "expected a literal"),
        ('root ::= "a"\n  ("b" | )', 2, 10, "expected a literal"),
        ('root ::= "a"\n  ("b"\nx ::= "c"', 2, 3, "not closed"),
        ('root ::= "a")', 1, 13, "closes nothing"),
        ('root ::= "a', 1, 10, "not closed on its line"),
        ('root ::= "a\n"', 1, 10, "not closed on its line"),
        ("root ::= [a\n]", 1, 10, "not closed on its line"),
        ("root ::= []", 1, 10, "without characters"),
        ("root ::= [^]", 1, 10, "without characters"),
        ("root ::= [b-a]", 1, 11, "ends before it starts"),
        (r'root ::= "ab\q"', 1, 13, r"unknown escape \q"),
        (r"root ::= [\d]", 1, 11, r"unknown escape \d"),
        (r'root ::= "\x4"', 1, 11, "2"),
        (r'root ::= "\ud83d\ude00"', 1, 11, "no character"),
        (r'root ::= "\U00110000"', 1, 11, "no character"),
        ("root ::= 'a'", 1, 10, "double quotes"),
        ("root ::= .", 1, 10, "any character"),
        ("root ::= *", 1, 10, "could repeat"),
        ('root ::= "a"*?', 1, 14, "could repeat"),
        ('root ::= "a"{3,1}', 1, 13, "below its start"),
        ('root ::= "a"{,1}', 1, 13, "{m,n}"),
        ('root ::= "a"\nroot ::= "b"', 2, 1, "defined twice"),
        ('root ::= "a" |\n  x', 2, 3, "x is used but not defined"),
        ("root ::= Token(5)", 1, 16, "unexpected character"),
        ("root ::= Token(x)", 1, 10, "macros are not supported"),
        ('root ::= TagDispatch(("a",b))', 1, 26, "macros"),
        ('root ::= "a" (= "b")', 1, 15, "look-ahead"),
        ('root ::= "a" ::= "b"', 1, 14, "expected a literal"),
    ],
)
def test_errors_name_the_place(text: str, line: int, column: int, says: str) -> None:
    with pytest.raises(InvalidEbnf) as caught:
        parse(text)
    assert (caught.value.data["line"], caught.value.data["column"]) == (line, column)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("root ::= " + "(" * 60_000, "depth"),
        ("root ::= " + "(" * (MAX_DEPTH + 1) + '"a"' + ")" * (MAX_DEPTH + 1), "depth"),
        ("\n".join(f'r{i} ::= "a"' for i in range(MAX_RULES + 1)), "rules"),
        ("root ::= [a-z]{100001}", "repeat"),
        ('root ::= "a"{1,100001}', "repeat"),
        ('root ::= "ab"{1001,}', "repeat"),
        ('root ::= ("a"){99999999999999999999}', "repeat"),
        ('root ::= (("ab"{100} "c"){100} | "x"){11}', "repeat"),
    ],
)
def test_limits(text: str, limit: str) -> None:
    with pytest.raises(GrammarTooLarge) as caught:
        parse(text)
    assert caught.value.data["limit"] == limit


def test_the_largest_that_is_allowed() -> None:
    assert of("(" * MAX_DEPTH + '"a"' + ")" * MAX_DEPTH) == Text("a")
    assert of("[a-z]{100000}") == Repeat(Chars(((97, 122),)), 100_000, 100_000)
    assert isinstance(of('(("ab"{100} "c"){100} | "x"){10}'), Repeat)


RECURSIVE = [
    'root ::= root "a" | "b"',
    'root ::= x root "a" | "b"\nx ::= "" | "b"',
    'root ::= root | x | "a"\nx ::= root "b" | x',
    'root ::= "" | "a" root "b" root',
    'root ::= x{2,3}\nx ::= "a" | "b" x "b"',
    'root ::= (x | "a")* "b"\nx ::= ("a"? "b"?)*',
    'root ::= root root | "ab" | ""',
]


@pytest.mark.parametrize("text", RECURSIVE)
def test_recursion_as_xgrammar_reads_it_too(text: str) -> None:
    """Ours against xgrammar on the user's own text: neither goes through the other's parser."""
    grammar, own = parse(text), Engine(text)
    expected = words(grammar, "ab", 6)
    written = Engine(to_ebnf(grammar))
    for word in all_words("ab", 6):
        assert written.accepts(word) == own.accepts(word) == (word in expected), word


@settings(max_examples=300, deadline=None)
@given(st.text('ax:=\n "[](){}|*+?^-\\01,#.', max_size=30))
def test_any_text_is_read_or_refused(tail: str) -> None:
    try:
        parse("root ::= " + tail)
    except InvalidEbnf as error:
        assert 1 <= error.data["line"] <= tail.count("\n") + 1
        assert error.data["column"] >= 1


def test_grammars_that_xgrammar_writes_are_read() -> None:
    """Random expressions in the common notation mean the same to both."""
    rng = random.Random(3)
    for _ in range(60):
        text = "root ::= " + _random(rng, 3)
        grammar, own = parse(text), Engine(text)
        assert words(grammar, "ab-", 4) == {w for w in all_words("ab-", 4) if own.accepts(w)}, text


def _random(rng: random.Random, depth: int) -> str:
    if depth == 0 or rng.random() < 0.2:
        return rng.choice(['"a"', '"ab"', '""', "[ab]", "[^b]", "[a-]", r"[\-b]", r'"\x61"'])
    parts = [_random(rng, depth - 1) for _ in range(rng.randint(1, 3))]
    joined = rng.choice([" ", " | "]).join(parts)
    return f"({joined})" + rng.choice(["", "", "?", "*", "+", "{2}", "{1,2}", "{1,}"])
