"""Calls of Qwen3-Coder: ``<function=name><parameter=p>value</parameter>...</function>``."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from rtlang.runtime.parsers.call_reader import CallReader
from rtlang.runtime.parsers.json_text import JsonText
from rtlang.runtime.parsers.scanning import begins, space_end

BEGIN, END = "<tool_call>", "</tool_call>"
FUNCTION, FUNCTION_END = "<function=", "</function>"
PARAMETER, PARAMETER_END = "<parameter=", "</parameter>"
MARKERS = (BEGIN, END)

Schemas = Mapping[str, Mapping[str, Any]]


class QwenXmlReader(CallReader):
    """A value is JSON where the tool's schema lets it be anything but a string; the arguments
    grow by whole parameters. ``<tool_call>`` around a function may be missing."""

    tail = (END,)

    def __init__(self, names: Sequence[str], schemas: Schemas) -> None:
        """``schemas``: name of a tool -> the JSON schema of its parameters."""
        super().__init__(names, (BEGIN, FUNCTION))
        self._schemas = schemas
        self._function = ""
        self._key = ""
        self._types: set[str] = set()
        self._value = JsonText()
        self._values: list[str] = []  # the value so far
        self._num_values = 0

    def begin(self, trigger: str) -> None:
        if trigger == BEGIN:
            self.state = self._opened
        else:
            self.collect((">",), self._named, words=self.names)

    def _opened(self, text: str, at: int) -> int:
        return self._next(text, at, (FUNCTION,))

    def _between_parameters(self, text: str, at: int) -> int:
        return self._next(text, at, (PARAMETER, FUNCTION_END, END))

    def _next(self, text: str, at: int, markers: Sequence[str]) -> int:
        """White space, then one of the markers."""
        end = space_end(text, at)
        self.raw.append(text[at:end])
        if end == len(text):
            return end
        standing = {marker: begins(text, end, marker) for marker in markers}
        for marker, stands in standing.items():
            if stands:
                self.raw.append(marker)
                self._enter(marker)
                return end + len(marker)
        if None not in standing.values():
            self.fail()
        return end

    def _enter(self, marker: str) -> None:
        if marker == FUNCTION:
            self.begin(marker)
        elif marker == PARAMETER:
            self.collect((">",), self._keyed)
        else:
            self._open()
            self.pass_arguments("}" if self._num_values else "{}")
            self.end_call()
            if marker == END:
                self.closing = []

    def _named(self, name: str, marker: str) -> None:
        self._function, self._num_values = name.strip(), 0
        if self._function in self.names:
            self.state = self._between_parameters
        else:
            self.fail()

    def _open(self) -> None:
        """Now it is a call: with its first value, or its end without any."""
        if not self._num_values:
            self.begin_call(self._function)

    def _keyed(self, key: str, marker: str) -> None:
        self._key = key.strip()
        schema = self._schemas.get(self._function, {})
        self._types = parameter_types(self._key, schema)
        self._value = JsonText()
        self._values = []
        self.collect((PARAMETER_END,), self._valued, limit=sys.maxsize)

    def _valued(self, value: str, marker: str) -> None:
        self._values.append(value)
        if self._types != {"string"} and _is_inside(self._value, value):
            self._values.append(marker)  # a part of a string in the JSON
            self._value.feed(marker)
            self.collect((PARAMETER_END,), self._valued, limit=sys.maxsize)
            return
        whole = "".join(self._values).removeprefix("\n").removesuffix("\n")
        self._open()
        before = ", " if self._num_values else "{"
        self.pass_arguments(f"{before}{_quoted(self._key)}: {json_value(whole, self._types)}")
        self._num_values += 1
        self.raw = []
        self.state = self._between_parameters


def _is_inside(value: JsonText, more: str) -> bool:
    """Whether JSON, with more of it, ends in the middle of a list or an object."""
    value.feed(more)
    return value.is_nested and not value.broken


#: The first character of JSON -> the types that it may have in a schema.
_TYPES = {"{": {"object"}, "[": {"array"}, "t": {"boolean"}, "f": {"boolean"}, "n": {"null"}}
_NUMBER = {"number", "integer"}
_ALL = frozenset({"string", "object", "array", "boolean", "null", *_NUMBER})
#: Of schemas in schemas, references followed included.
_MAX_DEPTH = 20


def json_value(text: str, types: Collection[str]) -> str:
    """A parameter's text as JSON: as it is, where that is of the types; a string otherwise."""
    said = text.strip()
    if types == {"boolean"} and said.lower() in ("true", "false"):
        return said.lower()
    value = JsonText()
    end, fragment = value.feed(said + " ")  # a number ends with what follows it
    if types != {"string"} and value.done and end >= len(said) and said[0] != '"':
        found = _TYPES.get(said[0], _NUMBER)
        if "string" not in types or not found.isdisjoint(types):
            return fragment.rstrip()
    return _quoted(text)


def parameter_types(key: str, schema: Mapping[str, Any]) -> set[str]:
    """Of a parameter that the schema does not know: a string."""
    properties = schema.get("properties")
    if not isinstance(properties, Mapping) or key not in properties:
        return {"string"}
    return value_types(properties[key], schema)


def value_types(part: object, root: Mapping[str, Any]) -> set[str]:
    """The types that a part of a schema allows; all of them where it does not say. Nothing in the
    schema needs to be right: whoever compiles it refuses what is wrong."""
    return _value_types(part, root, _MAX_DEPTH, {})


def named_types(part: Mapping[str, Any]) -> set[str]:
    given = part.get("type")
    return {t for t in (given if isinstance(given, list) else [given]) if isinstance(t, str)}


def _value_types(
    part: object, root: Mapping[str, Any], depth: int, known: dict[str, set[str]]
) -> set[str]:
    """``known``: of references. Each is followed once, however many lead to it."""
    if not isinstance(part, Mapping) or depth == 0:
        return set(_ALL)
    if "type" in part:
        return named_types(part)
    if "enum" in part or "const" in part:
        options = part.get("enum", [part.get("const")])
        return set().union(*map(_types_of_value, options)) if isinstance(options, list) else set()
    for key in ("anyOf", "oneOf", "allOf"):
        if isinstance(part.get(key), list) and part[key]:
            found = [_value_types(one, root, depth - 1, known) for one in part[key]]
            return set.intersection(*found) if key == "allOf" else set().union(*found)
    ref = part.get("$ref")
    if not isinstance(ref, str):
        return set(_ALL)
    if ref not in known:
        known[ref] = set(_ALL)  # for one that leads to itself
        known[ref] = _value_types(_target(ref, root), root, depth - 1, known)
    return known[ref]


def _types_of_value(value: object) -> set[str]:
    return {"string"} if isinstance(value, str) else _TYPES.get(json.dumps(value)[0], _NUMBER)


def _target(ref: str, root: Mapping[str, Any]) -> object:
    """What a reference into the same schema means."""
    found: object = root
    for step in ref.removeprefix("#").split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        found = found.get(key) if isinstance(found, Mapping) else None
    return found


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
