"""Regular expressions against the package ``regex``, and their two translations to each other."""

from __future__ import annotations

import itertools
import unicodedata

import pytest
import regex as reference
from hypothesis import given, settings
from hypothesis import strategies as st
from ir_oracle import matches

from rtlang.errors import GrammarTooLarge, InvalidRegex
from rtlang.grammar import regex_parser
from rtlang.grammar.charset import CharSet
from rtlang.grammar.emit import to_ebnf
from rtlang.grammar.ir import Chars, Expr, Grammar, Ref, Repeat, Text
from rtlang.grammar.regex import Regex, parse

TEXTS = ["".join(t) for n in range(5) for t in itertools.product("ab-", repeat=n)]
FEW = [text for text in TEXTS if len(text) <= 3]


def accepted(pattern: str, text: str, *, search: bool) -> bool:
    """By the other implementation; its $ would also match before a last newline."""
    find = reference.search if search else reference.fullmatch
    return find(pattern.replace("$", r"\Z"), text, reference.ASCII) is not None


def written(found: Regex) -> Grammar:
    rules: dict[str, Expr] = {}

    def define(expr: Expr) -> Ref:
        rules[f"r{len(rules)}"] = expr
        return Ref(f"r{len(rules) - 1}")

    def encode(chars: CharSet) -> Expr:
        return Text(chr(chars.ranges[0][0])) if len(chars) == 1 else Chars(chars.ranges)

    root = found.to_ir(encode, define)
    return Grammar({"root": root, **rules})


COUNTS = ["*", "+", "?", "{2}", "{1,}", "{0,2}", "*?", "+?", "{1,3}?", "{0}"]


def bigger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda p: f"(?:{p[0]}|{p[1]})"),
        st.tuples(inner, st.sampled_from(COUNTS)).map(lambda p: f"({p[0]}){p[1]}"),
    )


CHARS = st.sampled_from(
    ["a", "b", "ab", ".", "[ab]", "[^a]", r"\w", r"\W", "[a-]", r"[^\w]", "|", ""]
)
PLAIN = st.recursive(CHARS, bigger, max_leaves=5)
STARTS = st.sampled_from([r"^(?=\b", "(?!$|", "(?=(?!a)", "(?=", "(?!", "(?<=", "(?<!"])
LOOKS = st.one_of(
    st.sampled_from(["^", "$", r"\b", r"\B", r"\A", "a$", "^b"]),
    st.tuples(STARTS, PLAIN).map(lambda p: f"{p[0]}{p[1]})"),
)
PATTERNS = st.recursive(CHARS | LOOKS, bigger, max_leaves=6)


@settings(max_examples=120, deadline=None)
@given(PLAIN, st.booleans())
def test_plain_patterns_match_what_they_match_elsewhere(pattern: str, search: bool) -> None:
    found = parse(pattern, search=search)
    expected = [text for text in TEXTS if accepted(pattern, text, search=search)]
    assert [text for text in TEXTS if found.to_dfa().accepts(text)] == expected
    grammar = written(found)
    assert not found.looks_around
    assert [t for t in FEW if matches(grammar, None, t)] == [t for t in expected if len(t) <= 3]


@settings(max_examples=200, deadline=None)
@given(PATTERNS, st.booleans())
def test_patterns_that_look_around_match_what_they_match_elsewhere(
    pattern: str, search: bool
) -> None:
    found = parse(pattern, search=search)
    expected = [text for text in TEXTS if accepted(pattern, text, search=search)]
    assert [text for text in TEXTS if found.to_dfa().accepts(text)] == expected
    grammar = written(found)
    assert [t for t in FEW if matches(grammar, None, t)] == [t for t in expected if len(t) <= 3]


