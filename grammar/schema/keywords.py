"""The keywords of JSON schema: where schemas are in a schema, and what each keyword holds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

from rtlang.errors import InvalidSchema, UnsupportedKeyword

Schema = dict[str, Any]

TYPES = ("null", "boolean", "object", "array", "number", "integer", "string")

#: Keywords that hold one schema, a list of schemas, and schemas by name.
ONE = ("additionalItems", "additionalProperties", "contains", "contentSchema", "else", "if",
       "items", "not", "propertyNames", "then", "unevaluatedItems",
       "unevaluatedProperties")  # fmt: skip
MANY = ("allOf", "anyOf", "items", "oneOf", "prefixItems")
NAMED = ("$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties",
         "properties")  # fmt: skip

#: Keywords without a part in what satisfies a schema, so far as it is enforced here.
SILENT = {"$anchor", "$comment", "$defs", "$dynamicAnchor", "$id", "$recursiveAnchor", "$schema",
          "$vocabulary", "contentEncoding", "contentMediaType", "contentSchema", "default",
          "definitions", "deprecated", "description", "else", "examples", "id", "readOnly",
          "then", "title", "writeOnly"}  # fmt: skip


def pointer(*parts: object) -> str:
    """The JSON pointer (RFC 6901) made of a pointer and further names."""
    first, *rest = (str(part) for part in parts)
    return "/".join([first, *(name.replace("~", "~0").replace("/", "~1") for name in rest)])


def parts(schema: Schema) -> Iterator[tuple[tuple[object, ...], object]]:
    """The schemas directly inside ``schema``, each with the names that lead to it."""
    for keyword, value in schema.items():
        if keyword in MANY and isinstance(value, list):
            yield from (((keyword, i), part) for i, part in enumerate(value))
        elif keyword in NAMED and isinstance(value, dict):
            inner = ((name, part) for name, part in value.items() if not isinstance(part, list))
            yield from (((keyword, name), part) for name, part in inner)
        elif keyword in ONE:
            yield (keyword,), value


def unsupported(where: str, keyword: str, reason: str) -> UnsupportedKeyword:
    message = f"{where or '/'}: {keyword} cannot be enforced here: {reason}"
    return UnsupportedKeyword(message, pointer=where, keyword=keyword, reason=reason)


def invalid(where: str, keyword: str, reason: str) -> InvalidSchema:
    message = f"{where or '/'}: {keyword or 'the schema'} {reason}"
    return InvalidSchema(message, pointer=where, keyword=keyword, reason=reason)


def check(schema: object, where: str) -> None:
    """That ``schema`` is one and that each keyword holds what it may hold; what is inside it is
    checked when it is visited.

    Raises:
        InvalidSchema: with the pointer of what is wrong.
    """
    if isinstance(schema, bool):
        return
    if not isinstance(schema, dict):
        raise invalid(where, "", "must be an object, true or false")
    for keyword, value in schema.items():
        if keyword in _CHECKS:
            holds, expected = _CHECKS[keyword]
            if not holds(value):
                raise invalid(pointer(where, keyword), keyword, f"must be {expected}")


def is_number(value: object) -> bool:
    finite = isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))
    return finite and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return is_number(value) and value >= 0 and value == int(value)


def _is_positive(value: Any) -> bool:
    return is_number(value) and value > 0


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_bound(value: object) -> bool:
    return isinstance(value, bool) or is_number(value)


def _is_type(value: object) -> bool:
    names = value if isinstance(value, list) and value else [value]
    return all(isinstance(name, str) and name in TYPES for name in names)


def _is_names(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def _is_list(value: object) -> bool:
    return isinstance(value, list)


def _is_schema(value: object) -> bool:
    return isinstance(value, bool | dict)


def _is_schemas(value: object) -> bool:
    return isinstance(value, list) and len(value) > 0 and all(map(_is_schema, value))


def _is_items(value: object) -> bool:
    return _is_schema(value) or (isinstance(value, list) and all(map(_is_schema, value)))


def _is_named(value: object) -> bool:
    return isinstance(value, dict) and all(map(_is_schema, value.values()))


def _is_required_by_name(value: object) -> bool:
    return isinstance(value, dict) and all(map(_is_names, value.values()))


def _is_dependencies(value: object) -> bool:
    if not isinstance(value, dict):
        return False
    return all(_is_schema(part) or _is_names(part) for part in value.values())


def _is_flag(value: object) -> bool:
    return isinstance(value, bool)


_COUNT = (_is_count, "a count (an integer from 0)")
_NUMBER = (is_number, "a number")
_BOUND = (_is_bound, "a number (in draft 4: true or false)")
_TEXT = (_is_text, "a string")
_SCHEMA = (_is_schema, "a schema")
_SCHEMAS = (_is_schemas, "a list of schemas that is not empty")
_NAMED = (_is_named, "an object of schemas")

_CHECKS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "$ref": _TEXT, "$dynamicRef": _TEXT, "$recursiveRef": _TEXT, "pattern": _TEXT,
    "type": (_is_type, f"one or a list of {', '.join(TYPES)}"),
    "enum": (_is_list, "a list"),
    "minimum": _NUMBER, "maximum": _NUMBER,
    "exclusiveMinimum": _BOUND, "exclusiveMaximum": _BOUND,
    "multipleOf": (_is_positive, "a number above 0"),
    "minLength": _COUNT, "maxLength": _COUNT, "minItems": _COUNT, "maxItems": _COUNT,
    "minContains": _COUNT, "maxContains": _COUNT, "minProperties": _COUNT,
    "maxProperties": _COUNT,
    "uniqueItems": (_is_flag, "true or false"),
    "required": (_is_names, "a list of names"),
    "properties": _NAMED, "patternProperties": _NAMED, "dependentSchemas": _NAMED,
    "dependentRequired": (_is_required_by_name, "an object of lists of names"),
    "dependencies": (_is_dependencies, "an object of schemas and lists of names"),
    "items": (_is_items, "a schema"),
    "prefixItems": _SCHEMAS, "allOf": _SCHEMAS, "anyOf": _SCHEMAS, "oneOf": _SCHEMAS,
    **{name: _SCHEMA for name in ONE if name != "items"},
}  # fmt: skip
