"""Syntax trees of regular expressions."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import TypeAlias

from rtlang.grammar.charset import CharSet

Node: TypeAlias = "One | Cat | Or | Many | Look"


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class One:
    """One character of a set."""

    chars: CharSet


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Cat:
    parts: tuple[Node, ...]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Or:
    parts: tuple[Node, ...]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Many:
    """``node`` at least ``low`` and at most ``high`` (None: any number of) times."""

    node: Node
    low: int
    high: int | None

    @property
    def count(self) -> int:
        """Copies that it takes to write it out."""
        return max(self.low, 1 if self.high is None else self.high)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Look:
    """No character, but ``node`` matches what ends (``behind``) or starts here; or, unless
    ``holds``, does not."""

    node: Node
    behind: bool
    holds: bool


ANY = One(CharSet.ANY)
ANYTHING = Many(ANY, 0, None)
#: The anchors: no character before, none after.
START = Look(ANY, behind=True, holds=False)
END = Look(ANY, behind=False, holds=False)


def cat(parts: Iterable[Node]) -> Node:
    """A sequence; a sequence in it becomes part of it."""
    flat: list[Node] = []
    for part in parts:
        flat += part.parts if isinstance(part, Cat) else [part]
    return flat[0] if len(flat) == 1 else Cat(tuple(flat))


def children(node: Node) -> tuple[Node, ...]:
    match node:
        case One():
            return ()
        case Cat(parts) | Or(parts):
            return parts
        case Many() | Look():
            return (node.node,)


def walk(node: Node) -> Iterator[Node]:
    """The node and all that is in it, parents first (without recursion: trees may be deep)."""
    pending = [node]
    while pending:
        node = pending.pop()
        yield node
        pending += reversed(children(node))
