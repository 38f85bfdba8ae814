"""What a program appends to its state: frozen expressions, joined with ``+``."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rtlang.choices import ChoicesMethod
from rtlang.grammar.spec import GrammarSpec
from rtlang.outcome import Meaning

if TYPE_CHECKING:  # loaded by who has tools
    from rtlang.tools import Tools


class Expr:
    """Something that ``state += ...`` accepts besides plain text."""

    __slots__ = ()

    def __add__(self, other: Expr | str) -> Concat:
        return Concat((*_parts(self), *_parts(as_expr(other))))

    def __radd__(self, other: Expr | str) -> Concat:
        return Concat((*_parts(as_expr(other)), *_parts(self)))


@dataclasses.dataclass(frozen=True, slots=True)
class Text(Expr):
    """``control``: control tokens that the text spells count as such."""

    text: str
    control: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Gen(Expr):
    """``sampling`` and ``logprobs`` hold only what was given: it replaces ``run()``'s value.

    ``sampling`` has ``SamplingParams``' names, ``logprobs`` those of ``defaults.LOGPROB_NAMES``.
    ``meaning``: what its text says; None: the text is the value.
    """

    name: str | None
    sampling: Mapping[str, Any]
    logprobs: Mapping[str, Any]
    n: int = 1
    meaning: Meaning | None = None
    timeout_s: float | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class ToolGen(Expr):
    """Turns of ``gen``, with the results of the tools that they call between."""

    gen: Gen
    tools: Tools


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Select(Expr):
    name: str | None
    options: tuple[str, ...]
    method: ChoicesMethod
    temperature: float = 0.0  # above 0: draw, with probabilities p ** (1 / temperature)
    seed: int | None = None
    probs: bool = False
    grammar: GrammarSpec | None = None  # one call under this constraint instead of scores
    timeout_s: float | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class RoleBegin(Expr):
    role: str
    template_kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True)
class RoleEnd(Expr):
    role: str


@dataclasses.dataclass(frozen=True, slots=True)
class ScopeBegin(Expr):
    """From here on the text belongs to the variable that ``ScopeEnd`` will set."""

    name: str


@dataclasses.dataclass(frozen=True, slots=True)
class ScopeEnd(Expr):
    name: str


@dataclasses.dataclass(frozen=True, slots=True)
class SetVar(Expr):
    """Set a variable, in its turn. ``meta`` is what ``get_meta_info`` will give."""

    name: str
    value: Any
    meta: Any = None


@dataclasses.dataclass(frozen=True, slots=True)
class Concat(Expr):
    parts: tuple[Expr, ...]


def as_expr(value: Any) -> Expr:
    """Raises ``TypeError`` for what is neither text nor an expression."""
    if isinstance(value, str):
        return Text(value)
    if isinstance(value, Expr):
        return value
    hint = ""
    if isinstance(value, list):
        hint = "; pick one item (a variable of gen(n=...) or of a join is a list)"
    elif isinstance(value, int | float):
        hint = "; a typed variable is no text: str(...) makes one of it"
    elif value is None:
        hint = "; did a function forget to return its expression?"
    raise TypeError(f"a program takes text and expressions, not {type(value).__name__}{hint}")


def _parts(expr: Expr) -> tuple[Expr, ...]:
    return expr.parts if isinstance(expr, Concat) else (expr,)


def flatten(expr: Expr) -> tuple[Expr, ...]:
    """The expressions of ``expr`` in order, with neighbouring texts of a kind joined."""
    flat: list[Expr] = []
    for part in _parts(expr):
        last = flat[-1] if flat else None
        if isinstance(part, Text) and isinstance(last, Text) and part.control == last.control:
            flat[-1] = Text(last.text + part.text, part.control)
        else:
            flat.append(part)
    return tuple(flat)
