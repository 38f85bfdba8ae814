"""Sets of Unicode code points as ranges, without the surrogates, which no text contains."""

from __future__ import annotations

import dataclasses
from bisect import bisect_right
from collections.abc import Iterable
from typing import ClassVar

Ranges = tuple[tuple[int, int], ...]

_ALL: Ranges = ((0, 0xD7FF), (0xE000, 0x10FFFF))


@dataclasses.dataclass(frozen=True, slots=True)
class CharSet:
    """Code points 0..0x10FFFF but D800..DFFF.

    ranges  inclusive, ascending, neither overlapping nor adjacent: equal sets are equal
    """

    ranges: Ranges

    ANY: ClassVar[CharSet]
    EMPTY: ClassVar[CharSet]

    @classmethod
    def of(cls, *parts: str | tuple[int, int]) -> CharSet:
        """The characters of each text, and the code points of each (first, last)."""
        pairs: list[tuple[int, int]] = []
        for part in parts:
            pairs += [(ord(c), ord(c)) for c in part] if isinstance(part, str) else [part]
        return cls.from_ranges(pairs)

    @classmethod
    def range(cls, first: int, last: int) -> CharSet:
        """``first`` to ``last``, both included; empty if ``last`` is below ``first``."""
        return cls.from_ranges([(first, last)])

    @classmethod
    def from_ranges(cls, ranges: Iterable[tuple[int, int]]) -> CharSet:
        """Ranges in any order, overlapping or not; what is no code point of a text is left out."""
        return cls(_common(_merged(ranges), _ALL))

    def __contains__(self, char: int | str) -> bool:
        code = ord(char) if isinstance(char, str) else char
        at = bisect_right(self.ranges, (code, 0x110000)) - 1
        return at >= 0 and code <= self.ranges[at][1]

    def __len__(self) -> int:
        return sum(last - first + 1 for first, last in self.ranges)

    def __bool__(self) -> bool:
        return bool(self.ranges)

    def __or__(self, other: CharSet) -> CharSet:
        return CharSet(_common(_merged(self.ranges + other.ranges), _ALL))

    def __and__(self, other: CharSet) -> CharSet:
        return CharSet(_common(self.ranges, other.ranges))

    def __sub__(self, other: CharSet) -> CharSet:
        return self & ~other

    def __invert__(self) -> CharSet:
        gaps: list[tuple[int, int]] = []
        start = 0
        for first, last in self.ranges:
            gaps.append((start, first - 1))
            start = last + 1
        gaps.append((start, 0x10FFFF))
        return CharSet(_common(tuple(gaps), _ALL))

    def __repr__(self) -> str:
        shown = (f"{a:04x}" if a == b else f"{a:04x}-{b:04x}" for a, b in self.ranges)
        return f"CharSet({' '.join(shown)})"


def _merged(ranges: Iterable[tuple[int, int]]) -> Ranges:
    merged: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if first > last:
            continue
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return tuple(merged)


def _common(a: Ranges, b: Ranges) -> Ranges:
    """The intersection of two ascending lists of ranges; an empty range in them is none."""
    found: list[tuple[int, int]] = []
    i = j = 0
    while i < len(a) and j < len(b):
        first, last = max(a[i][0], b[j][0]), min(a[i][1], b[j][1])
        if first <= last:
            found.append((first, last))
        if a[i][1] < b[j][1]:
            i += 1
        else:
            j += 1
    return tuple(found)


CharSet.ANY = CharSet(_ALL)
CharSet.EMPTY = CharSet(())
