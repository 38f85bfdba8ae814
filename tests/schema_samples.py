"""Random schemas, values and texts of grammars, and the reference that judges them."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from grammar_language import Engine

from rtlang.grammar.emit import to_ebnf
from rtlang.grammar.ir import Alt, Chars, Expr, Grammar, Ref, Repeat, Seq, Text
from rtlang.grammar.schema import SchemaOptions, translate

COMPACT = SchemaOptions(whitespace=0)

NAMES = ("a", "b", "ab", "c", "x")
TYPES = ("null", "boolean", "object", "array", "number", "integer", "string")
_SMALL = {
    "minimum": (-2, 0, 1, 1.5), "maximum": (-1, 0, 2, 10), "exclusiveMinimum": (-2, 0, 1.5),
    "exclusiveMaximum": (0, 2, 1.5), "multipleOf": (1, 2, 3, 0.5, 1.5), "minLength": (0, 1, 2),
    "maxLength": (0, 1, 3), "pattern": ("a", "^a", "b$", "^[ab]*$", "^.b"), "minItems": (0, 1, 2),
    "maxItems": (0, 1, 3), "minContains": (0, 1, 2), "maxContains": (0, 1, 2),
    "minProperties": (0, 1), "maxProperties": (0, 1, 2), "uniqueItems": (True, False),
    "propertyNames": ({"maxLength": 1}, {"enum": ["a", "x"]}, {"not": {"const": "a"}}),
    "$ref": ("#", "#/$defs/x"),
}  # fmt: skip
_ONE = ("additionalProperties", "contains", "else", "if", "items", "not", "then",
        "unevaluatedItems", "unevaluatedProperties")  # fmt: skip
_MANY = ("allOf", "anyOf", "oneOf", "prefixItems")
_KEYWORDS = (*["type", "properties", "required"] * 3, "patternProperties", "dependentRequired",
             "dependentSchemas", "oneOf", *_SMALL, *_ONE, *_MANY)  # fmt: skip


def schema(rng: random.Random, depth: int) -> Any:
    """Any schema of the keywords that there are."""
    if depth <= 0 or rng.random() < 0.12:
        constants = {"enum": [value(rng, 1) for _ in range(rng.randint(1, 3))]}
        return rng.choice([True, {}, False, {"type": rng.choice(TYPES)}, constants])
    keywords = [rng.choice(_KEYWORDS) for _ in range(rng.randint(1, 3))]
    return {keyword: _keyword(rng, keyword, depth - 1) for keyword in keywords}


def _keyword(rng: random.Random, keyword: str, depth: int) -> Any:
    names = rng.sample(NAMES, rng.randint(1, 3))
    if keyword in _SMALL:
        return rng.choice(_SMALL[keyword])
    if keyword in _ONE:
        return schema(rng, depth)
    if keyword in _MANY:
        return [schema(rng, depth) for _ in names]
    if keyword == "type":
        return rng.choice([rng.choice(TYPES), rng.sample(TYPES, 2)])
    if keyword == "required":
        return names
    if keyword == "dependentRequired":
        return {names[0]: names[1:]}
    if keyword == "patternProperties":
        names = rng.sample(["^a", "b", "^c$"], min(len(names), 2))
    return {name: schema(rng, depth) for name in names}


def value(rng: random.Random, depth: int) -> Any:
    """Any value over few names and texts; members of objects in the order of their names."""
    kind = rng.randint(0, 7 if depth > 0 else 5)
    if kind < 2:
        return rng.choice([None, True, False])
    if kind < 4:
        return rng.choice([-3, -1, 0, 1, 2, 3, 5, 0.5, 1.5, -2.5])
    if kind < 6:
        return rng.choice(["", "a", "b", "ab", "ba", "abb", "c"])
    if kind == 6:
        return [value(rng, depth - 1) for _ in range(rng.randint(0, 3))]
    return {name: value(rng, depth - 1) for name in sorted(rng.sample(NAMES, rng.randint(0, 3)))}


class Texts:
    """Random texts of a grammar, drawn rule by rule."""

    def __init__(self, grammar: Grammar, rng: random.Random) -> None:
        self._rules, self._rng = grammar.rules, rng
        self._heights = dict.fromkeys(grammar.rules, 10**6)
        while True:
            new = {name: 1 + self._height(expr) for name, expr in grammar.rules.items()}
            if new == self._heights:
                break
            self._heights = new

    def draw(self) -> str:
        return self._text(Ref("root"), 12)

    def _height(self, expr: Expr) -> int:
        """How many rules deep its shallowest text is."""
        match expr:
            case Ref(name):
                return self._heights[name]
            case Seq(parts):
                return max(map(self._height, parts), default=0)
            case Alt(parts):
                return min(map(self._height, parts))
            case Repeat(inner, low, _):
                return self._height(inner) if low else 0
        return 0

    def _text(self, expr: Expr, budget: int) -> str:
        rng = self._rng
        match expr:
            case Text(text):
                return text
            case Chars(ranges):
                low, high = rng.choice(ranges)
                return chr(rng.randint(low, min(high, low + 30)))
            case Ref(name):
                return self._text(self._rules[name], budget - 1)
            case Seq(parts):
                return "".join(self._text(part, budget) for part in parts)
            case Alt(parts):
                fit = [part for part in parts if self._height(part) <= budget]
                return self._text(rng.choice(fit or [min(parts, key=self._height)]), budget)
            case Repeat(inner, low, high):
                most = low + 3 if high is None else min(high, low + 3)
                count = rng.randint(low, most) if self._height(inner) <= budget else low
                return "".join(self._text(inner, budget) for _ in range(count))
        raise AssertionError(expr)


def engine(given: object, options: SchemaOptions = COMPACT) -> Engine:
    """What decides which texts satisfy a schema."""
    return Engine(to_ebnf(translate(given, options)))


def text(given: object) -> str:
    """JSON without white space."""
    return json.dumps(given, ensure_ascii=False, separators=(",", ":"))


def is_valid(given: Any, instance: object) -> bool | None:
    """The verdict of an independent validator; None: it recurses without end."""
    jsonschema = pytest.importorskip("jsonschema")
    try:
        return bool(jsonschema.Draft202012Validator(given).is_valid(instance))
    except RecursionError:
        return None
