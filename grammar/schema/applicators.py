"""Keywords that combine whole schemas about the same value, and the expansion of a schema."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from itertools import combinations

from rtlang.grammar.schema import arrays as array_algebra
from rtlang.grammar.schema import assertions, structure
from rtlang.grammar.schema import objects as object_algebra
from rtlang.grammar.schema.document import Place
from rtlang.grammar.schema.keywords import Schema, pointer, unsupported
from rtlang.grammar.schema.solver import Solver
from rtlang.grammar.schema.values import (
    ANYTHING,
    NEVER,
    NOTHING,
    Node,
    Objects,
    Values,
    joined,
)

Part = Callable[[Solver, Place, Schema, bool], "Values | None"]

MAX_SUBSETS = 4  # branches of anyOf of which all subsets are looked at for unevaluated parts

_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")


def expand(solver: Solver, place: Place, negated: bool) -> Values:
    """What satisfies (or, if negated, does not satisfy) the schema of a place."""
    schema = place.schema
    assert isinstance(schema, dict), "true and false are literals of their own"
    found = NOTHING if negated else ANYTHING
    for part in _parts(solver, schema):
        values = part(solver, place, schema, negated)
        if values is not None:
            values = solver.possible(values)
            found = found | values if negated else solver.both(found, values)
    if negated:
        for keyword in ("unevaluatedItems", "unevaluatedProperties"):
            if keyword in schema:
                where = pointer(place.pointer, keyword)
                raise unsupported(where, keyword, "its opposite is asked for (not, oneOf, if)")
        return found
    if "oneOf" in schema:
        found = _with_one_of(solver, _branches(solver, place, schema, "oneOf"), found)
    return _with_unevaluated(solver, place, schema, found)


def _parts(solver: Solver, schema: Schema) -> list[Part]:
    """In the order of the keywords, so that properties come in the order of the document."""
    if "$ref" in schema and solver.document.draft <= 7:
        return [_reference("$ref")]
    order = [keyword for keyword in schema if keyword in _BY_KEYWORD]
    if "properties" in schema:
        order = [k for k in order if k == "properties" or k not in structure.OBJECTS]
    return list(dict.fromkeys(_BY_KEYWORD[keyword] for keyword in order))


def _with_unevaluated(solver: Solver, place: Place, schema: Schema, found: Values) -> Values:
    inside = solver.document.inside
    if "unevaluatedItems" in schema:
        node = solver.literal(inside(place, "unevaluatedItems"))
        arrays = tuple(array_algebra.with_unevaluated(x, node) for x in found.arrays)
        narrowed = found.narrowed | ({"arrays"} if arrays != found.arrays else set())
        found = solver.possible(dataclasses.replace(found, arrays=arrays, narrowed=narrowed))
    if "unevaluatedProperties" in schema:
        node = solver.literal(inside(place, "unevaluatedProperties"))
        objects = tuple(object_algebra.with_unevaluated(x, node) for x in found.objects)
        narrowed = found.narrowed | ({"objects"} if objects != found.objects else set())
        found = solver.possible(dataclasses.replace(found, objects=objects, narrowed=narrowed))
    return found


def _reference(keyword: str) -> Part:
    def part(solver: Solver, place: Place, schema: Schema, negated: bool) -> Values | None:
        return solver.of(_signed(solver.literal(solver.document.referred(place, keyword)), negated))

    return part


def _signed(node: Node, negated: bool) -> Node:
    """A node of at most one literal, or its opposite."""
    if not negated:
        return node
    return (-node[0],) if node else NEVER


def _branches(solver: Solver, place: Place, schema: Schema, keyword: str) -> list[Node]:
    count = len(schema[keyword])
    return [solver.literal(solver.document.inside(place, keyword, i)) for i in range(count)]


def _all_of(solver: Solver, place: Place, schema: Schema, negated: bool) -> Values | None:
    branches = _branches(solver, place, schema, "allOf")
    if negated:
        return _any(solver, [_signed(node, True) for node in branches])
    return _all(solver, branches)


def _any_of(solver: Solver, place: Place, schema: Schema, negated: bool) -> Values | None:
    branches = _branches(solver, place, schema, "anyOf")
    if negated:
        return _all(solver, [_signed(node, True) for node in branches])
    if solver.document.tracks_evaluated and len(branches) <= MAX_SUBSETS:
        # What several branches satisfy has more evaluated parts than each of them says.
        sizes = range(1, len(branches) + 1)
        return _any(solver, [joined(*some) for n in sizes for some in combinations(branches, n)])
    return _any(solver, branches)


def _none_or_several(solver: Solver, place: Place, schema: Schema, negated: bool) -> Values | None:
    """The opposite of oneOf, which itself is looked at last: see ``_with_one_of``."""
    if not negated:
        return None
    branches = _branches(solver, place, schema, "oneOf")
    none = _all(solver, [_signed(node, True) for node in branches])
    return none | _any(solver, [joined(a, b) for a, b in combinations(branches, 2)])


def _with_one_of(solver: Solver, branches: list[Node], found: Values) -> Values:
    """Those of ``found`` that satisfy exactly one branch.

    What else is said about the value often tells branches apart, so they are compared with it.
    """
    united = NOTHING
    for i, node in enumerate(branches):
        values = solver.both(found, solver.of(node))
        for j, other in enumerate(branches):
            if i == j or solver.is_empty(joined(branches[min(i, j)], branches[max(i, j)])):
                continue
            if not solver.both(values, solver.of(other)).is_empty:
                values = solver.both(values, solver.of(_signed(other, True)))
        united = united | values
    return united


def _not(solver: Solver, place: Place, schema: Schema, negated: bool) -> Values | None:
    inner = solver.literal(solver.document.inside(place, "not"))
    found = solver.of(_signed(inner, not negated))
    return dataclasses.replace(
        found,
        arrays=tuple(dataclasses.replace(x, evaluated=0) for x in found.arrays),
        objects=tuple(dataclasses.replace(x, evaluated=Objects().evaluated) for x in found.objects),
    )


def _if(solver: Solver, place: Place, schema: Schema, negated: bool) -> Values | None:
    inside = solver.document.inside
    condition = solver.literal(inside(place, "if"))
    found = NOTHING
    for keyword, holds in (("then", True), ("else", False)):
        branch = solver.literal(inside(place, keyword)) if keyword in schema else ()
        found = found | _all(solver, [_signed(condition, not holds), _signed(branch, negated)])
    return found


def _dependencies(keyword: str) -> Part:
    def part(solver: Solver, place: Place, schema: Schema, negated: bool) -> Values | None:
        found = NOTHING if negated else ANYTHING
        for name, then in schema[keyword].items():
            if isinstance(then, list):
                needed = _needed(tuple(then), negated)
            else:
                node = solver.literal(solver.document.inside(place, keyword, name))
                needed = solver.of(_signed(node, negated))
            present = Values(objects=(Objects(required=(name,)),))
            values = solver.both(solver.possible(needed), solver.possible(present))
            if negated:
                found = found | values
                continue
            absent = Objects.without(name)
            given = dataclasses.replace(ANYTHING, objects=(absent, *values.objects))
            found = solver.both(found, solver.possible(given))
        return found

    return part


def _needed(names: tuple[str, ...], negated: bool) -> Values:
    if negated:
        return Values(objects=tuple(Objects.without(name) for name in names))
    return Values(objects=(Objects(required=names),))


def _any(solver: Solver, nodes: list[Node]) -> Values:
    found = NOTHING
    for node in nodes:
        found = found | solver.of(node)
    return found


def _all(solver: Solver, nodes: list[Node]) -> Values:
    return solver.of(joined(*nodes))


def _by_keyword() -> Iterator[tuple[str, Part]]:
    for name in ("enum", "const"):
        yield name, assertions.enumeration
    for name in ("exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum", "multipleOf"):
        yield name, assertions.numbers
    for name in ("format", "maxLength", "minLength", "pattern"):
        yield name, assertions.strings
    for name in structure.ARRAYS:
        yield name, structure.arrays
    for name in ("dependencies", "dependentRequired", "dependentSchemas"):
        yield name, _dependencies(name)
    for name in _REFERENCES:
        yield name, _reference(name)
    # The order of the others does not matter: that of properties is that of `properties`.
    yield from dict.fromkeys(structure.OBJECTS, structure.objects).items()


_BY_KEYWORD: dict[str, Part] = {
    "type": assertions.types,
    "allOf": _all_of,
    "anyOf": _any_of,
    "oneOf": _none_or_several,
    "not": _not,
    "if": _if,
    **dict(_by_keyword()),
}
