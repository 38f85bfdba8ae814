"""GET /usage: what keys, models and routes have cost."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request
from starlette.responses import Response

from rtlang.errors import NotFound, ServerUnavailable
from rtlang.runtime.server.replies import Json
from rtlang.runtime.server.state import principal_of, server_of
from rtlang.runtime.server.threads import in_thread

router = APIRouter()

#: Seconds for the database to answer.
ANSWER_S = 10.0


@router.get("/usage")
async def usage(request: Request, since: str | None = None, by: str = "key") -> Response:
    """Sums by ``key``, ``model`` or ``route``, of calls since a time (ISO 8601, or seconds since
    1970). Operators see every key's; others their own."""
    state = server_of(request)
    if state.observability is None or state.observability.usage is None:
        raise NotFound("this server keeps no usage rows (usage_db is not set)")
    principal = principal_of(request.scope)
    key = None if principal.operator else principal.name
    report = state.observability.usage.report
    try:
        async with asyncio.timeout(ANSWER_S):
            return Json(await in_thread(lambda: report(since, by, key)))
    except TimeoutError as error:
        text = "the usage database does not answer"
        raise ServerUnavailable(text, retry_after=5) from error
