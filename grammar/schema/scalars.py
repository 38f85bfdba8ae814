"""Writing numbers and strings."""

from __future__ import annotations

from rtlang.grammar.charset import CharSet
from rtlang.grammar.dfa import Dfa
from rtlang.grammar.dfa_ir import to_expr
from rtlang.grammar.ir import Alt, Chars, Expr, Ref, Repeat, Seq, Text
from rtlang.grammar.ir_build import alt, repeat
from rtlang.grammar.regex import Regex
from rtlang.grammar.schema.counted import in_quotes
from rtlang.grammar.schema.numbers import ALL, WHOLE, Numbers
from rtlang.grammar.schema.rules import Rules, sequence
from rtlang.grammar.schema.text import any_char, quoted, string_chars
from rtlang.grammar.schema.values import EVERYTHING, Language, Strings

MAX_WORDS = 2000  # of a set of strings that is written as a list

_DIGITS = Repeat(Chars(((0x30, 0x39),)), 0, None)
_SOME_DIGITS = Repeat(Chars(((0x30, 0x39),)), 1, None)
_MINUS = Repeat(Text("-"), 0, 1)
_FROM_ONE = Seq((Chars(((0x31, 0x39),)), _DIGITS))
_WHOLE = Alt((Text("0"), Seq((_MINUS, _FROM_ONE))))
_FRACTION = Repeat(Seq((Text("."), _SOME_DIGITS)), 0, 1)
# So that a reader of 64-bit floats meets no infinity: below 10^300 from one digit.
_EXPONENT = Repeat(
    Seq(
        (
            Chars(CharSet.of("eE").ranges),
            Alt(
                (
                    Seq((Text("-"), Repeat(Chars(((0x30, 0x39),)), 1, 3))),
                    Seq(
                        (
                            Repeat(Text("+"), 0, 1),
                            Repeat(Chars(((0x30, 0x32),)), 0, 1),
                            Repeat(Chars(((0x30, 0x39),)), 1, 2),
                        )
                    ),
                )
            ),
        )
    ),
    0,
    1,
)
_NUMBER = Seq((_MINUS, Alt((Text("0"), _FROM_ONE)), _FRACTION, _EXPONENT))


def number(rules: Rules, numbers: Numbers) -> Expr:
    if numbers.texts == ALL:
        return rules.define(_NUMBER, "number")
    written = numbers.written
    if written == WHOLE:
        return rules.define(_WHOLE, "integer")
    return _by_states(rules, written)


def _by_states(rules: Rules, dfa: Dfa) -> Expr:
    """A rule for each state. Divisions have states that all lead to each other, of which
    repetitions would be far larger; and of few characters rules like these are fast."""
    names = [rules.fresh() for _ in dfa.table.rows]
    for state, row in enumerate(dfa.table.rows):
        chars = {target: CharSet.EMPTY for _, target in row}
        for c, target in row:
            chars[target] = chars[target] | dfa.table.classes[c]
        found: list[Expr] = [
            sequence(Chars(chars[target].ranges), Ref(names[target])) for target in chars
        ]
        if state in dfa.table.accepting:
            found.append(Text(""))
        rules.put(names[state], alt(found))
    return Ref(names[0])


def string(rules: Rules, strings: Strings) -> Expr:
    """A string, in quotes: of free text in any spelling, else in the one of ``quoted``."""
    if strings.language is None:
        return _free_string(rules, strings.low, strings.high)
    source = strings.language.source
    if isinstance(source, Regex):
        inner = source.to_ir(string_chars, rules.define)
        return rules.define(in_quotes(inner, rules))
    if source == EVERYTHING:
        return _free_string(rules, 0, None)
    words = source.some_words(MAX_WORDS)
    if words is not None:
        texts = [quoted(word) for word in words]
        return rules.define(Alt(tuple(texts))) if len(texts) > 1 else texts[0]
    inner = to_expr(source, string_chars, rules.define)
    return rules.define(in_quotes(inner, rules))


def key(rules: Rules, keys: Dfa) -> Expr:
    """A key of the set, in quotes."""
    return string(rules, Strings(Language(keys)))


def _free_string(rules: Rules, low: int, high: int | None) -> Expr:
    expr = in_quotes(repeat(any_char(), low, high), rules)
    return rules.define(expr, "string" if (low, high) == (0, None) else "")
