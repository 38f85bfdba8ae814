"""Structural tags: their languages, as xgrammar reads them too, and what is refused where."""

from __future__ import annotations

import functools
import random
from typing import Any

import pytest
import xgrammar as xgr
from grammar_language import Engine, words
from ir_oracle import matches

from rtlang.errors import (
    GrammarTooLarge,
    GrammarUnsatisfiable,
    InvalidEbnf,
    InvalidRegex,
    InvalidSchema,
    RtlangError,
    UnsupportedKeyword,
)
from rtlang.grammar.emit import to_ebnf
from rtlang.grammar.spec import GrammarSpec
from rtlang.grammar.translate import translate

Format = dict[str, Any]


def const(value: str) -> Format:
    return {"type": "const_string", "value": value}


def ebnf(text: str) -> Format:
    return {"type": "grammar", "grammar": text}


def tag(begin: str, content: Format, end: str | list[str]) -> Format:
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def wrapped(node: Any) -> Format:
    return {"type": "structural_tag", "format": node}


#: Pieces that the tags below are made of.
BITS = ["", "<a1>", "<b2>", "[a2]", "[a2>", "<b1>a<a", "b1>", "2]", "aa", "[", "]a", "a1", "ab"]

ANY: Format = {"type": "any_text"}
DIGIT = ebnf('root ::= "1" | "2"')
TAGS = [tag("<a", DIGIT, ">"), tag("<b", DIGIT, ">"), tag("[a", const("2"), ["]", ">"])]


def triggered(**more: Any) -> Format:
    return {"type": "triggered_tags", "triggers": ["<", "[a"], "tags": TAGS, **more}


FORMATS: dict[str, Format] = {
    "const": const("ab"),
    "any": ANY,
    "any without": {"type": "any_text", "excludes": ["<a", "2"]},
    "sequence": {"type": "sequence", "elements": [const("<"), DIGIT, ANY]},
    "or": {"type": "or", "elements": [const("<a"), DIGIT, const("")]},
    "optional": {"type": "optional", "content": const("a")},
    "plus": {"type": "plus", "content": {"type": "or", "elements": [DIGIT, const("ab")]}},
    "star": {"type": "star", "content": {"type": "optional", "content": const("a1")}},
    "repeat": {"type": "repeat", "content": DIGIT, "min": 1, "max": 3},
    "repeat any": {"type": "repeat", "content": DIGIT, "min": 2, "max": -1},
    "tag": tag("<", DIGIT, ">"),
    "tag of ends": tag("<", DIGIT, [">", "]a"]),
    "tag of text": tag("<", ANY, [">", "]a"]),
    "tag of text and a tag": tag("<", {"type": "sequence", "elements": [ANY, TAGS[0]]}, ">"),
    "tag of tags": tag("a", triggered(), "2]"),
    "triggered": triggered(),
    "triggered without": triggered(excludes=["b1"]),
    "triggered once": triggered(stop_after_first=True),
    "triggered always": triggered(at_least_one=True),
    "triggered always once": triggered(at_least_one=True, stop_after_first=True),
    "separated": {"type": "tags_with_separator", "separator": "a", "tags": TAGS},
    "separated always": {
        "type": "tags_with_separator", "separator": "", "tags": TAGS, "at_least_one": True
    },
    "separated once": {
        "type": "tags_with_separator", "separator": "a", "tags": TAGS, "stop_after_first": True
    },
    "dispatch": {"type": "dispatch", "rules": [["<", DIGIT], ["a", const("b")]]},
    "dispatch once": {"type": "dispatch", "rules": [["<", DIGIT]], "loop": False},
}  # fmt: skip


@functools.cache
def compiler() -> xgr.GrammarCompiler:
    vocab = [bytes([i]) for i in range(256)] + [b""]
    info = xgr.TokenizerInfo(vocab, xgr.VocabType.RAW, vocab_size=257, stop_token_ids=[256])
    return xgr.GrammarCompiler(info, max_threads=1)


@pytest.mark.parametrize("name", FORMATS)
def test_language_is_the_definitions_and_xgrammars(name: str) -> None:
    given = wrapped(FORMATS[name])
    grammar = translate(GrammarSpec.structural_tag(given))
    alphabet = "<ab1>2[]"
    engine = Engine(to_ebnf(grammar))
    other = xgr.GrammarMatcher(compiler().compile_structural_tag(given))
    rng = random.Random(4)
    short = sorted(words(grammar, alphabet, 3))
    sample = {a + b for a in rng.sample(short, min(25, len(short))) for b in [*short[:9], ""]}
    sample |= {_changed(rng, word, alphabet) for word in sorted(sample) if word}
    sample |= {"".join(rng.choices(alphabet, k=rng.randrange(9))) for _ in range(100)}
    sample |= {a + b for a in BITS for b in BITS} | {f"{a}<{b}a" for a in BITS for b in BITS}
    for word in sorted(sample):
        other.reset()
        read = all(other.accept_token(b) for b in word.encode()) and other.is_completed()
        assert engine.accepts(word) == read == matches(grammar, None, word), word


def _changed(rng: random.Random, word: str, alphabet: str) -> str:
    at = rng.randrange(len(word))
    return word[:at] + rng.choice(alphabet) + word[at + 1 :]


