"""The characters of a regular expression: escapes, classes and Unicode properties."""

from __future__ import annotations

import functools
import sys
import unicodedata
from collections import defaultdict

from rtlang.errors import InvalidRegex
from rtlang.grammar.charset import CharSet

DIGIT = CharSet.of((0x30, 0x39))
WORD = DIGIT | CharSet.of((0x41, 0x5A), (0x61, 0x7A), "_")
#: ECMA-262's WhiteSpace and LineTerminator.
SPACE = CharSet.of((9, 13), " \xa0\u1680", (0x2000, 0x200A), "\u2028\u2029\u202f\u205f\u3000\ufeff")
DOT = ~CharSet.of("\n\r\u2028\u2029")

_SETS = {"d": DIGIT, "w": WORD, "s": SPACE, "D": ~DIGIT, "W": ~WORD, "S": ~SPACE}
_CONTROLS = {"n": 10, "r": 13, "t": 9, "f": 12, "v": 11}

#: Long names of general categories, without case, spaces and underscores.
_CATEGORIES = {
    "letter": "L", "casedletter": "LC", "uppercaseletter": "Lu", "lowercaseletter": "Ll",
    "titlecaseletter": "Lt", "modifierletter": "Lm", "otherletter": "Lo", "mark": "M",
    "combiningmark": "M", "nonspacingmark": "Mn", "spacingmark": "Mc", "enclosingmark": "Me",
    "number": "N", "decimalnumber": "Nd", "digit": "Nd", "letternumber": "Nl",
    "othernumber": "No", "punctuation": "P", "punct": "P", "connectorpunctuation": "Pc",
    "dashpunctuation": "Pd", "openpunctuation": "Ps", "closepunctuation": "Pe",
    "initialpunctuation": "Pi", "finalpunctuation": "Pf", "otherpunctuation": "Po",
    "symbol": "S", "mathsymbol": "Sm", "currencysymbol": "Sc", "modifiersymbol": "Sk",
    "othersymbol": "So", "separator": "Z", "spaceseparator": "Zs", "lineseparator": "Zl",
    "paragraphseparator": "Zp", "other": "C", "control": "Cc", "cntrl": "Cc", "format": "Cf",
    "surrogate": "Cs", "privateuse": "Co", "unassigned": "Cn",
}  # fmt: skip


