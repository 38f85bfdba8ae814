"""What the language's own client asks beside ``/generate``: the tokenizer, and closed branches."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response

from rtlang.runtime.server.body import Body
from rtlang.runtime.server.replies import Json
from rtlang.runtime.server.routes.native import MAX_BRANCHES
from rtlang.runtime.server.state import server_of
from rtlang.runtime.tokenizer_files import described, path_of

router = APIRouter()


@router.get("/tokenizer_files")
async def tokenizer_files(request: Request) -> Response:
    """What the model's tokenizer is made of: names and hashes of files, or a description. 400
    where it is made of neither."""
    tokenizer = server_of(request).engine.tokenizer
    return Json(await asyncio.to_thread(described, tokenizer))


@router.get("/tokenizer_files/{name}")
async def tokenizer_file(request: Request, name: str) -> Response:
    """One of these files."""
    path = path_of(server_of(request).engine.tokenizer, name)
    content = await asyncio.to_thread(path.read_bytes)
    return Response(content, media_type="application/octet-stream")


class CloseBody(Body):
    fork_id: str
    count: int = Field(ge=1, le=MAX_BRANCHES)


@router.post("/close_branches")
async def close_branches(request: Request, body: CloseBody) -> Response:
    """So many branches of an announced fork will send no request. Unknown ids are no error: the
    fork may be over. Its id is drawn at random by whoever announced it, so only they know it."""
    server_of(request).engine.close_branches(body.fork_id, body.count)
    return Json({"success": True})
