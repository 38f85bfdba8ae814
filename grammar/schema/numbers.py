"""Sets of JSON numbers as regular sets of their texts.

A set holds all plain texts of a number (1, 1.0, 1.00) or none of them, so that intersection,
union and complement of texts are those of numbers. Plain: no exponent, no leading zero, no
negative zero.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from decimal import Decimal
from fractions import Fraction
from functools import cache

from rtlang.errors import GrammarTooLarge
from rtlang.grammar.charset import CharSet
from rtlang.grammar.dfa import Dfa
from rtlang.grammar.dfa_table import explore

MAX_DIGITS = 40  # of a number of a schema, on each side of the point
MAX_REMAINDERS = 1000  # of a division by multipleOf: each is a state

#: Distinct decimals of so many significant digits are distinct 64-bit floats.
FLOAT_DIGITS = 15

_DIGITS = "0123456789"
_CLASSES = [CharSet.of(char) for char in _DIGITS + ".-"]
_POINT, _MINUS = 10, 11

_DIGIT = Dfa.chars(CharSet.of(_DIGITS))
_ZEROS = Dfa.text("0").repeat(0, None)
_NATURAL = Dfa.text("0") | Dfa.chars(CharSet.of("123456789")) + _DIGIT.repeat(0, None)
_SIGN = Dfa.words(["", "-"])
_WHOLE_PART = _SIGN + _NATURAL
_NEGATIVE_ZERO = Dfa.text("-0") + (Dfa.empty_text() | Dfa.text(".0") + _ZEROS)

ALL = (_WHOLE_PART + (Dfa.empty_text() | Dfa.text(".") + _DIGIT.repeat(1, None))) - _NEGATIVE_ZERO
WHOLE = _WHOLE_PART - _NEGATIVE_ZERO  # written without a point
INTEGERS = (_WHOLE_PART + (Dfa.empty_text() | Dfa.text(".0") + _ZEROS)) - _NEGATIVE_ZERO
#: No zero at the end of a fraction, but for ".0".
SHORT = WHOLE | (ALL - (_WHOLE_PART + Dfa.text(".") + _DIGIT.repeat(1, None) + Dfa.text("0")))


@dataclasses.dataclass(frozen=True)
class Numbers:
    """A set of numbers.

    texts   all plain texts of its numbers
    places  how many digits after the point may be written: so few that no number next to a
            bound is read as the bound itself by a reader of 64-bit floats
    """

    texts: Dfa
    places: int = FLOAT_DIGITS

    def __and__(self, other: Numbers) -> Numbers:
        if self is ALL_NUMBERS or other is ALL_NUMBERS:
            return other if self is ALL_NUMBERS else self
        return Numbers(self.texts & other.texts, min(self.places, other.places))

    def __or__(self, other: Numbers) -> Numbers:
        return Numbers(self.texts | other.texts, min(self.places, other.places))

    def __invert__(self) -> Numbers:
        return Numbers(ALL - self.texts, self.places)

    @property
    def written(self) -> Dfa:
        """The texts to write: integers without a point, no useless zeros if they are few."""
        whole = self.texts & WHOLE
        if INTEGERS.includes(self.texts):
            return whole
        short = self.texts & SHORT
        return short if short.is_finite else self.texts & _at_most(self.places)


ALL_NUMBERS = Numbers(ALL)
#: Numbers of at most MAX_DIGITS digits before the point, for bounds beyond all of them.
MODERATE = Numbers(
    ALL
    & (_SIGN + _DIGIT.repeat(1, MAX_DIGITS))
    + (Dfa.empty_text() | Dfa.text(".") + _DIGIT.repeat(1, None))
)
NO_NUMBERS = Numbers(Dfa.nothing())


@cache
def _at_most(places: int) -> Dfa:
    fraction = Dfa.text(".") + _DIGIT.repeat(1, places) if places else Dfa.nothing()
    return _WHOLE_PART + (Dfa.empty_text() | fraction)


def plain(number: int | float) -> str:
    """The shortest plain text of a number of a schema (of a float: its shortest decimal).

    Raises:
        GrammarTooLarge: it has too many digits.
    """
    size = abs(number)
    if size >= 10**MAX_DIGITS or 0 < size < Fraction(1, 10**MAX_DIGITS):
        message = f"a number of more than {MAX_DIGITS} digits"
        raise GrammarTooLarge(message, limit="digits")
    text = str(number) if isinstance(number, int) else format(Decimal(repr(number)), "f")
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if text == "-0" else text


def among(numbers: Iterable[int | float]) -> Numbers:
    """Exactly these numbers."""
    texts = [plain(number) for number in numbers]
    whole = Dfa.words(text for text in texts if "." not in text)
    broken = Dfa.words(text for text in texts if "." in text)
    zeros = Dfa.empty_text() | Dfa.text(".0") + _ZEROS
    return Numbers((whole + zeros) | (broken + _ZEROS))


@cache
def compared(bound: str, *, below: bool, equal: bool) -> Numbers:
    """The numbers below (else: above) ``bound``, a plain text, or ``equal`` to it too."""
    negative = bound.startswith("-")
    whole, _, fraction = bound.lstrip("-").partition(".")
    wanted = {0} if equal else set[int]()
    wanted.add(-1 if below else 1)

    def step(state: _Reading) -> Iterator[tuple[int, _Reading]]:
        return state.moves(whole, fraction)

    def accepts(state: _Reading) -> bool:
        if state.phase not in ("zero", "whole", "fraction"):
            return False
        order = state.order(whole, fraction)
        if state.minus != negative:
            order = -1 if state.minus else 1
        elif negative:
            order = -order
        return order in wanted

    texts = Dfa(explore(_CLASSES, _Reading(), step, accepts)) & ALL
    return Numbers(texts, max(0, FLOAT_DIGITS - len(whole)))


@dataclasses.dataclass(frozen=True)
class _Reading:
    """What has been read of a number's text, compared with the size of a bound.

    phase   start, minus, zero (a whole part 0), whole, point (just read), fraction
    at      digits read of this part, until they are more than the bound has
    differs the sign of the first difference in the digits
    """

    phase: str = "start"
    minus: bool = False
    at: int = 0
    differs: int = 0

    def moves(self, whole: str, fraction: str) -> Iterator[tuple[int, _Reading]]:
        if self.phase == "start":
            yield _MINUS, _Reading("minus", minus=True)
        if self.phase in ("zero", "whole"):
            order = self.order(whole, "")
            yield _POINT, _Reading("point", self.minus, 0, order)
        if self.phase != "zero":
            after = "fraction" if self.phase in ("point", "fraction") else "whole"
            digits = fraction if after == "fraction" else whole
            for digit in range(10):
                phase = "zero" if self.phase in ("start", "minus") and digit == 0 else after
                yield digit, self._after(digit, phase, digits)

    def _after(self, digit: int, phase: str, digits: str) -> _Reading:
        differs = self.differs
        if not differs and (phase == "fraction" or self.at < len(digits)):
            other = int(digits[self.at]) if self.at < len(digits) else 0
            differs = (digit > other) - (digit < other)
        at = min(self.at + 1, len(digits) + 1)
        if phase == "fraction" and differs:
            at = 0  # nothing that follows matters
        return _Reading(phase, self.minus, at, differs)

    def order(self, whole: str, fraction: str) -> int:
        """Of what has been read, if it ends here, to the bound: -1, 0 or 1."""
        if self.phase in ("zero", "whole"):
            by_length = (self.at > len(whole)) - (self.at < len(whole))
            return by_length or self.differs or -bool(fraction)
        return self.differs or -(self.at < len(fraction))


@cache
def multiples(step: str) -> Numbers | None:
    """The multiples of ``step``, a plain positive text; None if it needs too many states."""
    whole, _, fraction = step.partition(".")
    modulus, places = int(whole + fraction), len(fraction)
    if modulus * (places + 1) > MAX_REMAINDERS:
        return None

    def moves(state: tuple[int, int]) -> Iterator[tuple[int, tuple[int, int]]]:
        rest, read = state  # remainder of the digits so far; digits after the point, -1: no point
        if read < 0:
            yield _MINUS, state  # of texts with a minus elsewhere, ALL keeps none
            yield _POINT, (rest, 0)
        for digit in range(10):
            if read < places:
                yield digit, ((rest * 10 + digit) % modulus, read + (read >= 0))
            elif digit == 0:
                yield digit, state

    def accepts(state: tuple[int, int]) -> bool:
        rest, read = state
        return rest * int(10 ** (places - max(read, 0))) % modulus == 0

    return Numbers(Dfa(explore(_CLASSES, (0, -1), moves, accepts)) & ALL)
