"""What each keyword does to the texts of a schema, the documented form, refusals and limits."""

from __future__ import annotations

import json
from typing import Any

import pytest
from schema_samples import COMPACT, engine, text

from rtlang.errors import (
    GrammarError,
    GrammarTooLarge,
    GrammarUnsatisfiable,
    InvalidJson,
    InvalidRegex,
    InvalidSchema,
    UnsupportedKeyword,
)
from rtlang.grammar.schema import SchemaOptions, parse_schema, translate

CASES: list[tuple[Any, list[str], list[str]]] = [
    (True, ["null", "[1,{}]", '{"a":"\\u0041\\ud83d\\ude00"}'], ["nul", '"\\ud83d"', '"\n"']),
    ({"type": ["string", "null"]}, ['""', "null"], ["1", "[]"]),
    ({"minimum": 5}, ['"x"', "5", "null"], ["4"]),
    ({"minLength": 2, "maxLength": 3}, ['"ab"', '"é😀"', '"a\\n"', "1"], ['"a"', '"abcd"']),
    ({"pattern": "^[a-z]+$", "maxLength": 3, "type": "string"}, ['"abc"'], ['"abcd"', '"A"']),
    ({"pattern": "b", "type": "string"}, ['"abc"', '"\\"b"'], ['"ac"', '"\\u0062"']),
    ({"enum": ["b", 1, {"x": [True]}]}, ['"b"', "1", '{"x":[true]}'], ['"a"', "true", "{}"]),
    ({"enum": ["b", 1], "type": "string"}, ['"b"'], ["1"]),
    ({"const": {"a": 1, "b": None}}, ['{"a":1,"b":null}'], ['{"a":1}', '{"b":null,"a":1}']),
    # Objects: declared keys in their order, then others, which are none of the declared.
    (
        {"properties": {"a": {"type": "integer"}, "b": {}}, "required": ["b"], "type": "object"},
        ['{"a":1,"b":2}', '{"b":2,"z":[]}', '{"b":2,"ab":1}'],
        ["{}", '{"b":2,"a":1}', '{"b":2,"b":3}', '{"b":1,"\\u0061":"x"}'],
    ),
    ({"type": "object", "required": ["a"]}, ['{"a":1}', '{"a":1,"b":2}'], ["{}"]),
    (
        {"patternProperties": {"^x": {"type": "null"}}, "additionalProperties": {"const": 1},
         "type": "object"},
        ["{}", '{"x1":null,"y":1}'],
        ['{"x1":1}', '{"y":null}'],
    ),
    ({"propertyNames": {"maxLength": 1}, "type": "object"}, ['{"a":1}'], ['{"ab":1}']),
    ({"minProperties": 1, "maxProperties": 2, "type": "object"}, ['{"a":1}', '{"a":1,"b":1}'],
     ["{}", '{"a":1,"b":1,"c":1}']),
    (
        {"properties": {k: {} for k in "abc"}, "additionalProperties": False, "minProperties": 2},
        ['{"a":1,"c":1}', '{"b":1,"c":1}', "7"],
        ['{"a":1}', "{}"],
    ),
    ({"dependentRequired": {"a": ["b"]}, "type": "object"}, ['{"b":1}', '{"b":1,"a":2}'],
     ['{"a":2}', '{"a":2,"c":1}']),
    # Arrays.
    ({"items": {"type": "integer"}, "minItems": 1, "maxItems": 2}, ["[1]", "[1,2]", "{}"],
     ["[]", "[1,2,3]", '["a"]']),
    ({"prefixItems": [{"const": 1}, {"const": 2}], "items": {"const": 3}, "minItems": 1},
     ["[1]", "[1,2]", "[1,2,3,3]"], ["[]", "[2]", "[1,2,2]"]),
    ({"contains": {"const": 1}, "maxContains": 2, "type": "array"}, ["[1]", "[0,1,2,1]"],
     ["[]", "[0]", "[1,1,1]"]),
    ({"allOf": [{"contains": {"const": 1}}, {"contains": {"const": 2}}], "type": "array"},
     ["[1,2]", "[2,0,1]"], ["[1,1]", "[2]"]),
    ({"items": {"enum": [1, "a", None]}, "uniqueItems": True}, ["[]", '["a",1,null]', "[1]"],
     ["[1,1]", '["a",1,"a"]']),
    ({"items": {"enum": list(range(9))}, "uniqueItems": True, "minItems": 2}, ["[0,8]", "[3,4,5]"],
     ["[1]", "[2,1]", "[1,1]"]),
    # Combinations.
    ({"allOf": [{"properties": {"a": {"minimum": 2}}}, {"properties": {"a": {"maximum": 3}}}],
      "required": ["a"], "type": "object"}, ['{"a":2}', '{"a":"x"}'], ['{"a":1}', '{"a":4}']),
    ({"oneOf": [{"type": "integer"}, {"minimum": 2}]}, ["1", "2.5", '"x"'], ["3", "1.5"]),
    ({"oneOf": [{"required": ["a"]}, {"required": ["b"]}], "type": "object"},
     ['{"a":1}', '{"b":1,"c":2}'], ["{}", '{"a":1,"b":1}']),
    ({"not": {"required": ["a", "b"]}, "type": "object"}, ['{"a":1}', "{}"], ['{"a":1,"b":1}']),
    ({"if": {"properties": {"k": {"const": 1}}, "required": ["k"]}, "then": {"required": ["v"]},
      "else": {"maxProperties": 1}, "type": "object"},
     ['{"k":1,"v":2}', '{"k":2}', "{}"], ['{"k":1}', '{"k":2,"v":2}']),
    ({"not": {"items": {"type": "integer"}}, "type": "array"}, ['["a"]', '[1,"a",1]'],
     ["[]", "[1]"]),
    ({"not": {"additionalProperties": {"type": "null"}}, "type": "object"}, ['{"a":1}',
     '{"a":null,"b":1}'], ["{}", '{"a":null}', '{"b":1,"b":null}']),
    ({"properties": {"a": {}}, "allOf": [{"properties": {"b": {}}}],
      "unevaluatedProperties": False, "type": "object"}, ['{"a":1,"b":1}'], ['{"c":1}']),
    ({"prefixItems": [{}], "unevaluatedItems": {"const": 0}}, ["[1,0]"], ["[1,1]"]),
    # References.
    ({"$ref": "#/$defs/n", "$defs": {"n": {"properties": {"n": {"$ref": "#/$defs/n"}},
      "type": "object", "additionalProperties": False}}}, ["{}", '{"n":{"n":{}}}'], ['{"n":1}']),
    ({"$id": "http://x/a", "$ref": "b#t", "$defs": {"q": {"$id": "b", "$defs": {
      "t": {"$anchor": "t", "type": "null"}}}}}, ["null"], ["1"]),
    ({"items": {"$ref": "#/items/anyOf/0"}} | {"items": {"anyOf": [{"enum": [1, 2]}]}}, ["[1,2]"],
     ["[3]"]),
    # Earlier drafts.
    ({"items": [{"const": 1}], "additionalItems": False}, ["[1]", "[]"], ["[1,2]", "[2]"]),
    ({"$schema": "http://json-schema.org/draft-07/schema#", "properties": {"a": {
      "$ref": "#/definitions/d", "type": "null"}}, "definitions": {"d": {"type": "integer"}},
      "dependencies": {"a": ["b"]}, "type": "object"}, ['{"a":1,"b":0}'], ['{"a":null,"b":0}',
      '{"a":1}']),
    # Annotations, and names that are no keywords.
    ({"title": "t", "x-y": {"type": "null"}, "default": 3, "readOnly": True}, ["1", "null"], []),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: text(case[0])[:60])
