"""GrammarSpec: what is refused before a constraint is read, and what identifies it."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from project_tree import run_python

from rtlang.errors import (
    ConflictingConstraints,
    GrammarTooLarge,
    InvalidJson,
    InvalidParameter,
    InvalidSchema,
    RtlangError,
)
from rtlang.grammar.spec import MAX_CHOICES, MAX_SOURCE, GrammarSpec

DEEP: Any = []
for _ in range(5 * sys.getrecursionlimit()):
    DEEP = [DEEP]


def test_a_schema_as_text_and_as_mapping_is_the_same() -> None:
    schema = {"type": "object", "properties": {"b": {}, "a": {"const": "é"}}}
    spec = GrammarSpec.json_schema(schema)
    assert spec == GrammarSpec.json_schema(json.dumps(schema, indent=2))
    assert json.loads(spec.source) == schema
    assert list(json.loads(spec.source)["properties"]) == ["b", "a"]


def test_the_order_of_keys_and_every_option_are_in_the_key() -> None:
    specs = [
        GrammarSpec.json_schema({"a": 1, "b": 2}),
        GrammarSpec.json_schema({"b": 2, "a": 1}),
        GrammarSpec.json_schema({"a": 1, "b": 2}, whitespace=0),
        GrammarSpec.json_schema({"a": 1, "b": 2}, additional="closed"),
        GrammarSpec.regex('{"a":1,"b":2}'),
        GrammarSpec.choice(["a", "b"]),
        GrammarSpec.choice(["b", "a"]),
        GrammarSpec.any_json(),
    ]
    assert len({spec.key for spec in specs}) == len(specs)
    assert GrammarSpec.regex("a").key == GrammarSpec.regex("a").key


@pytest.mark.parametrize(
    "spec",
    [
        GrammarSpec.json_schema(True, whitespace=3, additional="closed"),
        GrammarSpec.ebnf('root ::= "é"'),
        GrammarSpec.choice(["", "a"]),
        GrammarSpec.structural_tag({"type": "structural_tag", "format": {}}),
    ],
)
def test_over_the_wire(spec: GrammarSpec) -> None:
    wire = spec.to_wire()
    assert {type(value) for value in wire.values()} <= {str, int}
    assert GrammarSpec.from_wire(json.loads(json.dumps(wire))) == spec
    assert GrammarSpec.from_wire(wire).key == spec.key


def test_of_takes_each_kind() -> None:
    assert GrammarSpec.of({"regex": "a+"}) == GrammarSpec.regex("a+")
    assert GrammarSpec.of({"ebnf": "x"}) == GrammarSpec.ebnf("x")
    assert GrammarSpec.of({"choice": ["a"]}) == GrammarSpec.choice(["a"])
    closed = {"json_schema": {}, "whitespace": 2, "additional": "closed"}
    assert GrammarSpec.of(closed) == GrammarSpec.json_schema(
        "{}", whitespace=2, additional="closed"
    )
    tag = {"type": "structural_tag"}
    assert GrammarSpec.of({"structural_tag": tag}) == GrammarSpec.structural_tag(tag)
    spec = GrammarSpec.any_json()
    assert GrammarSpec.of(spec) is spec


@pytest.mark.parametrize(
    ("given", "error", "param"),
    [
        ({}, InvalidParameter, "grammar"),
        ("a+", InvalidParameter, "grammar"),
        ({"regexp": "a"}, InvalidParameter, "regexp"),
        ({"regex": "a", "strict": True}, InvalidParameter, "strict"),
        ({"regex": "a", "whitespace": 3}, InvalidParameter, "regex"),
        ({"whitespace": 3}, InvalidParameter, "grammar"),
        ({"regex": 5}, InvalidParameter, "regex"),
        ({"regex": "a\0"}, InvalidParameter, "regex"),
        ({"ebnf": "\ud800"}, InvalidParameter, "ebnf"),
        ({"choice": []}, InvalidParameter, "choice"),
        ({"choice": "yes"}, InvalidParameter, "choice"),
        ({"choice": ["a", 1]}, InvalidParameter, "choice"),
        ({"choice": ["a\0"]}, InvalidParameter, "choice"),
        ({"choice": ["\ud800"]}, InvalidParameter, "choice"),
        ({"json_schema": {}, "whitespace": -1}, InvalidParameter, "whitespace"),
        ({"json_schema": {}, "whitespace": True}, InvalidParameter, "whitespace"),
        ({"json_schema": {}, "additional": "open"}, InvalidParameter, "additional"),
        ({"json_schema": "{"}, InvalidJson, "json_schema"),
        ({"json_schema": ""}, InvalidJson, "json_schema"),
        ({"json_schema": '{"minimum": NaN}'}, InvalidJson, "json_schema"),
        ({"json_schema": {"minimum": float("inf")}}, InvalidJson, "json_schema"),
        ({"json_schema": {"const": object()}}, InvalidJson, "json_schema"),
        ({"json_schema": {"const": "\udc00"}}, InvalidParameter, "json_schema"),
        ({"structural_tag": "<"}, InvalidJson, "structural_tag"),
    ],
)
def test_what_is_wrong_is_named(given: Any, error: type[RtlangError], param: str) -> None:
    with pytest.raises(error) as caught:
        GrammarSpec.of(given)
    assert caught.value.data["param"] == param


@pytest.mark.parametrize("schema", ["[]", "null", '"x"', "5", [1]])
def test_what_is_no_schema(schema: Any) -> None:
    with pytest.raises(InvalidSchema):
        GrammarSpec.json_schema(schema)
    with pytest.raises(InvalidSchema):
        GrammarSpec.structural_tag("true")


def test_two_constraints_conflict() -> None:
    with pytest.raises(ConflictingConstraints, match="regex and ebnf"):
        GrammarSpec.of({"regex": "a", "ebnf": "b"})


@pytest.mark.parametrize(
    ("given", "limit"),
    [
        ({"regex": "a" * (MAX_SOURCE + 1)}, "source"),
        ({"ebnf": "é" * (MAX_SOURCE // 2 + 1)}, "source"),
        ({"choice": ["a" * MAX_SOURCE]}, "source"),  # with its quotes
        ({"choice": ["a"] * (MAX_CHOICES + 1)}, "choices"),
        ({"json_schema": {"const": "a" * MAX_SOURCE}}, "source"),
        ({"json_schema": " " * MAX_SOURCE + "{}"}, "source"),
        ({"json_schema": '{"const":' + "[" * 30_000 + "]" * 30_000 + "}"}, "depth"),
        ({"json_schema": {"const": DEEP}}, "depth"),
    ],
)
def test_what_is_too_large(given: dict[str, Any], limit: str) -> None:
    with pytest.raises(GrammarTooLarge) as caught:
        GrammarSpec.of(given)
    assert caught.value.data["limit"] == limit


def test_the_largest_that_is_allowed() -> None:
    assert len(GrammarSpec.regex("a" * MAX_SOURCE).source) == MAX_SOURCE
    assert len(json.loads(GrammarSpec.choice(["a"] * MAX_CHOICES).source)) == MAX_CHOICES


def test_importing_it_loads_nothing_else_of_the_package() -> None:
    code = "import sys, rtlang.grammar.spec, rtlang.grammar\nrtlang.grammar.GrammarSpec\n"
    code += (
        "print([n for n in sys.modules if n.startswith('rtlang.grammar.')], 'torch' in sys.modules)"
    )
    assert run_python(code).strip() == "['rtlang.grammar.spec'] False"


def test_the_package_offers_two_names() -> None:
    code = "import rtlang.grammar as g\nprint(sorted(g.__all__), callable(g.accepts))\n"
    code += "try: g.nothing\nexcept AttributeError as error: print(error)"
    said = run_python(code).splitlines()
    assert said == [
        "['GrammarSpec', 'accepts'] True",
        "module 'rtlang.grammar' has no attribute 'nothing'",
    ]
