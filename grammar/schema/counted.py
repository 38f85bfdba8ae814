"""Counted characters of strings, some of which are written as escapes.

An engine counts repetitions of one class quickly, and those of alternatives of different lengths
so slowly that a mask takes a second. So a counted repetition of characters becomes a choice: none
of them is an escape, or one is, or two, ... with room for plain ones in between. That is less than
all (``docs/constraints.md`` says what is left out), and never more.
"""

from __future__ import annotations

from rtlang.grammar.ir import Alt, Chars, Expr, Ref, Repeat, Seq, Text
from rtlang.grammar.ir_build import alt, repeat, seq
from rtlang.grammar.schema.rules import Rules

#: Counts up to this are written out as they are.
_SMALL = 3
_FEW_ESCAPES, _MANY_ESCAPES = 3, 6
#: No more characters are ever counted: a longer text is not generated.
_MOST = 8_192
#: From so many characters on there may be many escapes.
_LONG = 64


def counted(char: Expr, low: int, high: int | None) -> list[Expr]:
    """What ``char`` so many times may be: all of it, or the part that is fast."""
    plain, escapes = _kinds(char)
    if plain is None or escapes is None or (high is not None and high <= _SMALL):
        return [repeat(char, low, high)]
    if high is None:
        # The first ones plain, or few enough to be written out.
        first = repeat(char, low, low) if low <= _SMALL else repeat(plain, low, low)
        return [seq([first, repeat(char, 0, None)])]
    high = max(low, min(high, _MOST))
    most = _MANY_ESCAPES if high >= _LONG else _FEW_ESCAPES
    return [_with(plain, escapes, count, low, high) for count in range(min(most, high) + 1)]


def _with(plain: Chars, escapes: Expr, count: int, low: int, high: int) -> Expr:
    """Exactly ``count`` escapes, and runs of plain characters of about equal room around them."""
    if not count:
        return repeat(plain, low, high)
    left = high - count
    least = max(low - count, 0)
    first = max(left // (count + 1), least)
    run = repeat(plain, 0, (left - first) // count)
    parts = [repeat(plain, least, first)]
    for _ in range(count):
        parts += [escapes, run]
    return seq(parts)


def _kinds(char: Expr) -> tuple[Chars | None, Expr | None]:
    """The one class of plain characters and the escapes of an alternative of both."""
    if not isinstance(char, Alt):
        return None, None
    plain = [part for part in char.parts if isinstance(part, Chars)]
    escapes = [part for part in char.parts if not isinstance(part, Chars)]
    # A pattern's own alternatives are not escapes: leaving some out is not what is documented.
    if len(plain) != 1 or not escapes or not all(map(_is_escape, escapes)):
        return None, None
    return plain[0], alt(escapes)


def _is_escape(expr: Expr) -> bool:
    """Whether it is written with a backslash: in a string nothing else is an escape."""
    first = expr.parts[0] if isinstance(expr, Seq) and expr.parts else expr
    return isinstance(first, Text) and first.text.startswith("\\")


def in_quotes(inner: Expr, rules: Rules) -> Expr:
    """``inner`` as a string, all its bounded repetitions of characters made fast. Masks are fast
    only where the rule that counts or repeats knows what comes behind it: the closing quote is
    drawn into it."""
    closed = _ended(_fast(inner), rules)
    while (rule := rules.next_to_end()) is not None:
        rules.put(rule[0], _ended(rule[1], rules))
    return seq([Text('"'), rules.define(closed) if isinstance(closed, Alt) else closed])


def _ended(expr: Expr, rules: Rules) -> Expr:
    """``expr`` and the closing quote, in each rule that can be the last."""
    if isinstance(expr, Alt):
        return alt([_ended(part, rules) for part in expr.parts])
    if isinstance(expr, Seq) and expr.parts:
        return seq([*expr.parts[:-1], _ended(expr.parts[-1], rules)])
    if isinstance(expr, Ref):
        return rules.ended(expr.name)
    return seq([expr, Text('"')])


def _fast(expr: Expr) -> Expr:
    if isinstance(expr, Repeat):
        body = _fast(expr.expr)
        return alt(counted(body, expr.low, expr.high))
    if isinstance(expr, Alt):
        return alt([choice for part in expr.parts for choice in _choices(_fast(part))])
    if isinstance(expr, Seq):
        return _sequence(expr.parts)
    return expr


def _sequence(parts: tuple[Expr, ...]) -> Expr:
    """What comes behind the last part that is a choice now is drawn into it."""
    flat: list[Expr] = []
    for part in parts:
        flat += part.parts if isinstance(part, Seq) else [part]
    fast = [_fast(part) for part in flat]
    last = next((i for i in reversed(range(len(fast))) if fast[i] != flat[i]), None)
    if last is None or not isinstance(fast[last], Alt):
        return seq(fast)
    behind = fast[last + 1 :]
    drawn = alt([seq([choice, *behind]) for choice in _choices(fast[last])])
    return seq([*fast[:last], drawn])


def _choices(expr: Expr) -> tuple[Expr, ...]:
    return expr.parts if isinstance(expr, Alt) else (expr,)
