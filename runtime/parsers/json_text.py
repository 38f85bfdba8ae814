"""JSON followed as it is written: where a value ends, and at which character it is none."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

#: Objects and lists in one another; deeper text is not read as JSON by everybody.
MAX_DEPTH = 100
MAX_NUMBER_LEN = 400

SPACES = " \t\r\n"
_SPACE = re.compile(r"[ \t\r\n]*")
_PLAIN = re.compile(r'[^"\\\x00-\x1f]+')
_NUMBER_CHARS = re.compile(r"[-+.0-9eE]+")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_HEX = frozenset("0123456789abcdefABCDEF")
_WORDS = {"t": "true", "f": "false", "n": "null"}


def json_space_end(text: str, at: int) -> int:
    """Where white space of JSON that begins at ``at`` ends."""
    match = _SPACE.match(text, at)
    assert match is not None
    return match.end()


class JsonText:
    """One JSON value. ``done``: it is complete; ``broken``: the next character cannot follow.

    A number ends with the character behind it. Control characters that stand bare in a string,
    which JSON forbids, are escaped.
    """

    def __init__(self) -> None:
        self.done = False
        self.broken = False
        self._closers: list[str] = []
        self._state: Callable[[str, int], int] = self._value
        self._is_key = False
        self._word = ""  # what a literal still lacks; or the number so far
        self._hex_left = 0

    @property
    def is_nested(self) -> bool:
        """Whether it is in the middle of an object or a list."""
        return bool(self._closers)

    def feed(self, text: str, at: int = 0) -> tuple[int, str]:
        """(index up to which the value goes, that much of it)."""
        parts: list[str] = []
        start = at
        while at < len(text) and not (self.done or self.broken):
            char = text[at]
            if char in SPACES and not self._is_inside():
                at = json_space_end(text, at)
            elif char < " " and self._state == self._string:
                parts += [text[start:at], json.dumps(char)[1:-1]]
                at = start = at + 1
            else:
                at = self._state(text, at)
        parts.append(text[start:at])
        return at, "".join(parts)

    def _is_inside(self) -> bool:
        """Whether white space here would be a part of something."""
        insides = (self._string, self._escape, self._unicode, self._literal, self._number)
        return self._state in insides

    def _break(self, at: int) -> int:
        self.broken = True
        return at

    # Each state reads at least one character, or changes the state, or breaks.

    def _value(self, text: str, at: int) -> int:
        char = text[at]
        if char in "{[":
            if len(self._closers) == MAX_DEPTH:
                return self._break(at)
            self._closers.append("}" if char == "{" else "]")
            self._state = self._first_key if char == "{" else self._first_item
        elif char == '"':
            self._is_key = False
            self._state = self._string
        elif char in _WORDS:
            self._word = _WORDS[char][1:]
            self._state = self._literal
        elif char in "-0123456789":
            self._word = ""
            self._state = self._number
            return at
        else:
            return self._break(at)
        return at + 1

    def _first_key(self, text: str, at: int) -> int:
        return self._close(at) if text[at] == "}" else self._key(text, at)

    def _key(self, text: str, at: int) -> int:
        if text[at] != '"':
            return self._break(at)
        self._is_key = True
        self._state = self._string
        return at + 1

    def _colon(self, text: str, at: int) -> int:
        if text[at] != ":":
            return self._break(at)
        self._state = self._value
        return at + 1

    def _first_item(self, text: str, at: int) -> int:
        if text[at] == "]":
            return self._close(at)
        self._state = self._value
        return at

    def _after(self, text: str, at: int) -> int:
        if text[at] == self._closers[-1]:
            return self._close(at)
        if text[at] != ",":
            return self._break(at)
        self._state = self._key if self._closers[-1] == "}" else self._value
        return at + 1

    def _close(self, at: int) -> int:
        self._closers.pop()
        self._ended()
        return at + 1

    def _ended(self) -> None:
        self._state = self._after
        self.done = not self._closers

    def _string(self, text: str, at: int) -> int:
        match = _PLAIN.match(text, at)
        if match is not None:
            return match.end()
        if text[at] == "\\":
            self._state = self._escape
        elif self._is_key:
            self._state = self._colon
        else:
            self._ended()
        return at + 1

    def _escape(self, text: str, at: int) -> int:
        if text[at] == "u":
            self._hex_left = 4
            self._state = self._unicode
        elif text[at] in '"\\/bfnrt':
            self._state = self._string
        else:
            return self._break(at)
        return at + 1

    def _unicode(self, text: str, at: int) -> int:
        if text[at] not in _HEX:
            return self._break(at)
        self._hex_left -= 1
        if not self._hex_left:
            self._state = self._string
        return at + 1

    def _literal(self, text: str, at: int) -> int:
        if text[at] != self._word[0]:
            return self._break(at)
        self._word = self._word[1:]
        if not self._word:
            self._ended()
        return at + 1

    def _number(self, text: str, at: int) -> int:
        match = _NUMBER_CHARS.match(text, at)
        if match is None:
            if not _NUMBER.fullmatch(self._word):
                return self._break(at)
            self._ended()
            return at
        end = min(match.end(), at + MAX_NUMBER_LEN - len(self._word))
        self._word += text[at:end]
        return end if end > at else self._break(at)
