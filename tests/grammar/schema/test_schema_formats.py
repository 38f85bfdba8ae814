"""Formats against the standard library, and samples of them against an independent checker."""

from __future__ import annotations

import datetime
import ipaddress
import random
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st
from schema_samples import Texts, engine

from rtlang.errors import GrammarUnsatisfiable
from rtlang.grammar.schema import translate
from rtlang.grammar.schema.formats import FORMATS, format_language


def has_format(name: str, text: str) -> bool:
    language = format_language(name, None)
    assert language is not None
    return language.dfa.accepts(text)


@given(st.integers(0, 9999), st.integers(0, 13), st.integers(0, 32))
def test_dates_are_those_of_the_calendar(year: int, month: int, day: int) -> None:
    text = f"{year:04}-{month:02}-{day:02}"
    try:
        datetime.date(year, month, day)
    except ValueError:
        assert not has_format("date", text)
    else:
        assert has_format("date", text)


def test_every_leap_day() -> None:
    found = [year for year in range(10_000) if has_format("date", f"{year:04}-02-29")]
    assert found == [y for y in range(1, 10_000) if y % 4 == 0 and (y % 100 or y % 400 == 0)]


@given(st.integers(0, 2**128 - 1), st.sampled_from(["compressed", "exploded"]))
def test_every_ipv6_address(number: int, form: str) -> None:
    address = ipaddress.IPv6Address(number)
    assert has_format("ipv6", getattr(address, form))


@given(st.text("0123456789abf:.", max_size=24))
def test_only_ip_addresses(text: str) -> None:
    for name, kind in (("ipv4", ipaddress.IPv4Address), ("ipv6", ipaddress.IPv6Address)):
        try:
            kind(text)
        except ValueError:
            assert not has_format(name, text)
        else:
            assert has_format(name, text)


@given(st.uuids())
def test_every_uuid(given_uuid: uuid.UUID) -> None:
    assert has_format("uuid", str(given_uuid))


@pytest.mark.parametrize(
    ("name", "texts", "others"),
    [
        ("date-time", "2024-02-29T23:59:59Z 1990-01-01t00:00:00.5+23:59", "2023-02-29T00:00:00Z"),
        ("time", "08:30:06Z 08:30:06.283185-01:00", "08:30:06 24:00:00Z 08:30:60Z"),
        ("duration", "P4DT12H30M5S P1Y PT36H P2W P1M", "P PT P1YT PT1D P1D2H P1W1D"),
        ("email", "joe.bloggs@example.com te~st@a", "2962 .a@b.c a..b@c.d a@-b a@"),
        ("hostname", "www.example.com a xn-a", "-a a- a_b a..b xn--x " + "a" * 64),
        (
            "uri",
            "http://a.b/c?d=e#f mailto:a@b urn:x:y http://[::1]:80/ a:",
            "//a /a a\\b http://[",
        ),
        ("uri-reference", "/a/b?c a #f ../x //h/p", "\\\\a %1"),
        ("json-pointer", "/a~0b~1/0 / //", "a /~2 /a~"),
        ("relative-json-pointer", "1 0/a 12#", "/a 01/a -1"),
        ("uri-template", "/{a}/{?b,c*} {x:3}", "{ {a"),
        ("uuid", "2EB8AA08-aa98-11ea-B4AA-73b441d16380", "2eb8aa08aa9811eab4aa73b441d16380"),
    ],
)
def test_texts_of_a_format(name: str, texts: str, others: str) -> None:
    assert [text for text in texts.split() if not has_format(name, text)] == []
    assert [text for text in others.split() if has_format(name, text)] == []


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("longest", [None, 48])
def test_samples_have_their_format(name: str, longest: int | None) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
    schema: dict[str, object] = {"type": "string", "format": name}
    schema |= {} if longest is None else {"maxLength": longest}
    texts = Texts(translate(schema), random.Random(1))
    for sample in (texts.draw() for _ in range(60)):
        instance = sample[1:-1].replace('\\"', '"').replace("\\\\", "\\")
        assert checker.conforms(instance, name), instance
        assert longest is None or len(instance) <= longest


def test_a_format_goes_with_lengths_and_patterns() -> None:
    matcher = engine({"format": "uri", "maxLength": 1024, "minLength": 1, "type": "string"})
    assert matcher.accepts('"https://example.com/a/b?c=d#e"')
    assert not matcher.accepts('"https://example.com/' + "a" * 1024 + '"')
    matcher = engine({"format": "date", "pattern": "^2024", "type": "string"})
    assert matcher.accepts('"2024-02-29"')
    assert not matcher.accepts('"2023-02-28"')


def test_an_unknown_format_says_nothing() -> None:
    assert engine({"type": "string", "format": "int32"}).accepts('"x"')


def test_what_lacks_a_format_is_not_known() -> None:
    # An annotation for some, an assertion for others: for both it is right to allow nothing.
    with pytest.raises(GrammarUnsatisfiable):
        translate({"not": {"format": "date"}})
    one_of = {"oneOf": [{"format": "date"}, {"type": ["string", "null"], "const": "x"}]}
    assert not engine({**one_of, "type": "string"}).accepts('"x"')
