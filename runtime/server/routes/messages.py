"""POST /v1/messages and /v1/messages/count_tokens, as Anthropic's clients expect them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

from fastapi import APIRouter, Request
from starlette.responses import Response

from rtlang.runtime.server.anthropic_reply import MessageWriter, error_event
from rtlang.runtime.server.anthropic_request import (
    CountBody,
    MessageBody,
    chat_ask,
    shows_thinking,
)
from rtlang.runtime.server.chat_plan import ChatPlan, plan_chat
from rtlang.runtime.server.generation import Generation
from rtlang.runtime.server.protocol.aside import aside
from rtlang.runtime.server.replies import EventStream, Json
from rtlang.runtime.server.state import server_of

router = APIRouter()


@router.post("/v1/messages")
async def create_message(request: Request, body: MessageBody) -> Response:
    state = server_of(request)
    model = state.check_model(body.model)
    plan = await aside(request, plan_chat, state, chat_ask(body))
    generation = await Generation.start(
        state, request, [plan.ask], model=model, stream=bool(body.stream), prompt=plan.prompt
    )
    writer = MessageWriter(model, plan.turn(), show_thinking=shows_thinking(body))
    token_bytes = state.engine.tokenizer.token_bytes
    if body.stream:
        events = _events(plan, generation, writer, token_bytes)
        return await EventStream.open(request, events, generation.abort, error_event)
    result = (await generation.results(request))[0][0]
    parser = plan.parser()
    writer.feed(parser.feed(result.text) + parser.finish())
    usage = writer.usage(result.usage, token_bytes, result.token_ids)
    return Json(writer.message(result.finish_reason, usage))


async def _events(
    plan: ChatPlan, generation: Generation, writer: MessageWriter, token_bytes: Sequence[bytes]
) -> AsyncGenerator[bytes, None]:
    parser = plan.parser()
    part = writer.begin(len(plan.ask.ids))
    ids: list[int] = []
    async for chunk in generation.chunks():
        ids += chunk.token_ids
        part += writer.feed(parser.feed(chunk.text))
        if chunk.finish is not None:
            assert chunk.usage is not None
            part += writer.feed(parser.finish())
            part += writer.end(chunk.finish, writer.usage(chunk.usage, token_bytes, ids))
        if part:
            yield part
        part = b""


@router.post("/v1/messages/count_tokens")
async def count_tokens(request: Request, body: CountBody) -> Response:
    """Exactly what a message with this body would use, cached or not."""
    state = server_of(request)
    state.check_model(body.model)
    plan = await aside(request, plan_chat, state, chat_ask(body))
    return Json({"input_tokens": len(plan.ask.ids)})
