"""Reads what a body holds below its fields: each wrong or unknown part is refused by its place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from rtlang.errors import InvalidParameter, Unsupported


def wrong(where: str, message: str) -> InvalidParameter:
    """``where``: the path in the body, such as ``messages.0.content``."""
    return InvalidParameter(f"{where}: {message}", param=where)


def not_built(where: str, what: str) -> Unsupported:
    return Unsupported(f"{where}: {what} not built", param=where)


def mapping(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise wrong(where, f"must be an object, got {_kind(value)}")
    return value


def sequence(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise wrong(where, f"must be a list, got {_kind(value)}")
    return value


def string(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise wrong(where, f"must be a string, got {_kind(value)}")
    return value


def flag(value: Any, where: str, default: bool) -> bool:
    """Null is "not given"."""
    if value is None:
        return default
    if not isinstance(value, bool):
        raise wrong(where, f"must be true or false, got {_kind(value)}")
    return value


def one_of(value: Any, where: str, names: tuple[str, ...]) -> str:
    if not isinstance(value, str) or value not in names:
        raise wrong(where, f"must be one of {', '.join(names)}, got {shown(value)}")
    return value


def only(item: Mapping[str, Any], where: str, *names: str) -> None:
    """Refuse every other name whose value is not null."""
    for name, value in item.items():
        if value is not None and name not in names:
            raise wrong(where, f"unknown field {shown(name)}")


def json_text(value: Any, where: str) -> str:
    """As compact JSON. Raises ``InvalidParameter`` for what has no UTF-8 form, or nests too deep
    to be written."""
    try:
        return msgspec.json.encode(value).decode()
    except UnicodeEncodeError as error:
        raise wrong(where, "holds a lone surrogate, which has no UTF-8 form") from error
    except RecursionError as error:
        raise wrong(where, "nests too deep") from error


def shown(value: Any) -> str:
    """For messages: short, and printable whatever it holds."""
    if not isinstance(value, str | int | float | bool | None):
        return _kind(value)
    try:
        text = repr(value)
    except ValueError:  # an integer of more digits than Python writes out
        return "a huge number"
    return text if len(text) <= 80 else f"{text[:77]}..."


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean"}
    fallback = "null" if value is None else "a number"
    return names.get(type(value), fallback)
