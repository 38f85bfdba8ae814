"""Work on a long prompt, done in a thread: other requests go on meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from starlette.requests import Request

#: Bytes of a body from which on tokenizing it takes longer than going to a thread and back.
LONG_BODY = 32_768

P = ParamSpec("P")
T = TypeVar("T")


async def aside(request: Request, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What ``function``, which must be thread-safe, makes of this request's body."""
    length = request.headers.get("content-length")
    if length is not None and length.isdigit() and int(length) < LONG_BODY:
        return function(*args, **kwargs)
    return await asyncio.to_thread(function, *args, **kwargs)