def test_texts_that_satisfy_a_schema(case: tuple[Any, list[str], list[str]]) -> None:
    given, texts, others = case
    matcher = engine(given)
    assert [t for t in texts if not matcher.accepts(t)] == []
    assert [t for t in others if matcher.accepts(t)] == []


def test_white_space_between_tokens_is_bounded() -> None:
    schema = {"properties": {"a": {"items": {"const": 1}}}, "required": ["a"]}
    matcher = engine(schema, SchemaOptions())
    assert matcher.accepts(json.dumps({"a": [1, 1]}, indent=4))
    assert matcher.accepts('{"a": []}') and not matcher.accepts('{"a":  []}')
    assert matcher.accepts('{"a":\n' + " " * 15 + "[]}")
    assert not matcher.accepts('{"a":' + "\n" + " " * 16 + "[]}")
    assert not matcher.accepts(' {"a": []}')
    assert not matcher.accepts('{"a": []} ')
    assert engine(schema, SchemaOptions(whitespace=1)).accepts('{ "a" : [ 1 , 1 ] }')
    assert not engine(schema, COMPACT).accepts('{"a": []}')


def test_closed_objects_have_declared_members_only() -> None:
    schema = {
        "allOf": [{"properties": {"a": {}}}, {"properties": {"b": {"type": "object"}}}],
        "type": "object",
    }
    closed = engine(schema, SchemaOptions(whitespace=0, additional="closed"))
    assert closed.accepts('{"a":1,"b":{"free":1}}')
    assert not closed.accepts('{"c":1}')
    assert engine(schema).accepts('{"c":1}')
    said = {"properties": {"a": {}}, "additionalProperties": True, "type": "object"}
    assert engine(said, SchemaOptions(whitespace=0, additional="closed")).accepts('{"c":1}')


