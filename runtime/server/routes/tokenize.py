"""POST /tokenize and /detokenize: the ids that the other endpoints use, without generating."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from rtlang.errors import InvalidParameter, InvalidPrompt
from rtlang.runtime.server.body import Body
from rtlang.runtime.server.chat_plan import ChatAsk, chat_prompt
from rtlang.runtime.server.protocol.aside import aside
from rtlang.runtime.server.protocol.tools import read_tools
from rtlang.runtime.server.replies import Json
from rtlang.runtime.server.state import ServerState, server_of

router = APIRouter()


class TokenizeBody(Body):
    model: str | None = None
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class DetokenizeBody(Body):
    model: str | None = None
    tokens: list[int]
    skip_special_tokens: bool | None = None


@router.post("/tokenize")
@router.post("/v1/tokenize")
async def tokenize(request: Request, body: TokenizeBody) -> Response:
    """``count`` tells what a prompt costs; ``max_model_len`` how much there is room for."""
    state = server_of(request)
    state.check_model(body.model)
    ids = await aside(request, _ids, state, body)
    length = state.engine.info.context_length
    return Json({"tokens": ids, "count": len(ids), "max_model_len": length})


def _ids(state: ServerState, body: TokenizeBody) -> list[int]:
    if (body.prompt is None) == (body.messages is None):
        raise InvalidPrompt("give one of prompt and messages", param="prompt")
    of_chats = body.given(
        "tools", "add_generation_prompt", "continue_final_message", "chat_template_kwargs"
    )
    if body.prompt is not None:
        for name in of_chats:
            raise InvalidParameter(f"{name} is for messages", param=name)
        return state.engine.tokenizer.encode(
            body.prompt, add_bos=body.add_special_tokens is not False
        )
    if body.add_special_tokens:
        message = "a chat template writes its own special tokens: add_special_tokens is for prompt"
        raise InvalidParameter(message, param="add_special_tokens")
    ask = ChatAsk(messages=body.messages or [], **of_chats)
    return chat_prompt(state, ask, tools=read_tools(ask.tools, "auto")).ids


@router.post("/detokenize")
@router.post("/v1/detokenize")
async def detokenize(request: Request, body: DetokenizeBody) -> Response:
    state = server_of(request)
    state.check_model(body.model)
    limit = state.engine.info.vocab_size
    wrong = [i for i in body.tokens if not 0 <= i < limit]
    if wrong:
        message = f"token id {wrong[0]} is outside the vocabulary of {limit}"
        raise InvalidParameter(message, param="tokens")
    skip = body.skip_special_tokens is not False
    decode = state.engine.tokenizer.decode
    return Json({"text": await aside(request, decode, body.tokens, skip_special_tokens=skip)})
