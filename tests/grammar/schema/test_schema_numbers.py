"""Sets of numbers against exact fractions."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from schema_samples import engine

from rtlang.errors import GrammarTooLarge
from rtlang.grammar.schema.numbers import ALL, INTEGERS, among, compared, multiples, plain

numerals = st.builds(
    lambda minus, whole, fraction: minus + str(whole) + fraction,
    st.sampled_from(["", "-"]),
    st.one_of(st.integers(0, 30), st.integers(0, 10**20)),
    st.one_of(st.just(""), st.text("0123456789", min_size=1, max_size=4).map(".{}".format)),
)
bounds = st.one_of(st.integers(-300, 300), st.integers(-(10**19), 10**19)).flatmap(
    lambda whole: st.sampled_from([whole, whole / 8 if abs(whole) < 10**6 else whole])
)


def is_negative_zero(numeral: str) -> bool:
    return numeral.startswith("-") and Fraction(numeral) == 0


@given(bounds, numerals, st.booleans(), st.booleans())
def test_bounds_compare_exactly(bound: float, numeral: str, below: bool, equal: bool) -> None:
    number, limit = Fraction(numeral), Fraction(plain(bound))
    expected = (number < limit if below else number > limit) or (equal and number == limit)
    found = compared(plain(bound), below=below, equal=equal)
    assert found.texts.accepts(numeral) is (expected and not is_negative_zero(numeral))
    assert (~found).texts.accepts(numeral) is not (expected or is_negative_zero(numeral))


@given(st.sampled_from([1, 2, 3, 7, 10, 33, 0.01, 0.5, 2.5, 1.5]), numerals)
def test_multiples_divide_exactly(step: float, numeral: str) -> None:
    found = multiples(plain(step))
    assert found is not None
    divides = (Fraction(numeral) / Fraction(plain(step))).denominator == 1
    assert found.texts.accepts(numeral) is (divides and not is_negative_zero(numeral))


@given(st.lists(bounds, min_size=1, max_size=4), numerals)
def test_listed_numbers_are_equal_in_value(numbers: list[float], numeral: str) -> None:
    values = {Fraction(plain(number)) for number in numbers}
    assert among(numbers).texts.accepts(plain(numbers[0]))
    expected = Fraction(numeral) in values and not is_negative_zero(numeral)
    assert among(numbers).texts.accepts(numeral) is expected


@given(numerals)
def test_integers_are_numbers_without_a_fraction(numeral: str) -> None:
    assert ALL.accepts(numeral) is not is_negative_zero(numeral)
    whole = Fraction(numeral).denominator == 1
    assert INTEGERS.accepts(numeral) is (whole and not is_negative_zero(numeral))


def test_plain_texts_of_floats() -> None:
    assert [plain(n) for n in (0.1, 1e22, -2.50, 1e-7, -0.0)] == [
        "0.1", "10000000000000000000000", "-2.5", "0.0000001", "0",
    ]  # fmt: skip
    with pytest.raises(GrammarTooLarge, match="digits"):
        plain(10**400)


@pytest.mark.parametrize(
    ("schema", "texts", "others"),
    [
        ({"type": "integer", "minimum": -5}, "-5 -1 0 12", "-6 - 01 1.0 -0"),
        ({"type": "integer", "minimum": 2}, "2 10 99", "1 0 -3"),
        ({"type": "number", "exclusiveMinimum": 0}, "0.1 5 0.00000000000001", "0 -1 0.0 1e-9"),
        ({"type": "number", "minimum": 1, "maximum": 5}, "1 5 5.0 4.99", "5.7 0.9 5.1"),
        ({"type": "number"}, "1 -0 1.5e10 1E-300 0.0", "01 .5 1. 1e400 +1"),
        ({"type": "integer"}, "0 -7 123456789012345678901", "1.0 1e5 -0"),
        ({"exclusiveMinimum": True, "minimum": 3, "type": "integer"}, "4", "3"),
        ({"enum": [1, 2.5]}, "1 1.0 2.5", "2 2.50"),
        ({"type": "number", "multipleOf": 0.01, "maximum": 1}, "0.07 -3 1", "0.071 1.01"),
        ({"type": "integer", "maximum": 1.7e308, "minimum": 0}, "7 " + "9" * 40, "-1 " + "9" * 41),
        ({"not": {"type": "integer"}, "type": "number"}, "0.5 -3.25", "1 2.0"),
    ],
)
def test_numbers_as_they_are_written(schema: object, texts: str, others: str) -> None:
    matcher = engine(schema)
    assert [t for t in texts.split() if not matcher.accepts(t)] == []
    assert [t for t in others.split() if matcher.accepts(t)] == []


def test_no_number_next_to_a_bound_is_read_as_the_bound() -> None:
    matcher = engine({"type": "number", "exclusiveMaximum": 1})
    assert matcher.accepts("0.99999999999999")
    assert not matcher.accepts("0.99999999999999999999")
