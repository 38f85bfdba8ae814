"""From the text of a regular expression to its tree."""

from __future__ import annotations

import dataclasses
import functools
import re

from rtlang.errors import GrammarTooLarge
from rtlang.grammar.charset import CharSet
from rtlang.grammar.regex_chars import DOT, WORD, Reader, char_class, escape
from rtlang.grammar.regex_tree import (
    END,
    START,
    Cat,
    Look,
    Many,
    Node,
    One,
    Or,
    cat,
    children,
    walk,
)

MAX_LENGTH = 1 << 16  # characters of a pattern
MAX_DEPTH = 200  # groups in groups
MAX_LOOKS = 10  # lookarounds in lookarounds
MAX_ALTERNATIVES = 2_000
MAX_REPEAT = 1_000  # of what is more than one character
MAX_COPIES = 100_000  # counts of nested repetitions multiplied, and the count of a character

_GROUPS = {
    "(?:": None,
    "(?=": (False, True),
    "(?!": (False, False),
    "(?<=": (True, True),
    "(?<!": (True, False),
}  # opening -> (behind, holds) of a lookaround
_REFUSED = {
    "(?>": "atomic groups",
    "(?(": "conditionals",
    "(?P=": "backreferences",
    "(?P>": "recursion",
    "(?&": "recursion",
    "(?R": "recursion",
    "(?#": "comments",
    "(?|": "branch resets",
}
_BRACES = re.compile(r"\{(\d*)(,?)(\d*)\}", re.ASCII)
_NO_CHARACTER = re.compile("[\0\ud800-\udfff]")  # a NUL is written \\0
_NAME = re.compile(r"[^\W\d]\w*")


@dataclasses.dataclass
class _Group:
    """An open group: its finished alternatives, and the parts of the one being read."""

    pos: int
    look: tuple[bool, bool] | None = None
    alternatives: list[Node] = dataclasses.field(default_factory=list)
    parts: list[Node] = dataclasses.field(default_factory=list)
    looks: int = 0  # lookarounds that it is in
    repeatable: bool = False  # the last part may be followed by a quantifier


def parsed(pattern: str) -> Node:
    """The tree of a pattern.

    Raises:
        InvalidRegex: it is wrong or uses what is not supported; ``pos`` and ``reason`` say what.
        GrammarTooLarge: beyond one of this module's limits.
    """
    if len(pattern) > MAX_LENGTH:
        raise too_large("length", f"the regex is longer than {MAX_LENGTH} characters")
    return _Parser(pattern).parsed()


@functools.lru_cache(maxsize=1 << 12)
def _single(char: str) -> CharSet:
    return CharSet.of(char)


def too_large(limit: str, message: str) -> GrammarTooLarge:
    return GrammarTooLarge(message, limit=limit)


