"""Access: what happens to every request around its route: its id, its key, its size, its end."""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import Callable

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rtlang.errors import (
    BodyTooLarge,
    EngineError,
    InvalidParameter,
    NotAllowed,
    RtlangError,
)
from rtlang.runtime.server.logs import log_call
from rtlang.runtime.server.record import now
from rtlang.runtime.server.replies import Json
from rtlang.runtime.server.state import ServerState

logger = logging.getLogger(__name__)

#: Everybody may ask for these, with or without a key.
OPEN_PATHS = frozenset({"/", "/health", "/ready", "/ping"})
#: The page's own files; what it shows is asked for with a key.
OPEN_FOLDER = "/page/"
#: In place of a status, where none was sent: the client left, or the server ended.
LEFT = 499
_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")

ErrorReply = Callable[[Scope, RtlangError], Json]


class Access:
    """ASGI middleware. Sets ``principal``, ``request_id``, ``received`` and ``route`` in
    ``scope["state"]``; every answer carries ``x-request-id``."""

    def __init__(self, app: ASGIApp, state: ServerState, error_reply: ErrorReply) -> None:
        self._app = app
        self._state = state
        self._reply = error_reply
        self._max_body = state.config.max_body_mib << 20

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        given = headers.get("x-request-id", "")
        request_id = given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
        known = scope.setdefault("state", {})
        known |= {"request_id": request_id, "received": now(), "route": scope["path"]}
        status = LEFT

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                answered = MutableHeaders(scope=message)
                answered["x-request-id"] = request_id
                if scope["path"].startswith("/v1/messages"):
                    answered["request-id"] = request_id  # where Anthropic's clients look
            await send(message)

        try:
            await self._answer(scope, headers, self._limited(receive), sending)
        except Exception as error:
            if status != LEFT:
                raise
            if not isinstance(error, RtlangError):  # ours: the log has it, the client no details
                logger.error("%r failed", scope["path"], exc_info=error)
                error = EngineError("internal error")
            await self._reply(scope, error)(scope, receive, sending)
        finally:
            for generation in known.get("generations", []):
                generation.close()
            log_call(scope, status)

    async def _answer(self, scope: Scope, headers: Headers, receive: Receive, send: Send) -> None:
        self._check_origin(scope["path"], headers)
        if scope["method"] != "OPTIONS":  # a browser asks for permission without a key
            scope["state"]["principal"] = self._principal(scope["path"], headers)
        self._check_length(headers)
        await self._app(scope, receive, send)

    def _principal(self, path: str, headers: Headers) -> object:
        if _is_open(path):
            return None
        secret = headers.get("x-api-key")
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if secret is None and scheme.lower() == "bearer":
            secret = token.strip()
        return self._state.keys.find(secret)

    def _check_origin(self, path: str, headers: Headers) -> None:
        """A page of another site may make its visitors' browsers ask, without reading answers: on
        a server without keys that would be enough to flush the cache."""
        elsewhere = headers.get("sec-fetch-site") in ("cross-site", "same-site")
        if not elsewhere or _is_open(path):
            return
        if headers.get("origin") not in self._state.config.cors_origins:
            raise NotAllowed("pages of other origins may not call: see the option cors_origins")

    def _check_length(self, headers: Headers) -> None:
        given = headers.get("content-length")
        if given is None:
            return
        if not given.isascii() or not given.isdigit():
            raise InvalidParameter("the header content-length is no number")
        if len(given) > 15 or int(given) > self._max_body:
            raise self._too_large()

    def _too_large(self) -> BodyTooLarge:
        text = f"the body may have {self._state.config.max_body_mib} MiB"
        return BodyTooLarge(text, limit=self._max_body)

    def _limited(self, receive: Receive) -> Receive:
        """Counts a body that does not say its length."""
        total = 0

        async def counted() -> Message:
            nonlocal total
            message = await receive()
            total += len(message.get("body", b""))
            if total > self._max_body:
                raise self._too_large()
            return message

        return counted


def _is_open(path: str) -> bool:
    return path in OPEN_PATHS or path.startswith(OPEN_FOLDER)
