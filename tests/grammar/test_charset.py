"""Sets of code points obey the laws of sets."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from rtlang.grammar.charset import CharSet

POINTS = st.integers(0, 0x10FFFF) | st.sampled_from([0, 0x7F, 0xD7FF, 0xD800, 0xDFFF, 0xE000])
SETS = st.lists(st.tuples(POINTS, POINTS), max_size=6).map(CharSet.from_ranges)


def is_point(code: int) -> bool:
    return not 0xD800 <= code <= 0xDFFF


@settings(deadline=None)
@given(st.lists(st.tuples(POINTS, POINTS), max_size=6), POINTS)
def test_a_set_holds_the_code_points_of_its_ranges(
    pairs: list[tuple[int, int]], point: int
) -> None:
    chars = CharSet.from_ranges(pairs)
    assert (point in chars) is (is_point(point) and any(a <= point <= b for a, b in pairs))


@settings(deadline=None)
@given(SETS)
def test_ranges_are_ascending_and_apart_and_without_surrogates(chars: CharSet) -> None:
    flat = [end for pair in chars.ranges for end in pair]
    assert flat == sorted(flat)
    assert all(is_point(end) for end in flat)
    follows = zip(chars.ranges, chars.ranges[1:], strict=False)
    assert all(b + 1 < c for (_, b), (c, _) in follows)
    assert len(chars) == sum(b - a + 1 for a, b in chars.ranges)


@settings(deadline=None)
@given(SETS, SETS, POINTS)
def test_operators_are_those_of_sets(a: CharSet, b: CharSet, point: int) -> None:
    assert (point in a | b) is (point in a or point in b)
    assert (point in a & b) is (point in a and point in b)
    assert (point in a - b) is (point in a and point not in b)
    assert (point in ~a) is (is_point(point) and point not in a)


@settings(deadline=None)
@given(SETS, SETS)
def test_equal_sets_are_equal_objects(a: CharSet, b: CharSet) -> None:
    assert ~~a == a
    assert ~(a | b) == ~a & ~b
    assert a - b == a & ~b
    assert a | ~a == CharSet.ANY
    assert a & ~a == CharSet.EMPTY
    assert hash(a | b) == hash(b | a)


def test_constructors() -> None:
    assert CharSet.of("cab", (0x30, 0x39)).ranges == ((0x30, 0x39), (0x61, 0x63))
    assert CharSet.range(5, 4) == CharSet.EMPTY
    assert CharSet.range(0xD7FF, 0xE000).ranges == ((0xD7FF, 0xD7FF), (0xE000, 0xE000))
    assert not CharSet.EMPTY and CharSet.ANY
    assert len(CharSet.ANY) == 0x110000 - 0x800
    assert "é" in CharSet.of("é") and "e" not in CharSet.of("é")
