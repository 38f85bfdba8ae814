"""GET /metrics for Prometheus."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from rtlang.errors import NotFound
from rtlang.runtime.server.state import server_of
from rtlang.runtime.server.threads import in_thread

router = APIRouter()


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """All metrics; see ``docs/metrics.md``. A scheduler that does not answer leaves its own out."""
    state = server_of(request)
    if state.observability is None:
        raise NotFound("this server counts nothing")
    accept = request.headers.get("accept", "")
    scrape = state.observability.metrics.scrape
    page, content_type = await in_thread(lambda: scrape(accept))
    return Response(page, headers={"Content-Type": content_type})