class Reader:
    """A place in a pattern."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.pos = 0

    @property
    def at_end(self) -> bool:
        return self.pos >= len(self.text)

    def peek(self, length: int = 1) -> str:
        """The next characters; fewer, or "", at the end."""
        return self.text[self.pos : self.pos + length]

    def take(self) -> str:
        char = self.peek()
        self.pos += 1
        return char

    def skip(self, expected: str) -> bool:
        """Whether ``expected`` came next; it is taken then."""
        found = self.text.startswith(expected, self.pos)
        self.pos += len(expected) * found
        return found

    def until(self, end: str) -> str:
        """The text before the next ``end``; both are taken."""
        stop = self.text.find(end, self.pos)
        if stop < 0:
            raise self.error(f"{end!r} is missing")
        text = self.text[self.pos : stop]
        self.pos = stop + len(end)
        return text

    def error(self, reason: str, pos: int | None = None) -> InvalidRegex:
        at = self.pos if pos is None else pos
        return InvalidRegex(f"regex, character {at}: {reason}", pos=at, reason=reason)


def escape(reader: Reader, *, in_class: bool) -> CharSet | int:
    """What the escape behind a backslash stands for: a set, or a single code point."""
    start = reader.pos - 1
    char = reader.take()
    if char in _SETS and char:
        return _SETS[char]
    if char in ("p", "P"):
        chars = _property(reader, start)
        return ~chars if char == "P" else chars
    if char in _CONTROLS:
        return _CONTROLS[char]
    if char in ("x", "u", "c"):
        return _numeric(reader, char, start)
    if char == "b" and in_class:
        return 8
    if char == "0" and not reader.peek().isdigit():
        return 0
    if char == "":
        raise reader.error("nothing follows the backslash", start)
    if char.isdigit() or char == "k":
        raise reader.error("not supported: backreferences and octal escapes", start)
    if char.isascii() and char.isalpha():
        raise reader.error(f"not supported: the escape \\{char}", start)
    return ord(char)


def _numeric(reader: Reader, kind: str, start: int) -> int:
    if kind == "c":
        letter = reader.take()
        if not (letter.isascii() and letter.isalpha()):
            raise reader.error("a letter must follow \\c", start)
        return ord(letter) % 32
    if kind == "u" and reader.skip("{"):
        code = _hex(reader, reader.until("}"), start)
    elif kind == "u":
        code = _unit(reader, 4, start)
        if 0xD800 <= code < 0xDC00 and reader.skip("\\u"):
            low = _unit(reader, 4, start)
            if not 0xDC00 <= low < 0xE000:
                raise reader.error("half of a surrogate pair is no character", start)
            code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00)
    else:
        code = _unit(reader, 2, start)
    if code > sys.maxunicode:
        raise reader.error("beyond the last code point, 10FFFF", start)
    if 0xD800 <= code < 0xE000:
        raise reader.error("half of a surrogate pair is no character", start)
    return code


def _unit(reader: Reader, length: int, start: int) -> int:
    digits = reader.peek(length)
    reader.pos += length
    if len(digits) < length:
        raise reader.error(f"{length} hexadecimal digits are missing", start)
    return _hex(reader, digits, start)


def _hex(reader: Reader, digits: str, start: int) -> int:
    if not digits or len(digits) > 8 or set(digits) - set("0123456789abcdefABCDEF"):
        raise reader.error("not a hexadecimal number", start)
    return int(digits, 16)


def char_class(reader: Reader) -> CharSet:
    """The set between [, which has been taken, and ]."""
    start = reader.pos - 1
    negated = reader.skip("^")
    if reader.peek() == "]":
        raise reader.error("a class is empty; write \\] for the bracket itself", start)
    chars: list[tuple[int, int]] = []
    while not reader.skip("]"):
        if reader.at_end:
            raise reader.error("the ] of this class is missing", start)
        if reader.peek(2) in ("[:", "[=", "[."):
            raise reader.error("not supported: POSIX classes; write \\[ for the bracket itself")
        first = _class_item(reader)
        if reader.peek() == "-" and reader.peek(2) not in ("-]", "-"):
            dash = reader.pos
            reader.pos += 1
            last = _class_item(reader)
            if isinstance(first, CharSet) or isinstance(last, CharSet):
                raise reader.error("a range needs a character at both ends", dash)
            if first > last:
                raise reader.error("a range is in the wrong order", dash)
            chars.append((first, last))
        else:
            chars += first.ranges if isinstance(first, CharSet) else [(first, first)]
    found = CharSet.from_ranges(chars)
    return ~found if negated else found


def _class_item(reader: Reader) -> CharSet | int:
    char = reader.take()
    return escape(reader, in_class=True) if char == "\\" else ord(char)


def _property(reader: Reader, start: int) -> CharSet:
    if not reader.skip("{"):
        raise reader.error("a name in braces must follow \\p", start)
    name = reader.until("}")
    plain = name.casefold().replace("_", "").replace(" ", "")
    plain = plain.removeprefix("generalcategory=").removeprefix("gc=")
    if plain in ("any", "ascii"):
        return CharSet.ANY if plain == "any" else CharSet.range(0, 0x7F)
    if plain == "assigned":
        return ~_category("Cn")
    chars = _category(_CATEGORIES.get(plain, plain.capitalize() if plain != "lc" else "LC"))
    if not chars and plain not in ("cs", "surrogate"):
        raise reader.error(f"not supported: \\p{{{name}}}; only general categories are", start)
    return chars


def _category(name: str) -> CharSet:
    """A category, or all of those whose names start with a letter; empty if there is none."""
    names = ("Lu", "Ll", "Lt") if name == "LC" else (name,)
    return CharSet.from_ranges(
        pair
        for category, pairs in _categories().items()
        if category in names or category[0] == name
        for pair in pairs
    )


@functools.cache
def _categories() -> dict[str, list[tuple[int, int]]]:
    """The ranges of each general category, of Python's Unicode version (takes 0.2 s)."""
    found: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    start, current = 0, unicodedata.category("\0")
    for code in range(1, sys.maxunicode + 1):
        category = unicodedata.category(chr(code))
        if category != current:
            found[current].append((start, code - 1))
            start, current = code, category
    found[current].append((start, sys.maxunicode))
    return dict(found)
