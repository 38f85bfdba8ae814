"""JSON text: reading a schema, and the characters of strings as grammar."""

from __future__ import annotations

import json
import re
from functools import cache

from rtlang.errors import GrammarTooLarge, InvalidJson
from rtlang.grammar.charset import CharSet
from rtlang.grammar.ir import Alt, Chars, Expr, Repeat, Seq, Text

_PLAIN = ~CharSet.of((0, 0x1F), '"\\')


def _set(chars: str) -> Chars:
    """A class in the notation of regular expressions, of characters and ranges."""
    pairs = [(ord(a), ord(b)) for a, b in re.findall("(.)-(.)", chars)]
    return Chars(CharSet.of(re.sub(".-.", "", chars), *pairs).ranges)


_HEX = _set("0-9a-fA-F")
_TWO = Repeat(_HEX, 2, 2)
_D = _set("dD")
#: What the escapes of one letter stand for.
_SHORT = {8: "b", 9: "t", 10: "n", 12: "f", 13: "r", 0x22: '"', 0x5C: "\\"}


def parse_schema(text: str) -> object:
    """The schema that a JSON text holds; of a key that occurs twice the last value, as usual.

    Raises:
        InvalidJson: the text is not JSON (NaN and Infinity are not).
        GrammarTooLarge: it is nested too deep to be read, or has a number too long to be read.
    """
    try:
        found: object = json.loads(text, parse_constant=_refuse)
    except (json.JSONDecodeError, InvalidJson) as error:
        raise InvalidJson(f"the schema is not JSON: {error}") from error
    except RecursionError as error:
        raise GrammarTooLarge("nested too deep to be read", limit="depth") from error
    except ValueError as error:  # from int(): Python's limit on digits
        raise GrammarTooLarge(f"a number is too long: {error}", limit="digits") from error
    return found


def _refuse(name: str) -> None:
    raise InvalidJson(f"{name} is no number")


def quoted(text: str) -> Text:
    """A string with its one spelling: escapes only where JSON demands them."""
    return Text(json.dumps(text, ensure_ascii=False))


@cache
def string_chars(chars: CharSet) -> Expr:
    """One character of the set, as it is written within a string: see ``quoted``."""
    plain = chars & _PLAIN
    parts: list[Expr] = [Chars(plain.ranges)] if plain else []
    short = CharSet.of("".join(name for code, name in _SHORT.items() if code in chars))
    if short:
        parts.append(Seq((Text("\\"), Chars(short.ranges))))
    for high in (0, 1):
        long = CharSet.of(
            *(f"{code % 16:x}" for code in range(16 * high, 16 * high + 16)
              if code in chars and code not in _SHORT)
        )  # fmt: skip
        if long:
            parts.append(Seq((Text(f"\\u00{high}"), Chars(long.ranges))))
    return parts[0] if len(parts) == 1 else Alt(tuple(parts))


def any_char() -> Expr:
    """One character of a string in any of its spellings, but half of a surrogate pair alone."""
    low = Seq((_D, _set("c-fC-F"), _TWO))
    high = Seq((_D, _set("89abAB"), _TWO, Text("\\u"), low))
    unit = Alt((Seq((_set("0-9abcefABCEF"), _HEX, _TWO)), Seq((_D, _set("0-7"), _TWO)), high))
    escape = Alt((_set('"\\/bfnrt'), Seq((Text("u"), unit))))
    return Alt((Chars(_PLAIN.ranges), Seq((Text("\\"), escape))))
