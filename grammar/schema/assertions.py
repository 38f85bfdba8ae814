"""Keywords that look at one value of one type: what satisfies them, and what does not.

Each function takes the place of a schema and answers for all keywords of its group together:
None where the schema has none of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from rtlang.errors import GrammarTooLarge
from rtlang.grammar.dfa import Dfa
from rtlang.grammar.schema.document import Place
from rtlang.grammar.schema.formats import format_language, search_language
from rtlang.grammar.schema.keywords import Schema, is_number, pointer, unsupported
from rtlang.grammar.schema.numbers import (
    ALL_NUMBERS,
    INTEGERS,
    MAX_DIGITS,
    MAX_REMAINDERS,
    MODERATE,
    WHOLE,
    Numbers,
    among,
    compared,
    multiples,
    plain,
)
from rtlang.grammar.schema.solver import Solver
from rtlang.grammar.schema.values import (
    ANY_ARRAYS,
    ANY_OBJECTS,
    ANYTHING,
    NOTHING,
    Language,
    Strings,
    Values,
)

MAX_ENUM = 2000

_TYPES = {
    "null": Values(simple=frozenset({"null"})),
    "boolean": Values(simple=frozenset({"true", "false"})),
    "number": Values(numbers=ALL_NUMBERS),
    "integer": Values(numbers=Numbers(INTEGERS)),
    "string": Values(strings=(Strings(),)),
    "array": Values(arrays=(ANY_ARRAYS,)),
    "object": Values(objects=(ANY_OBJECTS,)),
}
#: In draft 4 an integer is what is written as one.
_WRITTEN_INTEGER = Values(numbers=Numbers(WHOLE))


def types(solver: Solver, place: Place, schema: Schema, negated: bool) -> Values | None:
    if "type" not in schema:
        return None
    given = schema["type"]
    found = NOTHING
    for name in given if isinstance(given, list) else [given]:
        old = name == "integer" and solver.document.draft == 4
        found = found | (_WRITTEN_INTEGER if old else _TYPES[name])
    if not negated:
        return found
    return Values(
        ANYTHING.simple - found.simple,
        ~found.numbers,
        () if found.strings else ANYTHING.strings,
        () if found.arrays else ANYTHING.arrays,
        () if found.objects else ANYTHING.objects,
    )


def enumeration(solver: Solver, place: Place, schema: Schema, negated: bool) -> Values | None:
    """``enum`` and ``const``; of an array or object in them, the schema that only it satisfies.

    Raises:
        GrammarTooLarge: more than ``MAX_ENUM`` values.
    """
    found: Values | None = None
    for keyword in ("const", "enum"):
        if keyword not in schema:
            continue
        given = schema[keyword] if keyword == "enum" else [schema[keyword]]
        if len(given) > MAX_ENUM:
            raise GrammarTooLarge(f"an enum of more than {MAX_ENUM} values", limit="enum")
        where = dataclasses.replace(place, pointer=pointer(place.pointer, keyword))
        values = _other_than(solver, where, given) if negated else _one_of(solver, where, given)
        if found is None:
            found = values
        else:
            found = found | values if negated else solver.both(found, values)
    return found


def _one_of(solver: Solver, place: Place, given: list[Any]) -> Values:
    simple, numbers, texts, containers = _sorted_by_type(given)
    found = Values(simple=frozenset(simple))
    if numbers:
        found = found | Values(numbers=among(numbers))
    if texts:
        found = found | Values(strings=(Strings(Language(Dfa.words(texts))),))
    for value in containers:
        found = found | solver.of(solver.literal(dataclasses.replace(place, schema=exactly(value))))
    return found


def _other_than(solver: Solver, place: Place, given: list[Any]) -> Values:
    simple, numbers, texts, containers = _sorted_by_type(given)
    found = dataclasses.replace(
        ANYTHING,
        simple=ANYTHING.simple - set(simple),
        numbers=~among(numbers) if numbers else ALL_NUMBERS,
        strings=(Strings(Language(~Dfa.words(texts))),) if texts else ANYTHING.strings,
    )
    for value in containers:
        (literal,) = solver.literal(dataclasses.replace(place, schema=exactly(value)))
        found = solver.both(found, solver.of((-literal,)))
    return found


def _sorted_by_type(
    given: list[Any],
) -> tuple[list[str], list[int | float], list[str], list[Any]]:
    simple = [str(value).lower() if value is not None else "null" for value in given
              if value is None or isinstance(value, bool)]  # fmt: skip
    numbers = [value for value in given if is_number(value)]
    texts = [value for value in given if isinstance(value, str)]
    return simple, numbers, texts, [v for v in given if isinstance(v, list | dict)]


def exactly(value: object) -> Schema:
    """A schema that this array or object satisfies, and nothing else."""
    if isinstance(value, list):
        listed: Schema = {"prefixItems": [{"const": part} for part in value]} if value else {}
        return {"type": "array", **listed, "items": False, "minItems": len(value)}
    assert isinstance(value, dict), value
    return {
        "type": "object",
        "properties": {name: {"const": part} for name, part in value.items()},
        "required": list(value),
        "additionalProperties": False,
    }


def numbers(solver: Solver, place: Place, schema: Schema, negated: bool) -> Values | None:
    """Bounds and ``multipleOf``.

    Raises:
        UnsupportedKeyword: a ``multipleOf`` with too many remainders; what is beyond a bound
            that no number of ``MAX_DIGITS`` digits reaches.
    """
    found, far = ALL_NUMBERS, ""
    for bound, below, equal, keyword in _number_bounds(schema):
        if abs(bound) >= 10**MAX_DIGITS and (bound > 0) == below:
            found, far = found & MODERATE, keyword
        else:
            found = found & compared(plain(bound), below=below, equal=equal)
    if "multipleOf" in schema:
        step = multiples(plain(schema["multipleOf"]))
        if step is None:
            where = pointer(place.pointer, "multipleOf")
            raise unsupported(where, "multipleOf", f"more than {MAX_REMAINDERS} remainders")
        found = found & step
    if found is ALL_NUMBERS:
        return None
    if negated and far:
        raise unsupported(pointer(place.pointer, far), far, "the opposite of so far a bound")
    if negated:
        return Values(numbers=~found)
    narrowed = frozenset(("numbers",) if far else ())
    return dataclasses.replace(ANYTHING, numbers=found, narrowed=narrowed)


def _number_bounds(schema: Schema) -> Iterator[tuple[int | float, bool, bool, str]]:
    """Each bound, whether numbers are below it, whether it is one of them, and its keyword."""
    for name, below in (("minimum", False), ("maximum", True)):
        strict = schema.get("exclusive" + name.capitalize())
        if name in schema:
            yield schema[name], below, strict is not True, name
        if strict is not None and not isinstance(strict, bool):
            yield strict, below, False, "exclusive" + name.capitalize()


def strings(solver: Solver, place: Place, schema: Schema, negated: bool) -> Values | None:
    """Lengths, ``pattern`` and ``format``.

    A format is enforced as a set of texts that certainly have it. So what does not satisfy it is
    not known, and nothing counts as such.
    """
    low, high = int(schema.get("minLength", 0)), schema.get("maxLength")
    high = None if high is None else int(high)
    shape = format_language(schema.get("format"), high)
    narrowed = frozenset(("strings",) if shape is not None else ())
    where = pointer(place.pointer, "pattern")
    matched = search_language(schema["pattern"], where) if "pattern" in schema else None
    if negated:
        outside = [Strings(None, 0, low - 1)] if low else []
        outside += [] if high is None else [Strings(None, high + 1)]
        if matched is not None:
            different = ~matched.dfa
            outside += [] if different.is_empty else [Strings(Language(different))]
        return Values(strings=tuple(outside), narrowed=narrowed)
    found: Strings | None = Strings() & Strings(None, low, high)
    for language in (matched, shape):
        if found is not None and language is not None:
            found = found & Strings(language)
    if found == Strings():
        return None
    kept = () if found is None else (found,)
    return dataclasses.replace(ANYTHING, strings=kept, narrowed=narrowed)
