"""The one form that every constraint takes: a context-free grammar over Unicode code points.

Schemas, regular expressions, choices, tags and combinators are translated to it; it is written
out as the EBNF of the engine that matches it. What is in it is enforced exactly.
"""

from __future__ import annotations

import dataclasses
from typing import TypeAlias

Expr: TypeAlias = "Text | Chars | Seq | Alt | Repeat | Ref | Dispatch"


@dataclasses.dataclass(frozen=True, slots=True)
class Text:
    """These characters, one after the other; "" matches the empty text."""

    text: str


@dataclasses.dataclass(frozen=True, slots=True)
class Chars:
    """One code point out of ``ranges``: inclusive, ascending, apart, without surrogates."""

    ranges: tuple[tuple[int, int], ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Seq:
    parts: tuple[Expr, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Alt:
    """Any one of ``parts``; of none of them: nothing, not even the empty text."""

    parts: tuple[Expr, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Repeat:
    """``expr`` at least ``low`` and (unless None: any number) at most ``high`` times."""

    expr: Expr
    low: int
    high: int | None


@dataclasses.dataclass(frozen=True, slots=True)
class Ref:
    """The rule of this name."""

    name: str


@dataclasses.dataclass(frozen=True, slots=True)
class Dispatch:
    """Free text in which each trigger starts its rule: (any text without a trigger, trigger,
    rule)*, any text without a trigger.

    tags      (trigger, name of the rule that follows it); no trigger is part of another one
    excludes  texts that never occur in the free parts
    """

    tags: tuple[tuple[str, str], ...]
    excludes: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Grammar:
    """``rules`` by name ([a-z][a-z0-9_]*), of which ``root`` is what a whole text must match."""

    rules: dict[str, Expr]
    root: str = "root"