def test_tool_calls_in_free_text() -> None:
    schema: Format = {"properties": {"x": {"type": "integer"}}, "required": ["x"], "type": "object"}
    schema |= {"additionalProperties": False}
    old = {
        "structures": [{"begin": "<function=f>", "schema": schema, "end": "</function>"}],
        "triggers": ["<function="],
    }
    new = wrapped(
        {
            "type": "triggered_tags",
            "triggers": ["<function="],
            "tags": [
                tag("<function=f>", {"type": "json_schema", "json_schema": schema}, "</function>")
            ],
        }
    )
    for given in (old, new, {"type": "structural_tag", **old}):
        engine = Engine(to_ebnf(translate(GrammarSpec.structural_tag(given))))
        call = '<function=f>{"x": 5}</function>'
        for text in ("", "no call, 1 < 2", call, f"Let me see: {call} and {call}é", "<function"):
            assert engine.accepts(text), text
        for text in ("<function=g>", call[:-1], '<function=f>{"x": "5"}</function>'):
            assert not engine.accepts(text), text


def test_options_reach_the_schemas_inside() -> None:
    inner = {"type": "json_schema", "json_schema": {"properties": {"a": {"const": 1}}}}
    elements = [inner, {**inner, "max_whitespace_cnt": 1}]
    tags = wrapped({"type": "sequence", "elements": elements})
    spec = GrammarSpec.structural_tag(tags, whitespace=0, additional="closed")
    engine = Engine(to_ebnf(translate(spec)))
    assert engine.accepts('{"a":1}{"a": 1}')
    assert not engine.accepts('{"a": 1}{"a": 1}')
    assert not engine.accepts('{"a":1}{"a":  1}')
    assert not engine.accepts('{"a":1}{"b":1}')


@pytest.mark.parametrize(
    ("node", "error", "pointer"),
    [
        (5, InvalidSchema, ""),
        ({}, InvalidSchema, "/type"),
        ({"type": ["tag"]}, InvalidSchema, "/type"),
        ({"type": "text"}, InvalidSchema, "/type"),
        ({"type": "const_string"}, InvalidSchema, ""),
        ({"type": "const_string", "value": 5}, InvalidSchema, "/value"),
        ({"type": "const_string", "value": None}, InvalidSchema, "/value"),
        ({"type": "const_string", "value": "\0"}, InvalidSchema, "/value"),
        ({"type": "const_string", "value": "", "a/b": 1}, InvalidSchema, "/a~1b"),
        ({"type": "any_text", "excludes": [""]}, InvalidSchema, "/excludes"),
        ({"type": "any_text", "max_tokens": 5}, UnsupportedKeyword, "/max_tokens"),
        ({"type": "any_text", "max_chars": 5}, UnsupportedKeyword, "/max_chars"),
        ({"type": "or", "elements": []}, InvalidSchema, "/elements"),
        ({"type": "or", "elements": [const("a"), 5]}, InvalidSchema, "/elements/1"),
        ({"type": "token", "token": 5}, UnsupportedKeyword, "/type"),
        ({"type": "grammar", "grammar": "x", "syntax": "lark"}, UnsupportedKeyword, "/syntax"),
        (ebnf('root ::= "a'), InvalidEbnf, "/grammar"),
        (ebnf('root ::= root "a"'), GrammarUnsatisfiable, "/grammar"),
        ({"type": "regex", "pattern": "(a"}, InvalidRegex, "/pattern"),
        ({"type": "json_schema", "json_schema": 5}, InvalidSchema, "/json_schema"),
        ({"type": "json_schema", "json_schema": {"type": "x"}}, InvalidSchema, "/json_schema/type"),
        (
            {"type": "json_schema", "json_schema": {}, "style": "glm_xml"},
            UnsupportedKeyword,
            "/style",
        ),
        (
            {"type": "json_schema", "json_schema": {}, "any_order": True},
            UnsupportedKeyword,
            "/any_order",
        ),
        (tag("", ANY, "x"), InvalidSchema, "/begin"),
        (tag("x", ANY, ""), InvalidSchema, "/content"),
        (tag("x", ANY, []), InvalidSchema, "/end"),
        (
            {**tag("x", ANY, "y"), "begin": {"type": "token", "token": 5}},
            UnsupportedKeyword,
            "/begin",
        ),
        ({"type": "repeat", "content": ANY, "min": 3, "max": 2}, InvalidSchema, "/max"),
        ({"type": "repeat", "content": ANY, "min": 0, "max": 2000}, GrammarTooLarge, ""),
        (triggered(triggers=["<"]), InvalidSchema, "/tags/2/begin"),
        (triggered(triggers=["<", "<a", "["]), InvalidSchema, "/tags/0/begin"),
        (triggered(triggers=["<", "[", "x<"]), InvalidSchema, ""),
        (triggered(excludes=["a<"]), InvalidSchema, ""),
        (triggered(tags=[const("<")]), InvalidSchema, "/tags/0/type"),
        (tag("x", triggered(), "</x>"), InvalidSchema, "/content"),
        ({"type": "dispatch", "rules": [["a"]]}, InvalidSchema, "/rules"),
    ],
)
def test_what_is_refused_has_its_place(node: Any, error: type[RtlangError], pointer: str) -> None:
    with pytest.raises(error) as caught:
        translate(GrammarSpec.structural_tag(wrapped(node)))
    assert caught.value.data["pointer"] == "/format" + pointer


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"type": "structural_tag"},
        {"type": "tag", "format": ANY},
        {"structures": 5, "triggers": []},
        {"structures": [{"begin": "a"}], "triggers": ["a"]},
        {"structures": [], "triggers": ["a"], "more": 1},
        {"structures": []},
    ],
)
def test_what_is_no_structural_tag(given: Format) -> None:
    with pytest.raises(InvalidSchema):
        translate(GrammarSpec.structural_tag(given))


def test_deep_nesting_is_refused() -> None:
    node = ANY
    for _ in range(60):
        node = {"type": "star", "content": node}
    with pytest.raises(GrammarTooLarge) as caught:
        translate(GrammarSpec.structural_tag(wrapped(node)))
    assert caught.value.data["limit"] == "depth"
