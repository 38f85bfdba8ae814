"""GET /v1/models and /v1/models/{id}."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from rtlang.runtime.server.replies import Json
from rtlang.runtime.server.state import ServerState, server_of

router = APIRouter()


@router.get("/v1/models")
async def models(request: Request) -> Response:
    state = server_of(request)
    return Json({"object": "list", "data": [_card(state, state.model_name)]})


@router.get("/v1/models/{model:path}")
async def model(request: Request, model: str) -> Response:
    state = server_of(request)
    return Json(_card(state, state.check_model(model)))


def _card(state: ServerState, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": int(state.started),
        "owned_by": "rtlang",
        "root": state.engine.config.model,
        "parent": None,
        "max_model_len": state.engine.info.context_length,
    }
