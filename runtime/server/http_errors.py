"""What each of our errors is over HTTP: status, headers, and the body that clients read."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

import msgspec

from rtlang.errors import (
    BodyTooLarge,
    DeadlineExceeded,
    EngineClosed,
    GrammarBusy,
    NotAllowed,
    NotAuthenticated,
    NotFound,
    QueueFull,
    RateLimited,
    RequestError,
    RtlangError,
    SchedulerDied,
    SchedulerStalled,
    ServerUnavailable,
)
from rtlang.runtime.messages import Usage

#: The first class that fits decides.
_STATUS: tuple[tuple[type[RtlangError], int], ...] = (
    (NotAuthenticated, 401),
    (NotAllowed, 403),
    (NotFound, 404),
    (BodyTooLarge, 413),
    (RateLimited, 429),
    (RequestError, 400),
    (QueueFull, 503),
    (GrammarBusy, 503),
    (ServerUnavailable, 503),
    (SchedulerDied, 503),
    (SchedulerStalled, 503),
    (EngineClosed, 503),
    (DeadlineExceeded, 504),
)
#: Seconds after which a client may try again, where the error says none.
RETRY_AFTER_S = 1

#: OpenAI's ``type`` by status; anything else is "server_error" or "invalid_request_error".
_OPENAI_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    503: "overloaded_error",
}
_ANTHROPIC_TYPES = {
    **_OPENAI_TYPES, 413: "request_too_large", 503: "overloaded_error", 504: "timeout_error",
}  # fmt: skip


def status_of(error: RtlangError) -> int:
    return next((status for cls, status in _STATUS if isinstance(error, cls)), 500)


def headers_of(error: RtlangError) -> dict[str, str]:
    """``Retry-After`` where trying again may help, in whole seconds of at least one."""
    status = status_of(error)
    if status not in (429, 503):
        return {"WWW-Authenticate": "Bearer"} if status == 401 else {}
    seconds = error.data.get("retry_after") or RETRY_AFTER_S
    return {"Retry-After": str(max(1, -(-int(seconds * 1000) // 1000)))}


def openai_body(error: RtlangError) -> dict[str, Any]:
    """``{"error": {"message", "type", "param", "code"}}``; what else the error says (a schema's
    pointer, a limit, ``usage``: what the failed sequence has cost) stands beside them, so that our
    own client can build the same error."""
    status = status_of(error)
    kind = "invalid_request_error" if status < 500 else "server_error"
    more = {k: v for k, v in error.data.items() if k not in _INTERNAL and _is_plain(v)}
    usage = error.data.get("usage")
    if isinstance(usage, Usage):
        more["usage"] = msgspec.structs.asdict(usage)  # the struct itself would be a list
    if error.index is not None:
        more["index"] = error.index
    return {
        "error": {
            **more,
            "message": error.message or HTTPStatus(status).phrase,
            "type": _OPENAI_TYPES.get(status, kind),
            "param": error.data.get("param"),
            "code": error.code,
        }
    }


def anthropic_body(error: RtlangError) -> dict[str, Any]:
    status = status_of(error)
    kind = "invalid_request_error" if status < 500 else "api_error"
    message = error.message or HTTPStatus(status).phrase
    return {
        "type": "error",
        "error": {"type": _ANTHROPIC_TYPES.get(status, kind), "message": message},
    }


#: Fields of ``RtlangError.data`` that are ours alone, or are written in a form of their own.
_INTERNAL = frozenset({"usage", "choice", "param"})


def _is_plain(value: Any) -> bool:
    return isinstance(value, str | int | float | bool | None)
