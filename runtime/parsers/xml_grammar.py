"""The grammar of Qwen3-Coder's calls, for tools whose parameters can be told apart in XML."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rtlang.runtime.parsers.qwen_xml import (
    BEGIN,
    END,
    FUNCTION,
    FUNCTION_END,
    PARAMETER,
    PARAMETER_END,
    named_types,
    value_types,
)
from rtlang.runtime.tools.formats import Node, any_of, literal, sequence

#: What a schema may say, of all arguments and of one that is a string, without being broken by
#: a text in which parameters come in order, and strings are as they are.
_OF_ALL = frozenset(
    {"type", "properties", "required", "additionalProperties", "title", "description", "$schema"}
)
_ABOUT = frozenset({"title", "description", "default", "examples"})
_FREE_TYPES = frozenset({"string", "null", "boolean", "number"})


def xml_turn(
    tools: Mapping[str, Mapping[str, Any]], *, required: bool, parallel: bool
) -> Node | None:
    """Calls, or with ``required=False`` free text and then calls; None where a schema says more
    than this format can keep."""
    found = {name: _function(name, schema) for name, schema in tools.items()}
    functions = [node for node in found.values() if node is not None]
    if len(functions) < len(found):
        return None
    rest = sequence([literal("\n"), any_of(functions), literal(END)])
    calls = [rest]
    if parallel:
        calls.append(sequence([literal("\n" + BEGIN), rest], kind="star"))
    if required:
        return sequence([literal(BEGIN), *calls])
    return {"type": "dispatch", "rules": [[BEGIN, sequence(calls)]], "loop": False}


def _function(name: str, schema: Mapping[str, Any]) -> Node | None:
    properties, wanted = schema.get("properties", {}), schema.get("required", [])
    if set(schema) - _OF_ALL or not set(wanted) <= set(properties):
        return None
    parts = [literal(f"{FUNCTION}{name}>\n")]
    for key, part in properties.items():
        node = _parameter(key, part, schema)
        if node is None:
            return None
        parts.append(node if key in wanted else {"type": "optional", "content": node})
    return sequence([*parts, literal(f"{FUNCTION_END}\n")])


def _parameter(key: str, part: object, schema: Mapping[str, Any]) -> Node | None:
    if not isinstance(part, Mapping) or key != key.strip() or not key or ">" in key:
        return None
    begin, end = f"{PARAMETER}{key}>\n", f"\n{PARAMETER_END}\n"
    if _is_free(part):
        content = {"type": "any_text", "excludes": [PARAMETER_END]}
        return {"type": "tag", "begin": begin, "content": content, "end": end}
    value = _value(part, schema)
    return None if value is None else sequence([literal(begin), value, literal(end)])


def _is_free(part: Mapping[str, Any]) -> bool:
    """Whether any text is a value of it, as the parser reads it."""
    if isinstance(part.get("anyOf"), list) and not set(part) - _ABOUT - {"anyOf"}:
        parts = [one for one in part["anyOf"] if isinstance(one, Mapping)]
        types = set().union(*map(named_types, parts))
        return (
            len(parts) == len(part["anyOf"])
            and all(not set(one) - _ABOUT - {"type"} and named_types(one) for one in parts)
            and "string" in types
            and types <= _FREE_TYPES
        )
    types = named_types(part)
    return not set(part) - _ABOUT - {"type"} and "string" in types and types <= _FREE_TYPES


def _value(part: Mapping[str, Any], schema: Mapping[str, Any]) -> Node | None:
    """Texts of a list, or JSON that is no string."""
    options, types = part.get("enum"), value_types(part, schema)
    if (
        isinstance(options, list)
        and types == {"string"}
        and not set(part) - _ABOUT - {"type", "enum"}
    ):
        return any_of(map(literal, options)) if _all_texts(options) else None
    if "string" in types or "$ref" in json.dumps(part):
        return None
    return {"type": "json_schema", "json_schema": dict(part)}


def _all_texts(options: Sequence[object]) -> bool:
    return all(isinstance(o, str) and o and PARAMETER_END not in o for o in options)