def test_properties_come_in_the_order_of_the_document() -> None:
    schema = {
        "required": ["c", "z"],
        "dependentRequired": {"c": ["a"]},
        "allOf": [{"properties": {"a": {}, "b": {}}}],
        "properties": {"c": {}},
        "type": "object",
    }
    assert engine(schema).accepts('{"a":1,"b":1,"c":1,"z":1,"y":1}')
    assert not engine(schema).accepts('{"c":1,"a":1,"b":1,"z":1}')


REFUSED: list[tuple[Any, type[GrammarError], str, str]] = [
    ({"properties": {"a/b": {"$ref": "http://x.y/z"}}}, UnsupportedKeyword, "/properties/a~1b/$ref",
     "$ref"),
    ({"items": {"uniqueItems": True}}, UnsupportedKeyword, "/items/uniqueItems", "uniqueItems"),
    ({"minProperties": 2}, UnsupportedKeyword, "/minProperties", "minProperties"),
    ({"multipleOf": 86_399}, UnsupportedKeyword, "/multipleOf", "multipleOf"),
    ({"$schema": "http://x.y/z"}, UnsupportedKeyword, "/$schema", "$schema"),
    ({"not": {"unevaluatedItems": False}}, UnsupportedKeyword, "/not/unevaluatedItems",
     "unevaluatedItems"),
    ({"allOf": [{"type": "text"}]}, InvalidSchema, "/allOf/0/type", "type"),
    ({"minLength": -1}, InvalidSchema, "/minLength", "minLength"),
    ({"required": True}, InvalidSchema, "/required", "required"),
    ({"maximum": "3"}, InvalidSchema, "/maximum", "maximum"),
    ({"properties": {"a": 1}}, InvalidSchema, "/properties", "properties"),
    ({"$ref": "#/$defs/none"}, InvalidSchema, "/$ref", "$ref"),
    ([], InvalidSchema, "", ""),
    ({"anyOf": [{"$ref": "#"}]}, InvalidSchema, "", "$ref"),
    ({"allOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": {"not": {"$ref": "#/allOf/0"}}}},
     InvalidSchema, "/allOf/0", "$ref"),
]  # fmt: skip


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: text(case[0])[:60])
def test_refusals_name_the_keyword_and_where_it_is(
    case: tuple[Any, type[GrammarError], str, str],
) -> None:
    given, kind, pointer, keyword = case
    with pytest.raises(kind) as caught:
        translate(given)
    assert (caught.value.pointer, caught.value.keyword) == (pointer, keyword)
    assert caught.value.reason


