"""The HTTP application: routes, and how every error is answered."""

from __future__ import annotations

import logging
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.types import Scope

from rtlang.errors import EngineError, InvalidParameter, NotFound, RequestError, RtlangError
from rtlang.runtime.server.access import Access
from rtlang.runtime.server.http_errors import anthropic_body, headers_of, openai_body, status_of
from rtlang.runtime.server.metrics import CountAnswers
from rtlang.runtime.server.replies import Json
from rtlang.runtime.server.routes import (
    chat,
    completions,
    control,
    language,
    messages,
    metrics,
    models,
    native,
    page,
    responses,
    tokenize,
    usage,
)
from rtlang.runtime.server.state import ServerState

logger = logging.getLogger(__name__)

ROUTERS = (
    control.router,
    native.router,
    language.router,
    messages.router,
    responses.router,
    chat.router,
    completions.router,
    models.router,
    tokenize.router,
    metrics.router,
    usage.router,
    page.router,
)


def create_app(state: ServerState) -> FastAPI:
    """The application of one frontend. Its ``app.state.server`` is ``state``."""
    app = FastAPI(title="rtlang", docs_url=None, redoc_url=None)
    app.state.server = state
    app.state.responses = responses.Responses(state.config.frontends)
    for router in ROUTERS:
        app.include_router(router)
    app.add_exception_handler(RtlangError, _on_error)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(HTTPException, _on_http)
    app.add_exception_handler(Exception, _on_bug)
    app.add_middleware(Access, state=state, error_reply=error_reply)
    app.add_middleware(CountAnswers, state=state)
    if state.config.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(state.config.cors_origins),
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["*"],  # the official clients send many; there are no cookies to guard
            expose_headers=["x-request-id", "retry-after"],
        )
    return app


def error_reply(scope: Scope, error: RtlangError) -> Json:
    """In the form that the clients of this path read."""
    scope["state"]["error"] = error  # for the log
    anthropic = scope["path"].startswith("/v1/messages")
    body = anthropic_body(error) if anthropic else openai_body(error)
    if anthropic:
        body["request_id"] = scope["state"]["request_id"]
    return Json(body, status_of(error), headers_of(error))


async def _on_error(request: Request, error: Exception) -> Json:
    assert isinstance(error, RtlangError)
    return error_reply(request.scope, error)


async def _on_invalid(request: Request, error: Exception) -> Json:
    """A body that is no JSON, or not of the declared types; the first complaint is told."""
    assert isinstance(error, RequestValidationError)
    first: dict[str, Any] = dict(error.errors()[0])
    ours = first.get("ctx", {}).get("error")
    if isinstance(ours, RtlangError):
        return error_reply(request.scope, ours)
    path = [str(part) for part in first["loc"] if part != "body"]
    if first["type"] == "json_invalid":
        wrong = InvalidParameter(f"the body is no JSON: {first['ctx']['error']}")
    else:
        where = ".".join(path)
        wrong = InvalidParameter(f"{where}: {first['msg']}" if where else first["msg"])
        wrong.data["param"] = where or None
    return error_reply(request.scope, wrong)


async def _on_http(request: Request, error: Exception) -> Json:
    """What the router itself refuses: an unknown path, a wrong method."""
    assert isinstance(error, HTTPException)
    if isinstance(error.__cause__, RtlangError):  # raised while the body was read
        return error_reply(request.scope, error.__cause__)
    if error.status_code == 404:
        return error_reply(request.scope, NotFound(f"there is no {request.url.path}"))
    wrong = RequestError(str(error.detail))
    reply = error_reply(request.scope, wrong)
    reply.status_code = error.status_code
    reply.headers.update(error.headers or {})
    return reply


async def _on_bug(request: Request, error: Exception) -> Json:
    """Ours: the log has it, the client gets no details."""
    logger.error("%s failed", request.url.path, exc_info=error)
    return error_reply(request.scope, EngineError("internal error"))