EXAMPLES = [
    (r"^(?=.*\d)(?=.*[a-z])[a-z\d]{4,}$", ["abc1", "1a23"], ["abcd", "1234", "a1", "abc1!"]),
    (r"^(?!tmp)[a-z]{3,6}$", ["foo", "tm", "atmp"][::2], ["tmpx", "ab"]),
    (r"^((?!foo).)*$", ["", "fo", "barfo"], ["foo", "a foo b", "f\no"]),
    (r"\bcat\b", ["cat", "a cat!", "cat-"], ["cats", "concat", "_cat"]),
    (r"(?<=\$)\d+(?!\d|%)$", ["$5", "a$12"], ["5", "$5%", "$"]),
    (r"^a|b$", ["a", "ax", "xb"], ["xa", "bx", ""]),
    (r"a^b", [], ["ab", "a^b", "b"]),
    (r"(^a|^b)c$", ["ac", "bc"], ["xac", "acx"]),
    (r"^\u00e9\x41\u{1F600}\uD83D\uDE00\cJ$", ["éA😀😀\n"], ["éA😀\n"]),
    (r"^[\t\-\]\b\u{e9}-\u{eb}/]+$", ["\t-]\x08éêë/"], ["\\", "u", "b"]),
    (r"^\s$", ["\u00a0", "\ufeff", "\u3000", "\v", "\u2028"], ["\x1c", "\x85", "\u200b"]),
    (r"^.$", ["\x85", "😀", "\v"], ["\n", "\r", "\u2028", "\u2029", ""]),
    (r"^\d\w$", ["1_", "9z"], ["٣a", "1é"]),
    (r"^\p{Lu}\P{L}\p{digit}\p{gc=Ll}\p{Letter}$", ["É-٣éω"], ["é-3éω", "ÉÉ3éω"]),
    (r"^[\p{Lu}\p{Sc}]+\p{ASCII}\p{Any}$", ["€Éa€"], ["aaa", "€éé"]),
    (r"^a{2}{$", ["aa{"], ["aa"]),
    (r"^x{,y}]$", ["x{,y}]"], ["xy"]),
    (r"^(?<n>a)(?P<m>b)$", ["ab"], ["a"]),
    (r"[\0-\x1f]", ["\0", "a\x1fb"], [" "]),
]  # fmt: skip


@pytest.mark.parametrize(("pattern", "good", "bad"), EXAMPLES, ids=[e[0] for e in EXAMPLES])
def test_examples(pattern: str, good: list[str], bad: list[str]) -> None:
    found = parse(pattern, search=True)
    grammar = written(found)
    for text in [*good, *bad]:
        assert found.to_dfa().accepts(text) is (text in good), text
        assert matches(grammar, None, text) is (text in good), text


def test_properties_are_those_of_python() -> None:
    for name, long in (("Lu", "Uppercase_Letter"), ("Nd", "digit"), ("Zs", "Space Separator")):
        dfa = parse(rf"\p{{{name}}}", search=False).to_dfa()
        assert dfa == parse(rf"\p{{{long}}}", search=False).to_dfa()
        for code in range(0, 0x3000, 7):
            assert dfa.accepts(chr(code)) is (unicodedata.category(chr(code)) == name)
    assert (
        parse(r"\p{Assigned}|\p{Cn}", search=False).to_dfa()
        == parse(r"[^\p{Cs}]", search=False).to_dfa()
    )
    assert parse(r"\p{Cs}", search=False).to_dfa().is_empty


def test_counts_stay_counts() -> None:
    grammar = written(parse("^[a-z0-9-]{1,64}$", search=True))
    assert grammar.rules["root"] == Repeat(
        Chars(CharSet.of("-", (48, 57), (97, 122)).ranges), 1, 64
    )
    assert written(parse("foo{2}", search=False)).rules["root"] != Text("foo")
    assert written(parse("foo", search=False)).rules == {"root": Text("foo")}


