"""The normal form of a schema: the values that satisfy it, type by type.

What is below the top of a value is not looked into: it is named by a node, a conjunction of
literals. A literal is the number of a schema of the document, negative for its opposite.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from functools import cached_property
from typing import TypeVar

from rtlang.errors import GrammarTooLarge
from rtlang.grammar.dfa import Dfa
from rtlang.grammar.regex import Regex
from rtlang.grammar.schema.numbers import ALL_NUMBERS, NO_NUMBERS, Numbers

Node = tuple[int, ...]
Part = TypeVar("Part")

ANY: Node = ()
NEVER: Node = (-1,)
TRUE = 1  # the number of the schema ``true``

EVERYTHING = Dfa.everything()
MAX_ALTERNATIVES = 256


def joined(*nodes: Node) -> Node:
    """What satisfies all of the nodes."""
    literals = dict.fromkeys(literal for node in nodes for literal in node if literal != TRUE)
    if any(-literal in literals or literal == -TRUE for literal in literals):
        return NEVER
    return tuple(literals)


@dataclasses.dataclass(frozen=True, eq=False)
class Language:
    """A set of texts, by its regular expression or its automaton.

    limits  lengths between which those of its texts are, where they are known beforehand
    """

    source: Regex | Dfa
    limits: tuple[int, int] | None = None

    @cached_property
    def dfa(self) -> Dfa:
        return self.source if isinstance(self.source, Dfa) else self.source.to_dfa()

    def is_within(self, low: int, high: int | None) -> bool:
        """Whether every text has ``low`` to ``high`` (None: any number of) characters."""
        if low == 0 and high is None:
            return True
        if self.limits is not None and self.limits[0] >= low:
            return high is None or self.limits[1] <= high
        if len(self.dfa.shortest() or "") < low:
            return False
        longest = longest_text(self.dfa)
        return high is None or (longest is not None and longest <= high)


def longest_text(dfa: Dfa) -> int | None:
    """The length of the longest text; None: there is no longest."""
    if not dfa.is_finite:
        return None
    # Without cycles, every state is left for good once all moves so far have been followed.
    level, length = {0}, -1
    while level:
        level = {t for s in level for t in dfa.table.moves[s].values()}
        length += 1
    return length


@dataclasses.dataclass(frozen=True)
class Strings:
    """Texts of ``low`` to ``high`` code points, or those of a language of any length."""

    language: Language | None = None
    low: int = 0
    high: int | None = None

    def __and__(self, other: Strings) -> Strings | None:
        """None: there is no such string."""
        low, high = max(self.low, other.low), least(self.high, other.high)
        if high is not None and low > high:
            return None
        languages = list(dict.fromkeys(s.language for s in (self, other) if s.language))
        if not languages:
            return Strings(None, low, high)
        found = languages[0]
        if len(languages) == 2:
            found = Language(found.dfa & languages[1].dfa)
        if not found.is_within(low, high):
            found = Language(found.dfa.with_length(low, high))
        is_known = found is languages[0] and not isinstance(found.source, Dfa)
        return None if not is_known and found.dfa.is_empty else Strings(found)


@dataclasses.dataclass(frozen=True)
class Contains:
    """From element ``start`` on, ``low`` to ``high`` elements satisfy ``node``."""

    node: Node
    low: int = 1
    high: int | None = None
    start: int = 0


@dataclasses.dataclass(frozen=True)
class Arrays:
    """Arrays of ``low`` to ``high`` elements.

    prefix     what the first elements satisfy
    rest       what those after them satisfy
    unique     elements differ: the pointer of the keyword that says so
    evaluated  how many first elements a schema has evaluated; None: all
    """

    prefix: tuple[Node, ...] = ()
    rest: Node = ANY
    low: int = 0
    high: int | None = None
    contains: tuple[Contains, ...] = ()
    unique: str | None = None
    evaluated: int | None = 0

    def element(self, index: int) -> Node:
        return self.prefix[index] if index < len(self.prefix) else self.rest


@dataclasses.dataclass(frozen=True)
class Keys:
    """Keys that a schema has evaluated."""

    names: frozenset[str] = frozenset()
    patterns: tuple[Dfa, ...] = ()

    def __or__(self, other: Keys) -> Keys:
        return Keys(self.names | other.names, self.patterns + other.patterns)

    @property
    def dfa(self) -> Dfa:
        found = Dfa.words(sorted(self.names))
        for pattern in self.patterns:
            found = found | pattern
        return found


@dataclasses.dataclass(frozen=True)
class Member:
    """Some member has a key of ``keys`` and a value that satisfies ``node``.

    where  the pointer of the keyword whose opposite it is
    """

    keys: Dfa
    node: Node
    where: str


@dataclasses.dataclass(frozen=True)
class Objects:
    """Objects of ``low`` to ``high`` members.

    properties  of each of these keys what its value satisfies, in the order to write them
    rest        of all other keys, in disjoint sets; a key in none of them does not occur
    required    keys that occur
    some        members that occur
    mentioned   properties that no schema declares: they are written after those declared
    implied     the rest is free only because no schema says anything about it
    evaluated   keys that a schema has evaluated
    counted     the pointer of the keyword that bounds the number of members
    """

    properties: tuple[tuple[str, Node], ...] = ()
    rest: tuple[tuple[Dfa, Node], ...] = ((EVERYTHING, ANY),)
    required: tuple[str, ...] = ()
    mentioned: frozenset[str] = frozenset()
    low: int = 0
    high: int | None = None
    some: tuple[Member, ...] = ()
    implied: bool = True
    evaluated: Keys = Keys()
    counted: str = ""

    @classmethod
    def without(cls, name: str) -> Objects:
        """Objects that have no member of this name."""
        return cls(((name, NEVER),), mentioned=frozenset({name}))

    @cached_property
    def by_name(self) -> dict[str, Node]:
        return dict(self.properties)

    def value(self, key: str) -> Node:
        """What the value of ``key`` satisfies."""
        if key in self.by_name:
            return self.by_name[key]
        return next((node for keys, node in self.rest if keys.accepts(key)), NEVER)


ANY_ARRAYS = Arrays()
ANY_OBJECTS = Objects()


@dataclasses.dataclass(frozen=True)
class Values:
    """A set of values: the union of its parts.

    simple    of "null", "true" and "false"
    narrowed  fields of which values may be left out: what is enforced is less than what is meant
    """

    simple: frozenset[str] = frozenset()
    numbers: Numbers = NO_NUMBERS
    strings: tuple[Strings, ...] = ()
    arrays: tuple[Arrays, ...] = ()
    objects: tuple[Objects, ...] = ()
    narrowed: frozenset[str] = frozenset()

    def __or__(self, other: Values) -> Values:
        return Values(
            self.simple | other.simple,
            either(self.numbers, other.numbers),
            alternatives(self.strings + other.strings, Strings()),
            alternatives(self.arrays + other.arrays, ANY_ARRAYS),
            alternatives(self.objects + other.objects, ANY_OBJECTS),
            self.narrowed | other.narrowed,
        )

    @property
    def is_empty(self) -> bool:
        """Whether certainly nothing is meant."""
        rest = self.simple or self.strings or self.arrays or self.objects or self.narrowed
        return not rest and self.numbers.texts.is_empty

    def may_have(self, field: str) -> bool:
        return bool(getattr(self, field)) or field in self.narrowed


NOTHING = Values()
ANYTHING = Values(
    frozenset({"null", "true", "false"}),
    ALL_NUMBERS,
    (Strings(),),
    (ANY_ARRAYS,),
    (ANY_OBJECTS,),
)


def either(a: Numbers, b: Numbers) -> Numbers:
    if a is NO_NUMBERS or b is ALL_NUMBERS:
        return b
    return a if b is NO_NUMBERS or a is ALL_NUMBERS else a | b


def alternatives(parts: Iterable[Part], free: Part) -> tuple[Part, ...]:
    """The same union with nothing twice; ``free`` is the part that holds all others."""
    different = tuple(dict.fromkeys(parts))
    if free in different:
        return (free,)
    if len(different) > MAX_ALTERNATIVES:
        message = f"a part of the schema has more than {MAX_ALTERNATIVES} alternatives"
        raise GrammarTooLarge(message, limit="alternatives")
    return different


def least(a: int | None, b: int | None) -> int | None:
    """The smaller of two upper bounds, where None is no bound."""
    if a is None or b is None:
        return b if a is None else a
    return min(a, b)
