"""Languages of ``format`` and ``pattern``.

In draft 2020-12 a format is an annotation. Here it is enforced, as a set of texts which certainly
have it and which holds nearly all that are seen in practice.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from rtlang.errors import InvalidRegex
from rtlang.grammar.regex import parse
from rtlang.grammar.schema.values import Language

# Gregorian calendar (RFC 3339): years 0001 to 9999.
_YEAR = "(?:[1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])"
_LEAP_YEAR = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_DATE = (
    f"(?:{_YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    "|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))"
    f"|{_LEAP_YEAR}-02-29)"
)
# No leap seconds: which days have one is no matter of grammar.
_CLOCK = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?"
_TIME = f"{_CLOCK}(?:[Zz]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"

_DURATION_TIME = "T(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S)"
_DURATION_DATE = "(?:[0-9]+D|[0-9]+M(?:[0-9]+D)?|[0-9]+Y(?:[0-9]+M(?:[0-9]+D)?)?)"
_DURATION = f"P(?:{_DURATION_DATE}(?:{_DURATION_TIME})?|{_DURATION_TIME}|[0-9]+W)"


def _host(length: int, count: int) -> str:
    """Names of up to ``count`` labels of up to ``length`` characters, at least 5. In no label the
    third and fourth are ``--``: such labels stand for others (RFC 5891)."""
    inner = "[A-Za-z0-9-]"
    longer = f"{inner}(?:[A-Za-z0-9]{inner}|-[A-Za-z0-9]){inner}{{0,{length - 5}}}"
    label = f"[A-Za-z0-9](?:(?:{inner}{{0,2}}|{longer})[A-Za-z0-9])?"
    return rf"{label}(?:\.{label}){{0,{count - 1}}}"


# At most 253 characters.
_HOST = f"(?:{_host(62, 4)}|{_host(30, 8)})"
_ATOM = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]"
_WIDE_ATOM = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~\u00a1-\ud7ff-]"
_IPV4_PART = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4 = rf"{_IPV4_PART}(?:\.{_IPV4_PART}){{3}}"
_H = "[0-9A-Fa-f]{1,4}"


def _ipv6() -> str:
    """Eight groups, of which a run of zeros may be written as ``::`` (RFC 4291, 2.2)."""
    end = f"(?:{_H}:{_H}|{_IPV4})"
    forms = [f"(?:{_H}:){{6}}{end}"]
    for left in range(7):  # groups before the ::, at least one group of zeros, then the rest
        before = f"(?:{_H}(?::{_H}){{0,{left - 1}}})?" if left else ""
        if left == 6:
            forms.append(f"{before}::{_H}")
        else:
            exact = f"(?:{_H}:){{{5 - left}}}{end}"
            forms.append(f"{before}::{exact}")
    forms.append(f"(?:{_H}(?::{_H}){{0,6}})?::")
    return "(?:" + "|".join(forms) + ")"


def _uri(chars: str) -> tuple[str, str]:
    """Absolute URIs and references of RFC 3986 (with the characters of RFC 3987 too), the host a
    name, an IPv4 address or an IPv6 address in brackets."""
    unit = f"(?:[{chars}!$&'()*+,;=:@]|%[0-9A-Fa-f]{{2}})"
    name = f"(?:[{chars}!$&'()*+,;=]|%[0-9A-Fa-f]{{2}})"
    authority = rf"//(?:(?:{name}|:)*@)?(?:{name}*|\[{_ipv6()}\])(?::[0-9]*)?"
    rest = rf"(?:\?(?:{unit}|[/?])*)?(?:#(?:{unit}|[/?])*)?"
    segments = f"(?:/{unit}*)*"
    rooted = f"/(?:{unit}+{segments})?"
    path = f"(?:{authority}{segments}|{rooted}|{unit}+{segments}|)"
    first = f"(?:[{chars}!$&'()*+,;=@]|%[0-9A-Fa-f]{{2}})+"
    relative = f"(?:{authority}{segments}|{rooted}|{first}{segments}|)"
    absolute = f"[A-Za-z][A-Za-z0-9+.-]*:{path}{rest}"
    return absolute, f"(?:{absolute}|{relative}{rest})"


def _short_uri(chars: str, high: int) -> str | None:
    """Absolute URIs of at most ``high`` characters, each part within its share of them."""
    name, share = min(high // 4, 255), high // 4 - 8
    if share < 2:
        return None
    unit = f"[{chars}!$&'()*+,;=:@]"
    part = f"[{chars}!$&'()*+,;=:@/?]"
    path = f"(?:/{part.replace('?', '')}{{0,{share}}})?"
    rest = rf"(?:\?{part}{{0,{share}}})?(?:#{part}{{0,{share}}})?"
    host = f"//[{chars}]{{0,{name}}}(?::[0-9]{{1,5}})?"
    return f"[A-Za-z][A-Za-z0-9+.-]{{0,14}}:(?:{host}{path}{rest}|{unit}{{1,{share}}}{rest})"


def _short_email(atom: str, high: int) -> str | None:
    pairs = min(high // 6, 31)
    host = _short_host(high - 2 * pairs - 2)
    return None if host is None else rf"{atom}(?:\.?{atom}){{0,{pairs}}}@{host}"


def _short_host(high: int) -> str | None:
    """Up to 4 labels of the same share of the characters."""
    length = min((high + 1) // 4 - 1, 62)
    return _host(length, 4) if length >= 5 else None


_URI_CHARS = r"A-Za-z0-9._~\-"
_IRI_CHARS = r"A-Za-z0-9._~\-\u00a1-\ud7ff\uf900-\ufdcf\ufdf0-\uffef"
_URI, _URI_REFERENCE = _uri(_URI_CHARS)
_IRI, _IRI_REFERENCE = _uri(_IRI_CHARS)
_VARIABLE = r"[A-Za-z0-9_]+(?:\.[A-Za-z0-9_]+)*(?::[1-9][0-9]{0,2}|\*)?"
_POINTER = r"(?:/(?:[^~/]|~[01])*)*"

_FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}[Tt]{_TIME}",
    "duration": _DURATION,
    "email": rf"{_ATOM}+(?:\.{_ATOM}+)*@{_HOST}",
    "idn-email": rf"{_WIDE_ATOM}+(?:\.{_WIDE_ATOM}+)*@{_HOST}",
    "hostname": _HOST,
    "idn-hostname": _HOST,
    "ipv4": _IPV4,
    "ipv6": _ipv6(),
    "uuid": "[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}",
    "uri": _URI,
    "uri-reference": _URI_REFERENCE,
    "iri": _IRI,
    "iri-reference": _IRI_REFERENCE,
    # Text of ASCII characters, and expressions (RFC 6570).
    "uri-template": (
        r"(?:[A-Za-z0-9._~!$&'()*+,;=:@/?#\[\]-]|%[0-9A-Fa-f]{2}"
        rf"|\{{[+#./;?&]?{_VARIABLE}(?:,{_VARIABLE})*\}})*"
    ),
    "json-pointer": _POINTER,
    "relative-json-pointer": f"(?:0|[1-9]+0?)(?:#|{_POINTER})",
    # Expressions without groups: characters, escapes of sets, classes, each with a quantifier.
    "regex": (
        r"\^?(?:(?:[A-Za-z0-9 _,:;@#%&=<>~'\x22/!.-]|\\[dDwWsS.*+?()\[\]{}|^$/-]"
        r"|\[\^?(?:[A-Za-z0-9_.]|a-z|A-Z|0-9)+\])[*+?]?|\|)*\$?"
    ),
}
# Spellings of earlier drafts.
_FORMATS |= {"host-name": _HOST, "ip-address": _IPV4}

FORMATS = tuple(sorted(_FORMATS))

#: Of formats without a length of their own: texts of at most so many characters. To count those
#: of the whole format takes an automaton that is too large.
_SHORT: dict[str, Callable[[int], str | None]] = {
    "email": lambda high: _short_email(_ATOM, high),
    "idn-email": lambda high: _short_email(_WIDE_ATOM, high),
    "hostname": _short_host,
    "idn-hostname": _short_host,
    "host-name": _short_host,
    "uri": lambda high: _short_uri(_URI_CHARS, high),
    "uri-reference": lambda high: _short_uri(_URI_CHARS, high),
    "iri": lambda high: _short_uri(_IRI_CHARS, high),
    "iri-reference": lambda high: _short_uri(_IRI_CHARS, high),
}


@cache
def format_language(name: object, high: int | None) -> Language | None:
    """Texts of a format, of at most ``high`` characters where they may be long.

    None: it is not known, and says nothing then.
    """
    if not isinstance(name, str) or name not in _FORMATS:
        return None
    short = _SHORT[name](high) if high is not None and name in _SHORT else None
    if short is None or high is None:
        return Language(parse(_FORMATS[name], search=False))
    return Language(parse(short, search=False), limits=(1, high))


def search_language(pattern: str, where: str) -> Language:
    """The texts in which ``pattern`` occurs, as ``pattern`` and ``patternProperties`` mean it.

    Raises:
        InvalidRegex: it is no regular expression of the dialect (``pos``; the message names
            ``where``, a JSON pointer).
    """
    try:
        return _search(pattern)
    except InvalidRegex as error:
        raise InvalidRegex(f"{where}: {error.message}", **error.data, pointer=where) from error


@cache
def _search(pattern: str) -> Language:
    return Language(parse(pattern, search=True))