class _Parser:
    def __init__(self, pattern: str) -> None:
        self._reader = Reader(pattern)
        self._groups = [_Group(0)]
        self._names: set[str] = set()
        self._copies: dict[Node, int] = {}  # of repetitions, with those in them

    def parsed(self) -> Node:
        reader = self._reader
        if bad := _NO_CHARACTER.search(reader.text):
            raise reader.error("not a character of a text", bad.start())
        while not reader.at_end:
            self._next(reader.take())
        if len(self._groups) > 1:
            raise reader.error("the ) of this group is missing", self._groups[-1].pos)
        return self._closed(self._groups[0])

    def _next(self, char: str) -> None:
        group = self._groups[-1]
        if char == "(":
            self._open()
        elif char == ")":
            self._close()
        elif char == "|":
            group.alternatives.append(self._counted(cat(group.parts)))
            group.parts, group.repeatable = [], False
            if len(group.alternatives) >= MAX_ALTERNATIVES:
                raise too_large("alternatives", f"more than {MAX_ALTERNATIVES} alternatives")
        elif char in "*+?" or (char == "{" and self._braces() is not None):
            self._quantified(char)
        elif char in "^$":
            self._add(START if char == "^" else END, repeatable=False)
        elif char == "\\" and self._reader.peek() in tuple("AzZbB"):
            self._add(_boundary(self._reader.take()), repeatable=False)
        else:
            self._add(One(self._chars(char)))

    def _add(self, node: Node, *, repeatable: bool = True) -> None:
        group = self._groups[-1]
        group.parts.append(node)
        group.repeatable = repeatable

    def _chars(self, char: str) -> CharSet:
        reader = self._reader
        if char == ".":
            return DOT
        if char == "[":
            return char_class(reader)
        if char == "\\":
            found = escape(reader, in_class=False)
            return found if isinstance(found, CharSet) else _single(chr(found))
        return _single(char)

    # groups

    def _open(self) -> None:
        reader = self._reader
        start = reader.pos - 1
        above = self._groups[-1]
        group = _Group(start, looks=above.looks)
        if reader.peek() == "?":
            group.look = self._kind(start)
            group.looks += group.look is not None
        if len(self._groups) > MAX_DEPTH or group.looks > MAX_LOOKS:
            raise too_large("depth", f"groups of the regex are nested too deep at {start}")
        self._groups.append(group)

    def _kind(self, start: int) -> tuple[bool, bool] | None:
        reader = self._reader
        reader.pos = start
        for opening, look in _GROUPS.items():
            if reader.skip(opening):
                return look
        if reader.skip("(?P<") or reader.skip("(?<"):
            name = reader.until(">")
            if not _NAME.fullmatch(name) or name in self._names:
                raise reader.error(f"{name!r} is no new name of a group", start)
            self._names.add(name)
            return None
        for opening, what in _REFUSED.items():
            if reader.skip(opening):
                raise reader.error(f"not supported: {what}", start)
        raise reader.error("not supported: flags, and other groups that start with (?", start)

    def _close(self) -> None:
        reader = self._reader
        if len(self._groups) == 1:
            raise reader.error("no group is open", reader.pos - 1)
        group = self._groups.pop()
        node = self._closed(group)
        if group.look is None:
            self._add(node)
            return
        behind, holds = group.look
        if behind and any(isinstance(part, Look) and not part.behind for part in walk(node)):
            raise reader.error("not supported: $, \\b or (?= inside of a lookbehind", group.pos)
        self._add(self._counted(Look(node, behind, holds)), repeatable=False)

    def _closed(self, group: _Group) -> Node:
        last = self._counted(cat(group.parts))
        if not group.alternatives:
            return last
        return self._counted(Or((*group.alternatives, last)))

    # repetitions

    def _braces(self) -> re.Match[str] | None:
        """The quantifier in braces at the last character; None: the brace is a character."""
        found = _BRACES.match(self._reader.text, self._reader.pos - 1)
        return found if found and (found[1] or found[2]) else None

    def _quantified(self, char: str) -> None:
        reader, group = self._reader, self._groups[-1]
        start = reader.pos - 1
        low, high = self._bounds(char)
        if not group.repeatable:
            raise reader.error("nothing that could be repeated stands before this", start)
        if reader.peek() == "+":
            raise reader.error("possessive quantifiers are not supported")
        reader.skip("?")  # a lazy quantifier: the same texts
        node = group.parts.pop()
        many = Many(node, low, high)
        copies = many.count * self._copies.get(node, 1)
        if copies > MAX_COPIES or (many.count > MAX_REPEAT and not isinstance(node, One)):
            raise too_large("repeat", f"the regex repeats too often at {start}")
        self._copies[many] = copies
        self._add(many, repeatable=False)

    def _bounds(self, char: str) -> tuple[int, int | None]:
        if char != "{":
            return {"*": (0, None), "+": (1, None), "?": (0, 1)}[char]
        reader = self._reader
        braces = self._braces()
        assert braces is not None
        if not braces[1]:
            raise reader.error("{,n} is read in two ways; write {0,n}", reader.pos - 1)
        if max(map(len, braces.groups())) > 9:
            raise too_large("repeat", f"the regex repeats too often at {reader.pos - 1}")
        low = int(braces[1])
        high = int(braces[3]) if braces[3] else None if braces[2] else low
        if high is not None and high < low:
            raise reader.error("the numbers are in the wrong order", reader.pos - 1)
        reader.pos = braces.end()
        return low, high

    def _counted(self, node: Node) -> Node:
        """``node``, with the most copies of any of its parts remembered as its own."""
        most = max((self._copies.get(part, 1) for part in children(node)), default=1)
        self._copies.setdefault(node, most)
        return node


def _boundary(letter: str) -> Node:
    if letter in "AzZ":
        return START if letter == "A" else END
    word = One(WORD)
    return Or(
        tuple(
            Cat((Look(word, behind=True, holds=left), Look(word, behind=False, holds=right)))
            for left in (True, False)
            for right in (True, False)
            if (left != right) is (letter == "b")
        )
    )
