"""Patterns: text, numbers, types and choices joined with ``+``, whose parts become variables.

    from rtlang.combinators import cap, digits, one_of

    s += rt.gen(pattern="(" + cap("a", digits) + one_of(", ", "; ") + cap("b", int) + ")")

It is one call. Where texts, patterns and types are wanted they are taken as they are: a text
stands for itself, a type for the texts of ``gen(type=...)``. Of several ways to divide a text
among the parts, the one counts that Python's ``re`` would find: the first option that works, and
each repetition as long as it can be.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

from rtlang.errors import ProgramError
from rtlang.grammar import ir, ir_build
from rtlang.grammar.captures import Parse, parse
from rtlang.grammar.checks import Prepared
from rtlang.grammar.emit import to_ebnf
from rtlang.grammar.python_types import PythonType
from rtlang.grammar.spec import GrammarSpec
from rtlang.grammar.translate import translate

__all__ = [
    "Pattern",
    "cap",
    "digit",
    "digits",
    "integer",
    "json",
    "letters",
    "line",
    "number",
    "one_of",
    "optional",
    "regex",
    "repeat",
    "spaces",
]


class Pattern:
    """A set of texts, parts of which may have names. Join it with ``+``."""

    def __init__(
        self,
        written: Callable[[_Builder], ir.Expr],
        shown: str,
        parts: tuple[Pattern, ...] = (),
    ) -> None:
        self._written = written
        self._shown = shown
        self._parts = parts or (self,)  # of a sequence: all of them, none in another

    def __repr__(self) -> str:
        return f"<Pattern {self._shown}>"

    def __add__(self, other: Any) -> Pattern:
        return _sequence(self, _as_pattern(other))

    def __radd__(self, other: Any) -> Pattern:
        return _sequence(_as_pattern(other), self)

    @cached_property
    def compiled(self) -> Compiled:
        """Raises ``ProgramError`` for two captures of one name, and ``GrammarError``."""
        builder = _Builder()
        try:
            root = self._written(builder)
        except RecursionError as error:
            raise ProgramError("the pattern is nested too deep") from error
        return Compiled(ir.Grammar({**builder.rules, "root": root}), builder.captures)


@dataclasses.dataclass(frozen=True, slots=True)
class Capture:
    """``many``: it is inside a repetition, so its value is a list."""

    name: str
    value: Callable[[str], Any]
    many: bool


class Compiled:
    """A whole pattern: the constraint, and the captures by the name of their rule."""

    def __init__(self, grammar: ir.Grammar, captures: Mapping[str, Capture]) -> None:
        self.grammar = grammar
        self.captures = dict(captures)
        self.spec = GrammarSpec.ebnf(to_ebnf(grammar))

    def parse(self, text: str) -> Parse | None:
        return parse(self.grammar, text, self.captures)


class PatternMeaning:
    """Implements ``Meaning``: the text is the value, the captures are variables of their own."""

    def __init__(self, compiled: Compiled) -> None:
        self._compiled = compiled

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(capture.name for capture in self._compiled.captures.values())

    def is_cut(self, text: str, *, by_length: bool) -> bool:
        found = self._compiled.parse(text)
        return found is None or (by_length and found.open_ended)

    def read(self, text: str) -> tuple[Any, Mapping[str, Any]]:
        found = self._compiled.parse(text)
        assert found is not None, f"the constraint let through {text!r}"
        captures = self._compiled.captures
        values: dict[str, Any] = {c.name: [] if c.many else None for c in captures.values()}
        for rule, start, end in found.spans:
            capture = captures[rule]
            value = capture.value(text[start:end])
            if capture.many:
                values[capture.name].append(value)
            else:
                values[capture.name] = value
        return text, values


class _Builder:
    """The rules of a pattern as far as it is written."""

    def __init__(self) -> None:
        self.rules: dict[str, ir.Expr] = {}
        self.captures: dict[str, Capture] = {}
        self._repeats = 0  # around the place that is being written
        self._included = 0

    def repeated(self, pattern: Pattern) -> ir.Expr:
        self._repeats += 1
        try:
            return pattern._written(self)
        finally:
            self._repeats -= 1

    def include(self, grammar: ir.Grammar) -> ir.Expr:
        self._included += 1
        return ir_build.included(self.rules, grammar, f"p{self._included}_")

    def capture(self, name: str, pattern: Pattern, value: Callable[[str], Any]) -> ir.Expr:
        if any(capture.name == name for capture in self.captures.values()):
            raise ProgramError(f"the pattern has two captures called {name!r}")
        rule = f"capture{len(self.captures)}"
        self.captures[rule] = Capture(name, value, many=self._repeats > 0)
        self.rules[rule] = pattern._written(self)
        return ir.Ref(rule)


# -- parts ------------------------------------------------------------------------------------


def cap(name: str, part: Any) -> Pattern:
    """``part`` as the variable ``name``: its text, or (for a type) its value. Inside a ``repeat``
    the list of all of them; None where an option without it was taken."""
    if not isinstance(name, str) or not name:
        raise ProgramError(f"a variable's name must be a text, got {name!r}")
    value: Callable[[str], Any] = str
    if not isinstance(part, Pattern | str):
        kind = PythonType(part)
        pattern, value = _typed(kind), kind.parse
    else:
        pattern = _as_pattern(part)
    return Pattern(lambda b: b.capture(name, pattern, value), f"cap({name!r}, {pattern._shown})")


def one_of(*options: Any) -> Pattern:
    """Any one of the options; the first one that fits counts."""
    if not options:
        raise ProgramError("one_of needs an option")
    parts = [_as_pattern(option) for option in options]
    shown = ", ".join(part._shown for part in parts)
    return Pattern(lambda b: ir_build.alt([p._written(b) for p in parts]), f"one_of({shown})")


def repeat(part: Any, low: int = 0, high: int | None = None) -> Pattern:
    """``part`` at least ``low`` and at most ``high`` times (None: any number of times)."""
    counts = [low] if high is None else [low, high]
    if any(type(count) is not int or count < 0 for count in counts) or counts[-1] < low:
        raise ProgramError(f"repeat takes counts from 0 up, got {low!r} to {high!r}")
    body = _as_pattern(part)
    shown = f"repeat({body._shown}, {low}, {high})"
    return Pattern(lambda b: ir_build.repeat(b.repeated(body), low, high), shown)


def optional(part: Any) -> Pattern:
    """``part`` or nothing."""
    body = _as_pattern(part)
    return Pattern(lambda b: ir.Repeat(body._written(b), 0, 1), f"optional({body._shown})")


def regex(pattern: str) -> Pattern:
    """What a regular expression matches as a whole (``rtlang.grammar.regex`` has the dialect).
    Its groups are no captures."""
    return _of_spec(GrammarSpec.regex(pattern), f"regex({pattern!r})")


def json(schema: Mapping[str, Any] | bool | str, *, whitespace: int = 16) -> Pattern:
    """JSON that satisfies a schema; see ``GrammarSpec.json_schema``."""
    return _of_spec(GrammarSpec.json_schema(schema, whitespace=whitespace), "json(...)")


def _as_pattern(given: Any) -> Pattern:
    if isinstance(given, Pattern):
        return given
    if not isinstance(given, str):
        return _typed(PythonType(given))
    if any("\ud800" <= char <= "\udfff" for char in given):
        raise ProgramError("a text of a pattern has half a character (a surrogate)")
    return Pattern(lambda builder: ir.Text(given), repr(given))


def _typed(kind: PythonType) -> Pattern:
    spec = kind.spec()
    if spec is None:
        raise ProgramError("str is any text, which nothing can follow: use line or a regex")
    return _of_spec(spec, repr(kind))


def _of_spec(spec: GrammarSpec, shown: str) -> Pattern:
    _grammar(spec)  # what is wrong is raised here
    return _known(spec, shown)


def _known(spec: GrammarSpec, shown: str) -> Pattern:
    return Pattern(lambda builder: builder.include(_grammar(spec)), shown)


@functools.lru_cache(maxsize=64)
def _grammar(spec: GrammarSpec) -> Prepared:
    return translate(spec)


def _sequence(first: Pattern, second: Pattern) -> Pattern:
    parts = first._parts + second._parts
    shown = " + ".join(part._shown for part in parts)
    return Pattern(lambda b: ir_build.seq([part._written(b) for part in parts]), shown, parts)


# Read when they are first used: all letters are many.
digit = _known(GrammarSpec.regex("[0-9]"), "digit")
digits = _known(GrammarSpec.regex("[0-9]+"), "digits")
letters = _known(GrammarSpec.regex(r"\p{L}+"), "letters")
spaces = _known(GrammarSpec.regex("[ ]+"), "spaces")
line = _known(GrammarSpec.regex(r"[^\n]+"), "line")
integer = _known(GrammarSpec.regex("-?(0|[1-9][0-9]*)"), "integer")
number = _known(GrammarSpec.regex(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?"), "number")
