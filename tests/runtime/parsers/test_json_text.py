"""JSON followed character by character agrees with Python's reader, in any pieces."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtlang.runtime.parsers.call_object import CallObject
from rtlang.runtime.parsers.events import CallArguments
from rtlang.runtime.parsers.json_text import MAX_DEPTH, MAX_NUMBER_LEN, JsonText

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)


def read(pieces: Any) -> tuple[int, str, bool]:
    """(characters of the value, its text, whether it is complete)."""
    value, read_len, said = JsonText(), 0, ""
    for piece in pieces:
        end, fragment = value.feed(piece)
        read_len, said = read_len + end, said + fragment
        if value.done or value.broken:
            break
    return read_len, said, value.done


def is_json(text: str) -> bool:
    def refuse(constant: str) -> None:
        raise ValueError(constant)

    try:
        json.loads(text, strict=False, parse_constant=refuse)
    except ValueError:
        return False
    return True


@given(value=values, indent=st.sampled_from([None, 1]), ascii_only=st.booleans())
def test_json_is_read_to_its_end(value: Any, indent: int | None, ascii_only: bool) -> None:
    text = "[" + json.dumps(value, indent=indent, ensure_ascii=ascii_only) + "]"
    for pieces in ([text + " x"], text + "]"):
        read_len, said, done = read(pieces)
        assert (read_len, said, done) == (len(text), text, True)


@given(value=values, data=st.data())
def test_what_is_no_json_is_not_read_to_its_end(value: Any, data: st.DataObject) -> None:
    text = "[" + json.dumps(value) + "]"
    at = data.draw(st.integers(1, len(text) - 1))
    put = data.draw(st.sampled_from([",", '"', "\\", "0", ".", "-", "e", "\n", "]", "u", "{", ""]))
    changed = text[:at] + put + text[at + data.draw(st.integers(0, 1)) :]
    read_len, said, done = read([changed])
    assert (read_len, said, done) == read(changed)
    assert (done and read_len == len(changed)) == is_json(changed)
    if done:
        assert json.loads(said) == json.loads(changed[:read_len], strict=False)


@pytest.mark.parametrize(
    ("text", "read_len"),
    [
        ('{"a":01}', 7),
        ('{"a":1.}', 7),
        ("[nul]", 4),
        ("[NaN]", 1),
        ('{"a" 1}', 5),
        ('{"a":1,}', 7),
        ("[1,]", 3),
        ("{1:2}", 1),
        (r'["\x"]', 3),
        (r'["\u12g4"]', 6),
        ("['a']", 1),
    ],
)
def test_the_character_that_breaks_it(text: str, read_len: int) -> None:
    assert read([text])[0] == read(text)[0] == read_len


def test_limits() -> None:
    deep = "[" * MAX_DEPTH
    assert read([deep + "]" * MAX_DEPTH])[2] and not read(["[" + deep])[2]
    assert read(["[" + deep])[0] == MAX_DEPTH
    number = "1" * MAX_NUMBER_LEN
    assert read([f"[{number}]"])[2] and read([f"[{number}1]"])[0] == MAX_NUMBER_LEN + 1


@given(value=st.dictionaries(st.text(max_size=3), values, max_size=3), data=st.data())
def test_arguments_in_a_string_are_unwrapped(value: Any, data: st.DataObject) -> None:
    inner = json.dumps(value, ensure_ascii=data.draw(st.booleans()))
    quoted = json.dumps(inner, ensure_ascii=data.draw(st.booleans()))
    text = f'{{"name": "f", "arguments": {quoted}}}'
    cut = data.draw(st.integers(0, len(text)))
    for pieces in ([text], [text[:cut], text[cut:]], text):
        call, rest, said = CallObject(["f"], 0), "", ""
        for piece in pieces:
            rest += piece
            rest = rest[call.feed(rest) :]
            said += "".join(e.text for e in call.taken() if isinstance(e, CallArguments))
        assert call.done and not rest
        assert json.loads(said) == value
