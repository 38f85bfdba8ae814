"""Keywords about the parts of arrays and objects: what satisfies them, and what does not.

As in ``assertions``: each function answers for its group, None where the schema has none of it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from rtlang.errors import GrammarTooLarge
from rtlang.grammar.dfa import Dfa
from rtlang.grammar.schema.document import Place
from rtlang.grammar.schema.formats import search_language
from rtlang.grammar.schema.keywords import Schema, pointer, unsupported
from rtlang.grammar.schema.solver import Solver
from rtlang.grammar.schema.values import (
    ANY,
    ANYTHING,
    EVERYTHING,
    NEVER,
    Arrays,
    Contains,
    Keys,
    Member,
    Node,
    Objects,
    Values,
    joined,
)

MAX_PROPERTIES = 2000
MAX_PATTERNS = 12

ARRAYS = {"additionalItems", "contains", "items", "maxItems", "minItems", "prefixItems",
           "uniqueItems"}  # fmt: skip
OBJECTS = {"additionalProperties", "maxProperties", "minProperties", "patternProperties",
            "properties", "propertyNames", "required"}  # fmt: skip


def arrays(solver: Solver, place: Place, schema: Schema, negated: bool) -> Values | None:
    if not schema.keys() & ARRAYS:
        return None
    prefix, rest = _elements(solver, place, schema)
    low, high = _bounds(schema, "Items")
    contains = _contains(solver, place, schema)
    unique = pointer(place.pointer, "uniqueItems") if schema.get("uniqueItems") else None
    if negated:
        if unique:
            raise unsupported(unique, "uniqueItems", "that elements are equal has no grammar")
        return Values(arrays=tuple(_other_arrays(prefix, rest, low, high, contains)))
    every = "items" in schema or "additionalItems" in schema
    found = Arrays(
        prefix,
        rest,
        low,
        high,
        () if contains is None else (contains,),
        unique,
        None if every and not isinstance(schema.get("items"), list) else len(prefix),
    )
    return dataclasses.replace(ANYTHING, arrays=(found,))


def _elements(solver: Solver, place: Place, schema: Schema) -> tuple[tuple[Node, ...], Node]:
    """What the first elements satisfy, and what the others do."""
    inside = solver.document.inside
    listed = "items" if isinstance(schema.get("items"), list) else "prefixItems"
    others = "additionalItems" if listed == "items" else "items"
    prefix = tuple(
        solver.literal(inside(place, listed, i)) for i in range(len(schema.get(listed, [])))
    )
    return prefix, solver.literal(inside(place, others)) if others in schema else ANY


def _contains(solver: Solver, place: Place, schema: Schema) -> Contains | None:
    if "contains" not in schema:
        return None
    node = solver.literal(solver.document.inside(place, "contains"))
    high = schema.get("maxContains")
    return Contains(node, int(schema.get("minContains", 1)), None if high is None else int(high))


def _other_arrays(
    prefix: tuple[Node, ...], rest: Node, low: int, high: int | None, contains: Contains | None
) -> Iterator[Arrays]:
    for i, node in enumerate(prefix):
        yield from (Arrays((ANY,) * i + (other,), low=i + 1) for other in opposite(node))
    for other in opposite(rest):
        yield Arrays(contains=(Contains(other, start=len(prefix)),))
    if low:
        yield Arrays(high=low - 1)
    if high is not None:
        yield Arrays(low=high + 1)
    if contains is not None:
        if contains.low:
            yield Arrays(contains=(Contains(contains.node, 0, contains.low - 1),))
        if contains.high is not None:
            yield Arrays(contains=(Contains(contains.node, contains.high + 1),))


def opposite(node: Node) -> list[Node]:
    """Nodes of which one is satisfied exactly where ``node`` is not."""
    return [(-literal,) if literal != -1 else ANY for literal in node]


def objects(solver: Solver, place: Place, schema: Schema, negated: bool) -> Values | None:
    """
    Raises:
        GrammarTooLarge: more than ``MAX_PROPERTIES`` properties or ``MAX_PATTERNS`` patterns.
    """
    if not schema.keys() & OBJECTS:
        return None
    inside = solver.document.inside
    if len(schema.get("properties", ())) > MAX_PROPERTIES:
        raise GrammarTooLarge(f"more than {MAX_PROPERTIES} properties", limit="properties")
    declared = {
        name: solver.literal(inside(place, "properties", name))
        for name in schema.get("properties", ())
    }
    given = schema.get("patternProperties", {})
    patterns = [
        (
            search_language(pattern, pointer(place.pointer, "patternProperties", pattern)).dfa,
            solver.literal(inside(place, "patternProperties", pattern)),
        )
        for pattern in given
    ]
    if len(patterns) > MAX_PATTERNS:
        raise GrammarTooLarge(f"more than {MAX_PATTERNS} patterns of keys", limit="patterns")
    others: Node | None = None
    if "additionalProperties" in schema:
        others = solver.literal(inside(place, "additionalProperties"))
    names = _names(solver, place, schema)
    parts = _Members(declared, patterns, others, names, place.pointer)
    low, high = _bounds(schema, "Properties")
    required = tuple(dict.fromkeys(schema.get("required", ())))
    if negated:
        return Values(
            objects=(*parts.others(), *_other_objects(required, low, high, place.pointer))
        )
    counted = pointer(place.pointer, "minProperties" if low else "maxProperties")
    found = dataclasses.replace(
        parts.objects(), required=required, low=low, high=high, counted=counted
    )
    return dataclasses.replace(ANYTHING, objects=(found,))


@dataclasses.dataclass(frozen=True)
class _Members:
    """What a schema says about keys and the values of keys.

    additional  of keys that are neither declared nor match a pattern; None: nothing
    names       the keys that `propertyNames` lets through; None: all
    where       the pointer of the schema
    """

    declared: dict[str, Node]
    patterns: list[tuple[Dfa, Node]]
    additional: Node | None
    names: Dfa | None
    where: str

    def objects(self) -> Objects:
        found = Objects(
            tuple(self.declared.items()),
            ((EVERYTHING, ANY if self.additional is None else self.additional),),
            implied=self.additional is None and not self.patterns and self.names is None,
            evaluated=self._evaluated(),
        )
        cells = list(found.rest)
        for keys, node in self.patterns:
            inside = [(cell & keys, joined(value, node)) for cell, value in cells[:-1]]
            outside = [(cell - keys, value) for cell, value in cells]
            # The last cell matches no pattern so far: it alone is additional.
            cells = [*inside, *outside[:-1], (cells[-1][0] & keys, node), outside[-1]]
            cells = [c for c in cells[:-1] if not c[0].is_empty] + cells[-1:]
        if self.names is not None:
            cells = [(cell & self.names, value) for cell, value in cells]
        properties = [(name, self._declared(name)) for name in self.declared]
        kept = tuple(c for c in cells if c[1] != NEVER and not c[0].is_empty)
        return dataclasses.replace(found, properties=tuple(properties), rest=kept)

    def _declared(self, name: str) -> Node:
        if self.names is not None and not self.names.accepts(name):
            return NEVER
        return joined(
            self.declared[name], *(node for keys, node in self.patterns if keys.accepts(name))
        )

    def _evaluated(self) -> Keys:
        if self.additional is not None:
            return Keys(patterns=(EVERYTHING,))
        return Keys(frozenset(self.declared), tuple(keys for keys, _ in self.patterns))

    def others(self) -> Iterator[Objects]:
        """Objects that break at least one of the rules."""
        for name, node in self.declared.items():
            for other in opposite(node):
                yield Objects(((name, other),), required=(name,), mentioned=frozenset({name}))
        for keys, node in self.patterns:
            yield from self._some(keys, opposite(node), "patternProperties")
        if self.additional is not None:
            keys = ~Keys(frozenset(self.declared), tuple(k for k, _ in self.patterns)).dfa
            yield from self._some(keys, opposite(self.additional), "additionalProperties")
        if self.names is not None:
            yield from self._some(~self.names, [ANY], "propertyNames")

    def _some(self, keys: Dfa, nodes: list[Node], keyword: str) -> Iterator[Objects]:
        where = pointer(self.where, keyword)
        return (Objects(some=(Member(keys, node, where),)) for node in nodes)


def _names(solver: Solver, place: Place, schema: Schema) -> Dfa | None:
    """The keys that satisfy ``propertyNames``."""
    if "propertyNames" not in schema:
        return None
    found = Dfa.nothing()
    for strings in solver.of(
        solver.literal(solver.document.inside(place, "propertyNames"))
    ).strings:
        free = Dfa.length(strings.low, strings.high)
        found = found | (free if strings.language is None else strings.language.dfa)
    return found


def _other_objects(
    required: tuple[str, ...], low: int, high: int | None, where: str
) -> Iterator[Objects]:
    for name in required:
        yield Objects.without(name)
    if low:
        yield Objects(high=low - 1, counted=pointer(where, "minProperties"))
    if high is not None:
        yield Objects(low=high + 1, counted=pointer(where, "maxProperties"))


def _bounds(schema: Schema, of: str) -> tuple[int, int | None]:
    high = schema.get("max" + of)
    return int(schema.get("min" + of, 0)), None if high is None else int(high)
