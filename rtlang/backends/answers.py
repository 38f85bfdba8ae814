"""What a server's refusals mean: exceptions of our own tree, from statuses and bodies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from rtlang.errors import (
    BodyTooLarge,
    DeadlineExceeded,
    EngineError,
    NotAllowed,
    NotAuthenticated,
    NotFound,
    PromptTooLong,
    RateLimited,
    RequestError,
    RtlangError,
    ServerUnavailable,
    ServerUnreachable,
    from_wire,
)
from rtlang.runtime.messages import Usage

#: What stands in an error's body and is not part of the exception's data.
_OUTER = frozenset({"code", "message", "type", "index"})
_BY_STATUS: dict[int, type[RtlangError]] = {
    401: NotAuthenticated,
    403: NotAllowed,
    404: NotFound,
    408: DeadlineExceeded,
    413: BodyTooLarge,
    429: RateLimited,
    502: ServerUnreachable,
    503: ServerUnavailable,
    504: DeadlineExceeded,
    529: ServerUnavailable,
}
#: A status' text in an error, where the body is no JSON.
_MAX_QUOTE = 200


def rtlang_error(status: int, body: bytes) -> RtlangError:
    """Of our own server: the exception that it had, with its data."""
    found = _error_object(body)
    if found is not None and isinstance(found.get("code"), str):
        return rtlang_error_of(found)
    return _by_status(status, body, found)


def rtlang_error_of(found: Mapping[str, Any]) -> RtlangError:
    """Of the "error" object in an answer or an event of our own server."""
    data = {k: v for k, v in found.items() if k not in _OUTER and not (k == "param" and v is None)}
    if isinstance(data.get("usage"), dict):
        data["usage"] = _usage(data["usage"])
    return from_wire(str(found.get("code") or "engine_error"), str(found.get("message", "")), data)


def api_error(status: int, body: bytes) -> RtlangError:
    """Of any other server: by the status, with the server's own words."""
    found = _error_object(body)
    error = _by_status(status, body, found)
    if found is not None:
        if found.get("code") == "context_length_exceeded":
            error = PromptTooLong(error.message)
        for name in ("code", "type", "param"):
            if found.get(name) is not None:
                error.data[f"api_{name}" if name != "param" else name] = found[name]
    return error


def api_error_of(found: Mapping[str, Any]) -> RtlangError:
    """Of the "error" object in an event, which has no status: the request has failed."""
    return EngineError(f"the server says: {found.get('message') or found.get('type') or found}")


def _usage(found: Mapping[str, Any]) -> Usage:
    """Of a failed request. A count that another version does not tell, or calls otherwise, is 0."""
    counts = {name: found.get(name) for name in Usage.__struct_fields__}
    return Usage(**{name: count for name, count in counts.items() if isinstance(count, int)})


def _by_status(status: int, body: bytes, found: Mapping[str, Any] | None) -> RtlangError:
    text = str(found.get("message")) if found is not None else _quote(body)
    kind = _BY_STATUS.get(status)
    if kind is None:
        kind = RequestError if 400 <= status < 500 else EngineError
    return kind(f"HTTP {status}: {text}" if text else f"HTTP {status}", status=status)


def _quote(body: bytes) -> str:
    text = body.decode(errors="replace").strip()
    return text if len(text) <= _MAX_QUOTE else text[:_MAX_QUOTE] + "…"


def _error_object(body: bytes) -> Mapping[str, Any] | None:
    try:
        found = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    error = found.get("error") if isinstance(found, dict) else None
    return error if isinstance(error, dict) else None
