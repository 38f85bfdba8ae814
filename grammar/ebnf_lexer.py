"""The words of a grammar's text: names, literals, classes and signs, each with its position."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator

from rtlang.errors import InvalidEbnf
from rtlang.grammar.charset import CharSet

_WORD = re.compile(
    r"""(?P<space>[ \t\r\n]+|\#[^\n]*)
    | (?P<define>::=)
    | (?P<name>[A-Za-z_][A-Za-z0-9_.-]*)
    | (?P<text>"(?:[^"\\\n]|\\[^\n])*")
    | (?P<chars>\[(?:[^\]\\\n]|\\[^\n])*\])
    | (?P<count>\{[ \t]*(?P<low>[0-9]+)[ \t]*(?:(?P<comma>,)[ \t]*(?P<high>[0-9]*)[ \t]*)?\}|[*+?])
    | (?P<sign>[()|])""",
    re.VERBOSE,
)
_ESCAPE = re.compile(
    r"\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|([^xuU]))", re.DOTALL
)
_NAMED = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "b": "\b", "v": "\v", "a": "\a", "0": "\0"}
_NAMED |= {sign: sign for sign in "\"'\\/?.[](){}|*+-^$#"}

#: Digits of a count: larger ones are beyond every limit.
_MAX_DIGITS = 9


@dataclasses.dataclass(frozen=True, slots=True)
class Word:
    """kind: "name", "define", "text", "chars", "count", "sign" or "end"; ``at``: its index."""

    kind: str
    text: str
    at: int


class Source:
    """A grammar's text, which knows the line and the column of each index."""

    def __init__(self, text: str) -> None:
        self.text = text

    def error(self, message: str, at: int) -> InvalidEbnf:
        line = self.text.count("\n", 0, at) + 1
        column = at - (self.text.rfind("\n", 0, at) + 1) + 1
        shown = f"line {line}, column {column}: {message}"
        return InvalidEbnf(shown, line=line, column=column)

    def words(self) -> Iterator[Word]:
        """All words, the last of kind "end". Raises ``InvalidEbnf`` for what is none."""
        at = 0
        while at < len(self.text):
            match = _WORD.match(self.text, at)
            if match is None:
                raise self.error(self._complaint(at), at)
            kind = next(kind for kind in _KINDS if match[kind] is not None)
            if kind != "space":
                yield Word(kind, match[0], at)
            at = match.end()
        yield Word("end", "", at)

    def _complaint(self, at: int) -> str:
        char = self.text[at]
        known = {
            '"': "this literal is not closed on its line",
            "[": "this class is not closed on its line",
            "'": 'literals stand in double quotes: "..."',
            "{": "a count is {m}, {m,} or {m,n}",
            ".": "there is no sign for any character: write a class such as [^\\n]",
            ",": "macros, such as TagDispatch(...), are not supported",
            "=": "rules are written name ::= expression; look-ahead (= ...) is not supported",
        }
        return known.get(char, f"unexpected character {char!r}")

    def literal(self, word: Word) -> str:
        """What a literal says. Raises ``InvalidEbnf``."""
        return "".join(char for char, _ in self._chars(word.at + 1, word.at + len(word.text) - 1))

    def char_class(self, word: Word) -> CharSet:
        """What a class allows. Raises ``InvalidEbnf``."""
        start, end = word.at + 1, word.at + len(word.text) - 1
        negated = self.text.startswith("^", start)
        chars = list(self._chars(start + negated, end))
        if not chars:
            raise self.error("a class without characters", word.at)
        ranges: list[tuple[int, int]] = []
        i = 0
        while i < len(chars):
            low = chars[i][0]
            # A sign for "to" stands between two characters and is not escaped.
            is_range = i + 2 < len(chars) and self.text[chars[i + 1][1]] == "-"
            high = chars[i + 2][0] if is_range else low
            if high < low:
                raise self.error("a range that ends before it starts", chars[i][1])
            ranges.append((ord(low), ord(high)))
            i += 3 if is_range else 1
        found = CharSet.from_ranges(ranges)
        return ~found if negated else found

    def _chars(self, start: int, end: int) -> Iterator[tuple[str, int]]:
        """(character, its index in the text) of what stands between quotes or brackets."""
        at = start
        while at < end:
            if self.text[at] != "\\":
                yield self.text[at], at
                at += 1
                continue
            match = _ESCAPE.match(self.text, at, end)
            if match is None:
                raise self.error("\\x has 2, \\u 4 and \\U 8 hexadecimal digits", at)
            yield self._escaped(match), at
            at = match.end()

    def _escaped(self, match: re.Match[str]) -> str:
        digits = match[1] or match[2] or match[3]
        if digits is None:
            if match[4] not in _NAMED:
                raise self.error(f"unknown escape {match[0]}", match.start())
            return _NAMED[match[4]]
        point = int(digits, 16)
        if point > 0x10FFFF or 0xD800 <= point <= 0xDFFF:
            raise self.error(f"{match[0]} is no character", match.start())
        return chr(point)

    def count(self, word: Word) -> tuple[int, int | None]:
        """Lowest and highest number of times; None: any. Raises ``InvalidEbnf``."""
        signs: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
        if word.text in signs:
            return signs[word.text]
        match = _WORD.match(self.text, word.at)
        assert match is not None
        low = _capped(match["low"])
        if match["comma"] is None:
            return low, low
        high = _capped(match["high"]) if match["high"] else None
        if high is not None and high < low:
            raise self.error("a count whose end is below its start", word.at)
        return low, high


def _capped(digits: str) -> int:
    return int(digits.lstrip("0")[:_MAX_DIGITS] or "0")


_KINDS = ("space", "define", "name", "text", "chars", "count", "sign")
