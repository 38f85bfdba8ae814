"""The formats of structural tags: which fields each has, and of which kind they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from rtlang.errors import InvalidSchema, UnsupportedKeyword


class _Kind(NamedTuple):
    described: str
    holds: Callable[[Any], bool]


class _Field(NamedTuple):
    kind: _Kind
    required: bool = True
    default: Any = None


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and "\0" not in value


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(_is_text(text) and text for text in value)


def _are_pairs(value: Any) -> bool:
    pairs = isinstance(value, list) and all(isinstance(p, list) and len(p) == 2 for p in value)
    return pairs and all(_is_text(pair[0]) and pair[0] for pair in value)


_TEXT = _Kind("a text", _is_text)
_SOME_TEXT = _Kind("a text that is not empty", lambda v: _is_text(v) and bool(v))
_TEXTS = _Kind("a list of texts that are not empty", _are_texts)
_SOME_TEXTS = _Kind(
    "a list of one or more texts that are not empty", lambda v: _are_texts(v) and bool(v)
)
_ENDS = _Kind("a text, or a list of texts", lambda v: _is_text(v) or (_are_texts(v) and bool(v)))
_FLAG = _Kind("true or false", lambda v: isinstance(v, bool))
_COUNT = _Kind("a count", lambda v: type(v) is int and v >= 0)
_MAXIMUM = _Kind("a count, or -1 for any", lambda v: type(v) is int and v >= -1)
_SCHEMA = _Kind("a JSON schema", lambda v: isinstance(v, dict | bool))
_FORMAT = _Kind("a format", lambda v: isinstance(v, dict))
_FORMATS = _Kind("a list of one or more formats", lambda v: isinstance(v, list) and bool(v))
_PAIRS = _Kind("a list of [text, format]", _are_pairs)


def _optional(kind: _Kind, default: Any) -> _Field:
    return _Field(kind, required=False, default=default)


_NO_TEXTS = _optional(_TEXTS, [])
_NO = _optional(_FLAG, default=False)
_TAGS = {"tags": _Field(_FORMATS), "at_least_one": _NO, "stop_after_first": _NO}
_CONTENT = {"content": _Field(_FORMAT)}

_FORMS: dict[str, dict[str, _Field]] = {
    "const_string": {"value": _Field(_TEXT)},
    "json_schema": {
        "json_schema": _Field(_SCHEMA),
        "style": _optional(_TEXT, "json"),
        "any_order": _NO,
        "max_whitespace_cnt": _optional(_COUNT, None),
        "excludes": _NO_TEXTS,
    },
    "any_text": {
        "excludes": _NO_TEXTS,
        "max_tokens": _optional(_COUNT, None),
        "max_chars": _optional(_COUNT, None),
    },
    "regex": {"pattern": _Field(_TEXT)},
    "grammar": {"grammar": _Field(_TEXT), "syntax": _optional(_TEXT, "ebnf")},
    "sequence": {"elements": _Field(_FORMATS)},
    "or": {"elements": _Field(_FORMATS)},
    "optional": _CONTENT,
    "plus": _CONTENT,
    "star": _CONTENT,
    "repeat": {**_CONTENT, "min": _Field(_COUNT), "max": _Field(_MAXIMUM)},
    "tag": {**_CONTENT, "begin": _Field(_SOME_TEXT), "end": _Field(_ENDS)},
    "triggered_tags": {**_TAGS, "triggers": _Field(_SOME_TEXTS), "excludes": _NO_TEXTS},
    "tags_with_separator": {**_TAGS, "separator": _Field(_TEXT)},
    "dispatch": {
        "rules": _Field(_PAIRS),
        "loop": _optional(_FLAG, default=True),
        "excludes": _NO_TEXTS,
    },
}

#: Known elsewhere; each needs what a grammar over characters cannot say.
_REFUSED = {
    "token": "formats of token ids",
    "exclude_token": "formats of token ids",
    "any_tokens": "formats of token ids",
    "token_triggered_tags": "formats of token ids",
    "token_dispatch": "formats of token ids",
    "qwen_xml_parameter": "XML styles of JSON schemas",
}
#: (type, field): the only value that is enforced, and what the others would be.
_ONLY: dict[tuple[str, str], tuple[Any, str]] = {
    ("json_schema", "style"): ("json", "XML styles of JSON schemas"),
    ("json_schema", "any_order"): (False, "members in any order"),
    ("json_schema", "excludes"): ([], "excluded texts in JSON"),
    ("any_text", "max_tokens"): (None, "budgets of tokens"),
    ("any_text", "max_chars"): (None, "budgets of characters"),
    ("grammar", "syntax"): ("ebnf", "grammars that are not EBNF"),
}


def read(node: object, at: str, kind: str | None = None) -> dict[str, Any]:
    """A format's fields, with the default for each that is absent; ``type`` among them.

    at    its JSON pointer
    kind  its type, where it need not say so itself

    Raises:
        InvalidSchema: no format, or a field that is unknown, missing or wrong (``pointer``).
        UnsupportedKeyword: a format or a field that is known, but cannot be enforced.
    """
    if not isinstance(node, Mapping):
        raise invalid(at, "expected a format")
    name = node.get("type", kind)
    if isinstance(name, str) and name in _REFUSED:
        raise _unsupported(f"{at}/type", "type", _REFUSED[name])
    if not isinstance(name, str) or name not in _FORMS or kind not in (None, name):
        raise invalid(f"{at}/type", f"{name!r} is no type of a format")
    form, found = _FORMS[name], dict[str, Any](type=name)
    for field in node:
        if field != "type" and field not in form:
            raise invalid(f"{at}/{_step(field)}", f"{name} has no field {field}")
    for field, spec in form.items():
        if field in node:
            found[field] = _checked(name, field, spec, node[field], f"{at}/{field}")
        elif spec.required:
            raise invalid(at, f"{name} needs the field {field}")
        else:
            found[field] = spec.default
    return found


def _checked(name: str, field: str, spec: _Field, value: Any, at: str) -> Any:
    """A field's value; null where that is the default too."""
    if spec.kind in (_SOME_TEXT, _ENDS) and isinstance(value, Mapping):
        raise _unsupported(at, field, "formats of token ids")
    as_default = value is None and not spec.required and spec.default is None
    if not as_default and not spec.kind.holds(value):
        raise invalid(at, f"expected {spec.kind.described}")
    only, others = _ONLY.get((name, field), (value, ""))
    if value != only:
        raise _unsupported(at, field, others)
    return value


def invalid(at: str, message: str) -> InvalidSchema:
    return InvalidSchema(f"{at or '/'}: {message}", pointer=at, keyword=at.rpartition("/")[2])


def _unsupported(at: str, keyword: str, what: str) -> UnsupportedKeyword:
    reason = f"{what} are not supported"
    return UnsupportedKeyword(f"{at}: {reason}", pointer=at, keyword=keyword, reason=reason)


def _step(field: str) -> str:
    return field.replace("~", "~0").replace("/", "~1")