def test_a_wrong_pattern_is_named() -> None:
    with pytest.raises(InvalidRegex, match="/items/pattern") as caught:
        translate({"items": {"pattern": "a("}})
    assert caught.value.pointer == "/items/pattern"


@pytest.mark.parametrize(
    ("given", "limit"),
    [
        (json.loads('{"items":' * 70 + "{}" + "}" * 70), "depth"),
        ({"enum": list(range(2001))}, "enum"),
        ({"properties": {str(i): {} for i in range(2001)}}, "properties"),
        ({"minimum": 10**50}, "digits"),
        ({"contains": {"const": 1}, "minContains": 40, "maxItems": 90}, "contains"),
        ({"allOf": [{"anyOf": [{"properties": {f"{i}{j}": False}} for j in range(6)]}
                    for i in range(6)]}, "alternatives"),
        ({"$ref": "#/$defs/0", "$defs": {str(i): {"$ref": f"#/$defs/{i + 1}"} for i in range(300)}
          | {"300": {}}}, "depth"),
    ],
)  # fmt: skip
def test_limits(given: object, limit: str) -> None:
    with pytest.raises(GrammarTooLarge) as caught:
        translate(given)
    assert caught.value.limit == limit


@pytest.mark.parametrize(
    "given",
    [
        False,
        {"type": "object", "required": ["a"], "properties": {"a": {"$ref": "#"}}},
        {"type": "string", "enum": [1]},
        {"type": "integer", "minimum": 3, "exclusiveMaximum": 4, "not": {"const": 3}},
        {"type": "array", "items": False, "minItems": 1},
        {"type": "array", "contains": {"type": "null"}, "items": {"type": "integer"}},
    ],
)
def test_schemas_without_values(given: object) -> None:
    with pytest.raises(GrammarUnsatisfiable):
        translate(given)


def test_long_objects_stay_flat() -> None:
    names = [f"name{i}" for i in range(2000)]
    optional = {"properties": {n: {"type": "null"} for n in names}, "additionalProperties": False,
                "type": "object"}  # fmt: skip
    assert len(translate(optional).rules) < 2100
    assert len(translate({**optional, "required": names}).rules) < 20


def test_equal_schemas_share_a_rule() -> None:
    part = {"type": "object", "properties": {"a": {"type": "integer"}}}
    one = translate({"properties": {"x": part}})
    many = translate({"properties": {name: dict(part) for name in "uvwxyz"}})
    assert len(many.rules) < len(one.rules) + 10


def test_a_translation_is_deterministic() -> None:
    given = {"oneOf": [{"required": ["a"], "type": "object"}, {"enum": ["x", 2]}]}
    assert translate(given) == translate(json.loads(text(given)))


def test_schemas_from_text() -> None:
    assert parse_schema('{"type": "null", "type": "string"}') == {"type": "string"}
    for wrong in ("{", "NaN", '{"maximum": Infinity}', ""):
        with pytest.raises(InvalidJson):
            parse_schema(wrong)
    with pytest.raises(GrammarTooLarge) as caught:
        parse_schema("[" * 100_000 + "]" * 100_000)
    assert caught.value.limit == "depth"
    with pytest.raises(GrammarTooLarge) as caught:
        parse_schema("1" * 5000)
    assert caught.value.limit == "digits"


def test_only_escapes_are_few_among_counted_characters() -> None:
    matcher = engine({"type": "string", "pattern": "^([a-z]|_[0-9]){1,30}$"}, SchemaOptions())
    assert matcher.accepts(json.dumps("_1" * 20 + "abc"))
    assert not matcher.accepts(json.dumps("_1" * 31))