WRONG = [
    ("a)", 1, "open"), ("(a", 0, "missing"), ("[a", 0, "missing"), ("a**", 2, "stands before"),
    ("*a", 0, "stands before"), ("a|+", 2, "stands before"), ("^*", 1, "stands before"),
    ("(?=a)*", 5, "stands before"), ("{2}", 0, "stands before"), ("a{3,2}", 1, "order"),
    ("[z-a]", 2, "order"), (r"[\d-x]", 3, "both ends"), ("[]", 0, "empty"), ("[^]", 0, "empty"),
    ("[[:alpha:]]", 1, "POSIX"), ("a{,3}", 1, "{0,n}"), ("a++", 2, "possessive"),
    ("ab\\", 2, "follows"),
    (r"(a)\1", 3, "backreferences"), (r"\k<a>", 0, "backreferences"),
    ("(?P=n)", 0, "backreferences"),
    (r"\012", 0, "octal"), ("(?i)a", 0, "flags"), ("(?i:a)", 0, "flags"), ("(?>a)", 0, "atomic"),
    ("(?(1)a)", 0, "conditionals"), ("(?#a)", 0, "comments"), ("(?R)", 0, "recursion"),
    (r"a\y", 1, r"\y"), (r"[\B]", 1, r"\B"), (r"\xg1", 0, "hexadecimal"), (r"\u12", 0, "missing"),
    (r"\u{110000}", 0, "10FFFF"), (r"\ud800", 0, "surrogate"), (r"\ud83d\u0041", 0, "surrogate"),
    (r"\c1", 0, "letter"), (r"\pL", 0, "braces"), (r"\p{Greek}", 0, "general categories"),
    (r"\p{L", 3, "missing"), ("(?<1>a)", 0, "name"), ("(?<a>b)(?<a>c)", 7, "name"),
    ("(?<=a$)b", 0, "lookbehind"), (r"(?<!\b)b", 0, "lookbehind"), ("a\0", 1, "character"),
    ("\ud800", 0, "character"), ("[\ud800]", 1, "character"), ("[\0]", 1, "character"),
]  # fmt: skip


@pytest.mark.parametrize(("pattern", "pos", "reason"), WRONG, ids=[repr(w[0]) for w in WRONG])
def test_what_is_wrong_or_not_supported_is_said(pattern: str, pos: int, reason: str) -> None:
    with pytest.raises(InvalidRegex) as error:
        parse(pattern, search=True)
    assert error.value.pos == pos
    assert reason in error.value.reason and error.value.reason in str(error.value)


@pytest.mark.parametrize(
    ("pattern", "limit"),
    [
        ("a" * (regex_parser.MAX_LENGTH + 1), "length"),
        ("(" * 60_000, "depth"),
        ("(?=" * 11 + ")" * 11, "depth"),
        ("|" * 2_001, "alternatives"),
        ("(?:ab){1001}", "repeat"),
        ("a{100001}", "repeat"),
        ("a{9999999999}", "repeat"),
        ("((a{1,100}){1,100}){1,100}", "repeat"),
        ("((?:x|b{1,100}c){1,100}|y){1,100}", "repeat"),
        ("(?:(?=(a{100}b){100})c){100}", "repeat"),
    ],
)
def test_limits(pattern: str, limit: str) -> None:
    with pytest.raises(GrammarTooLarge) as error:
        parse(pattern, search=True)
    assert error.value.limit == limit


@pytest.mark.parametrize(
    "pattern",
    ["(?:a|b)*a(?:a|b){20}", "((a{9,40}){40}){9}", "a{100000}", "(?=.*a.{20}b).*", "a" * 60_000],
)
def test_automata_that_grow_too_large_are_refused(pattern: str) -> None:
    with pytest.raises(GrammarTooLarge) as error:
        parse(pattern, search=True).to_dfa()
    assert error.value.limit == "states"


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("(" * 200 + "a" + ")" * 200, "a"),
        ("(?:" * 199 + "a" + "|b)*" * 199, "ab"),
        ("a" * 2_000, "a" * 2_000),
        ("a{0,100000}", "aa"),
        ("|".join(f"w{n}" for n in range(2_000)), "w1999"),
    ],
    ids=["groups", "repeated groups", "characters", "count", "alternatives"],
)
def test_large_patterns_need_no_recursion(pattern: str, text: str) -> None:
    grammar = written(parse(pattern, search=False))
    if len(text) < 10:
        assert matches(grammar, None, text)
        assert not matches(grammar, None, text + "!")


def test_the_matcher_agrees() -> None:
    xgrammar = pytest.importorskip("xgrammar")
    alphabet = [bytes([byte]) for byte in range(256)]
    tokens = xgrammar.TokenizerInfo(alphabet, xgrammar.VocabType.RAW, stop_token_ids=[0])
    compiler = xgrammar.GrammarCompiler(tokens, cache_enabled=False)
    for pattern, good, bad in EXAMPLES:
        if not good:
            continue
        compiled = compiler.compile_grammar(to_ebnf(written(parse(pattern, search=True))))
        for text in [*good, *bad]:
            matcher = xgrammar.GrammarMatcher(compiled)
            done = matcher.accept_string(text) and matcher.is_completed()
            assert done is (text in good), (pattern, text)
