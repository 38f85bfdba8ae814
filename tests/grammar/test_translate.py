"""Every kind of constraint from its source to xgrammar's verdict, and ``accepts`` on top."""

from __future__ import annotations

from typing import Any

import pytest

from rtlang.errors import (
    GrammarError,
    GrammarTooLarge,
    GrammarUnsatisfiable,
    InvalidEbnf,
    InvalidRegex,
    InvalidSchema,
    UnsupportedKeyword,
)
from rtlang.grammar import GrammarSpec, accepts
from rtlang.grammar.translate import translate
from rtlang.runtime.byte_tokenizer import ByteTokenizer


@pytest.mark.parametrize(
    ("given", "allowed", "refused"),
    [
        ({"choice": ["John", "John Doe", "é"]}, ["John", "John Doe", "é"], ["", "J", "John "]),
        ({"choice": ["", "a"]}, ["", "a"], ["aa"]),
        ({"choice": ["a", "a"]}, ["a"], ["aa"]),
        ({"choice": ['"\\\n']}, ['"\\\n'], ['"\\\\n']),
        ({"regex": "[0-9]{3}x"}, ["123x"], ["12x", "1234x", "123x "]),
        ({"regex": "a.b"}, ["a-b", "aéb", "a😀b"], ["a\nb", "ab"]),
        ({"regex": ""}, [""], ["a"]),
        ({"ebnf": 'root ::= "a" root | "b"'}, ["b", "aab"], ["a", ""]),
        ({"json_schema": {"type": "integer"}}, ["5", "-12"], ["", "5.5", "x", '"5"']),
        (
            {"json_schema": {"type": "object", "required": ["a"]}, "whitespace": 1},
            ['{"a":1}', '{"a": null, "b": {}}'],
            ["{}", '{"a":  1}', '{"a":1', "[]"],
        ),
        (
            {
                "structural_tag": {
                    "type": "structural_tag",
                    "format": {
                        "type": "tag",
                        "begin": "<",
                        "content": {"type": "any_text"},
                        "end": ">",
                    },
                }
            },
            ["<>", "<a<é>"],
            ["", "<a", "<a>b>", "<a>>"],
        ),
    ],
)
def test_what_a_constraint_allows(
    given: dict[str, Any], allowed: list[str], refused: list[str]
) -> None:
    spec = GrammarSpec.of(given)
    tokenizer = ByteTokenizer()
    for text, expected in [(t, True) for t in allowed] + [(t, False) for t in refused]:
        assert accepts(spec, text) == expected, text
        assert accepts(given, text, tokenizer) == expected, text


def test_half_a_character_is_never_allowed() -> None:
    assert not accepts(GrammarSpec.regex(".*"), "\ud800")


def test_any_json_is_any_object() -> None:
    spec = GrammarSpec.any_json()
    assert accepts(spec, '{"a": [1, {"b": null}], "é": ""}')
    assert not accepts(spec, "[1]")


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"regex": "(a"}, InvalidRegex),
        ({"regex": r"(a)\1"}, InvalidRegex),
        ({"regex": "((a{1,100}){1,100}){1,100}"}, GrammarTooLarge),
        ({"regex": "(" * 60_000}, GrammarError),
        ({"regex": "a^b"}, GrammarUnsatisfiable),
        ({"ebnf": "root ::= ("}, InvalidEbnf),
        ({"ebnf": 'root ::= root "a"'}, GrammarUnsatisfiable),
        ({"json_schema": False}, GrammarUnsatisfiable),
        ({"json_schema": {"anyOf": [{"$ref": "#"}]}}, GrammarError),
        ({"json_schema": {"type": "strin"}}, InvalidSchema),
        ({"json_schema": {"$ref": "https://example.com/s.json"}}, UnsupportedKeyword),
        ({"structural_tag": {"structures": []}}, InvalidSchema),
    ],
)
def test_what_is_refused(given: dict[str, Any], error: type[GrammarError]) -> None:
    with pytest.raises(error):
        translate(GrammarSpec.of(given))
    with pytest.raises(error):
        accepts(given, "a")
