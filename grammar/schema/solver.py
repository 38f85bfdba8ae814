"""What satisfies a schema, as the algebra of types sees it: ``Values`` of literals and nodes.

A literal is expanded keyword by keyword: what satisfies a schema satisfies all its keywords, and
what does not satisfy it fails one of them. Nodes below the top stay names, so that recursion
comes to an end. Whether a node has values at all is asked to leave out alternatives that have
none; an answer that is not found is "maybe", and the finished grammar is checked again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

from rtlang.errors import GrammarTooLarge
from rtlang.grammar.schema.arrays import both_arrays, possible_arrays
from rtlang.grammar.schema.document import Document, Place
from rtlang.grammar.schema.keywords import invalid
from rtlang.grammar.schema.objects import both_objects, possible_objects
from rtlang.grammar.schema.values import (
    ANY_ARRAYS,
    ANY_OBJECTS,
    ANYTHING,
    NEVER,
    NOTHING,
    TRUE,
    Node,
    Strings,
    Values,
    alternatives,
    joined,
)

MAX_LOOKAHEAD = 6  # levels of a value that are looked into for whether there is any
MAX_CHAIN = 100  # schemas about the same value, each inside or referred to by the last

#: What satisfies (True: does not satisfy) the schema of a place.
Expand: TypeAlias = "Callable[[Solver, Place, bool], Values]"


class _Undecided(Exception):
    """Whether a node is empty depends on the answer itself."""


class Solver:
    """Values of the literals and nodes of a document."""

    def __init__(self, document: Document, expand: Expand) -> None:
        self.document = document
        self._expand_place = expand
        self._values: dict[int, Values] = {}
        self._nodes: dict[Node, Values] = {}
        self._empty: dict[Node, bool] = {NEVER: True}
        # Literals being expanded, for each level of a value that is being looked into.
        self._open: list[list[int]] = [[]]

    def literal(self, place: Place) -> Node:
        """The node of a schema."""
        return joined((self.document.number(place),))

    def of(self, node: Node) -> Values:
        """What satisfies a node.

        Raises:
            GrammarError: a schema that it names is wrong, or more than can be enforced.
        """
        if node not in self._nodes:
            values = ANYTHING
            for literal in node:
                values = self.both(values, self._expand(literal))
            self._nodes[node] = values
        return self._nodes[node]

    def _expand(self, literal: int) -> Values:
        if abs(literal) == TRUE:
            return ANYTHING if literal == TRUE else NOTHING
        if literal in self._values:
            return self._values[literal]
        with self._opened(literal):
            place = self.document.places[abs(literal)]
            self._values[literal] = self._expand_place(self, place, literal < 0)
        return self._values[literal]

    @contextmanager
    def _opened(self, literal: int) -> Iterator[None]:
        place = self.document.places[abs(literal)]
        if literal in self._open[-1]:
            raise invalid(place.pointer, "$ref", "refers to itself without end")
        if any(literal in level for level in self._open[:-1]):
            raise _Undecided
        if len(self._open[-1]) > MAX_CHAIN:
            message = f"more than {MAX_CHAIN} schemas about one value"
            raise GrammarTooLarge(message, limit="depth")
        self._open[-1].append(literal)
        try:
            yield
        finally:
            self._open[-1].pop()

    def is_empty(self, node: Node) -> bool:
        """Whether certainly nothing satisfies the node."""
        if node not in self._empty:
            if len(self._open) > MAX_LOOKAHEAD:
                return False
            self._open.append([])
            try:
                self._empty[node] = self.of(node).is_empty
            except (_Undecided, GrammarTooLarge):
                self._empty[node] = False  # the answer is maybe
            finally:
                self._open.pop()
        return self._empty[node]

    def both(self, a: Values, b: Values) -> Values:
        """The intersection."""
        if a is ANYTHING or b is ANYTHING:
            return b if a is ANYTHING else a
        strings = [both for x in a.strings for y in b.strings if (both := x & y)]
        return self.possible(
            Values(
                a.simple & b.simple,
                a.numbers & b.numbers,
                alternatives(strings, Strings()),
                alternatives((both_arrays(x, y) for x in a.arrays for y in b.arrays), ANY_ARRAYS),
                alternatives(
                    (both_objects(x, y) for x in a.objects for y in b.objects), ANY_OBJECTS
                ),
                frozenset(
                    name
                    for name in a.narrowed | b.narrowed
                    if a.may_have(name) and b.may_have(name)
                ),
            )
        )

    def possible(self, values: Values) -> Values:
        """The same values without arrays and objects that certainly do not exist."""
        arrays = (kept for x in values.arrays for kept in possible_arrays(x, self.is_empty))
        objects = (kept for x in values.objects for kept in possible_objects(x, self.is_empty))
        return dataclasses.replace(
            values,
            arrays=alternatives(arrays, ANY_ARRAYS),
            objects=alternatives(objects, ANY_OBJECTS),
        )
