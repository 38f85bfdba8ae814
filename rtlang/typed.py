"""A gen's constraint, checked where it is written; and the typed value of its text.

Loaded when a program first asks for a constraint: what reads them takes longer to load than all
the rest of the language.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from rtlang.combinators import Pattern, PatternMeaning
from rtlang.errors import ConflictingConstraints, ProgramError
from rtlang.grammar.captures import parse
from rtlang.grammar.python_types import PythonType
from rtlang.grammar.spec import GrammarSpec
from rtlang.grammar.translate import translate
from rtlang.outcome import Meaning

#: SGLang takes their names, too.
_DTYPES = {"int": int, "float": float, "bool": bool, "str": str}
_WITH_WHITESPACE = ("json_schema", "structural_tag", "type")

Constraint = tuple[GrammarSpec | None, Meaning | None]


def constraint(given: Mapping[str, Any], whitespace: int | None = None) -> Constraint:
    """The constraint of a gen and what its text means (None: the text itself).

    given       the constraining arguments that were given, by their names
    whitespace  most white space characters in a row between two JSON tokens

    Raises:
        ConflictingConstraints: several are given.
        ProgramError: a type without a constraint, or an argument that goes with another one.
        GrammarError: one of its children: the constraint is wrong, or cannot be enforced.
    """
    if len(given) > 1:
        raise ConflictingConstraints(f"more than one constraint: {' and '.join(sorted(given))}")
    name, value = next(iter(given.items()), ("", None))
    if whitespace is not None and name not in _WITH_WHITESPACE:
        raise ProgramError(f"whitespace goes with {', '.join(_WITH_WHITESPACE)} only")
    spec, meaning = _MAKERS[name](value, whitespace)
    if spec is not None:
        check(spec)
    return spec, meaning


@functools.lru_cache(maxsize=1024)
def check(spec: GrammarSpec) -> None:
    """Raises ``GrammarError`` for what cannot be enforced; what is right is read only once."""
    translate(spec)


class TypedValue:
    """Implements ``Meaning``: the text is one value of a type."""

    names = ()

    def __init__(self, spec: GrammarSpec, read: Callable[[str], Any]) -> None:
        self._spec = spec
        self._read = read

    def is_cut(self, text: str, *, by_length: bool) -> bool:
        found = parse(translate(self._spec), text)
        return found is None or (by_length and found.open_ended)

    def read(self, text: str) -> tuple[Any, Mapping[str, Any]]:
        return self._read(text), {}


def _of_type(kind: Any, whitespace: int | None) -> Constraint:
    wanted = PythonType(kind)
    spec = wanted.spec(whitespace)
    return spec, None if spec is None else TypedValue(spec, wanted.parse)


def _of_dtype(kind: Any, whitespace: int | None) -> Constraint:
    """SGLang's: as ``type``, but text stands in quotes, with JSON's escapes."""
    kind = _DTYPES.get(kind, kind) if isinstance(kind, str) else kind
    if kind not in _DTYPES.values():
        raise ProgramError(f"dtype is int, float, bool or str, not {kind!r}")
    if kind is not str:
        return _of_type(kind, None)
    quoted = PythonType(list[str])  # its item is a text as JSON has it
    spec = GrammarSpec.json_schema({"type": "string"}, whitespace=0)
    return spec, TypedValue(spec, lambda text: quoted.parse(f"[{text}]")[0])


def _of_pattern(pattern: Any, whitespace: int | None) -> Constraint:
    if not isinstance(pattern, Pattern):
        shown = type(pattern).__name__
        raise ProgramError(f"pattern is made of rtlang.combinators, not of {shown}")
    compiled = pattern.compiled
    return compiled.spec, PatternMeaning(compiled)


def _json_schema(schema: Any, whitespace: int | None) -> Constraint:
    return GrammarSpec.json_schema(schema, **_options(whitespace)), None


def _structural_tag(spec: Any, whitespace: int | None) -> Constraint:
    return GrammarSpec.structural_tag(spec, **_options(whitespace)), None


def _options(whitespace: int | None) -> dict[str, Any]:
    return {} if whitespace is None else {"whitespace": whitespace}


_MAKERS: dict[str, Callable[[Any, int | None], Constraint]] = {
    "": lambda value, whitespace: (None, None),
    "type": _of_type,
    "dtype": _of_dtype,
    "pattern": _of_pattern,
    "json_schema": _json_schema,
    "structural_tag": _structural_tag,
    "regex": lambda value, whitespace: (GrammarSpec.regex(value), None),
    "ebnf": lambda value, whitespace: (GrammarSpec.ebnf(value), None),
}
