"""POST /v1/responses, and what was answered there: read again, cancelled, deleted."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Iterator, Sequence
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from rtlang.errors import InvalidParameter, NotFound
from rtlang.runtime.messages import FinishReason, Usage
from rtlang.runtime.server.chat_plan import ChatPlan
from rtlang.runtime.server.generation import Generation
from rtlang.runtime.server.protocol.aside import aside
from rtlang.runtime.server.reading import not_built
from rtlang.runtime.server.replies import EventStream, Json
from rtlang.runtime.server.responses_logprobs import TextLogprobs
from rtlang.runtime.server.responses_reply import ResponseWriter
from rtlang.runtime.server.responses_request import ResponseBody, read_input
from rtlang.runtime.server.responses_store import ResponseStore, StoredResponse
from rtlang.runtime.server.responses_truncation import plan_response
from rtlang.runtime.server.state import ServerState, principal_of, server_of

router = APIRouter()


class Responses:
    """Of one frontend: those that run now, and those that have finished."""

    def __init__(self, frontends: int) -> None:
        self.store = ResponseStore(frontends=frontends)
        self.running: dict[str, tuple[str, ResponseWriter]] = {}  # id -> (key's name, it)

    @contextlib.contextmanager
    def entered(self, key: str, writer: ResponseWriter) -> Iterator[None]:
        self.running[writer.id] = (key, writer)
        try:
            yield
        finally:
            del self.running[writer.id]

    def find_running(self, key: str, response_id: str) -> ResponseWriter | None:
        owner, writer = self.running.get(response_id, (None, None))
        return writer if owner == key else None


def responses_of(request: Request) -> Responses:
    found: Responses = request.app.state.responses
    return found


class _Call:
    """One request, from its body to its answer."""

    def __init__(
        self,
        request: Request,
        body: ResponseBody,
        plan: ChatPlan,
        messages: Sequence[dict[str, Any]],
        model: str,
    ) -> None:
        state = server_of(request)
        self._state = state
        self._body = body
        self._plan = plan
        self._messages = messages
        self._all = responses_of(request)
        self._key = principal_of(request.scope).name
        self._token_bytes = state.engine.tokenizer.token_bytes
        logprobs = TextLogprobs(self._token_bytes) if body.wants_logprobs else None
        self.writer = ResponseWriter(_echo(state, body, plan, model), plan.turn(), logprobs)

    async def answer(self, request: Request, generation: Generation) -> dict[str, Any]:
        with self._all.entered(self._key, self.writer):
            result = (await generation.results(request))[0][0]
            parser = self._plan.parser()
            events = parser.feed(result.text) + parser.finish()
            self.writer.feed(events, result.logprobs)
            self.writer.close(result.finish_reason)
            return await self._finished(result.finish_reason, result.usage, result.token_ids)

    async def events(self, generation: Generation) -> AsyncGenerator[bytes, None]:
        parser = self._plan.parser()
        writer = self.writer
        part = writer.begin()
        ids: list[int] = []
        with self._all.entered(self._key, writer):
            async for chunk in generation.chunks():
                ids += chunk.token_ids
                part += writer.feed(parser.feed(chunk.text), chunk.logprobs)
                if chunk.finish is not None:
                    assert chunk.usage is not None
                    part += writer.feed(parser.finish(), None) + writer.close(chunk.finish)
                    response = await self._finished(chunk.finish, chunk.usage, ids)
                    part += writer.end(response)
                if part:
                    yield part
                part = b""

    async def _finished(
        self, finish: FinishReason, usage: Usage, ids: Sequence[int]
    ) -> dict[str, Any]:
        told = self.writer.usage(usage, self._token_bytes, ids)
        response = self.writer.finished(finish, told)
        if self._body.stored:
            messages = [*self._messages, self.writer.answer()]
            await self._all.store.put(StoredResponse(self._key, response, messages))
        return response


@router.post("/v1/responses")
async def create_response(request: Request, body: ResponseBody) -> Response:
    state = server_of(request)
    model = state.check_model(body.model)
    messages = read_input(body.input, await _before(request, body.previous_response_id))
    plan = await aside(request, plan_response, state, body, messages)
    call = _Call(request, body, plan, messages, model)
    generation = await Generation.start(
        state,
        request,
        [plan.ask],
        model=model,
        stream=bool(body.stream),
        rids=[call.writer.id],
        prompt=plan.prompt,
    )
    if body.stream:
        events = call.events(generation)
        return await EventStream.open(request, events, generation.abort, call.writer.failed)
    return Json(await call.answer(request, generation))


@router.get("/v1/responses/{response_id}")
async def get_response(request: Request, response_id: str, stream: bool = False) -> Response:
    if stream:
        raise not_built("stream", "replaying a response's stream is")
    key = principal_of(request.scope).name
    running = responses_of(request).find_running(key, response_id)
    if running is not None:
        return Json(running.response("in_progress"))
    return Json((await responses_of(request).store.get(key, response_id)).response)


@router.post("/v1/responses/{response_id}/cancel")
async def cancel_response(request: Request, response_id: str) -> Response:
    """Whoever waits for it gets an error. 400 when it has finished already."""
    principal = principal_of(request.scope)
    running = responses_of(request).find_running(principal.name, response_id)
    if running is None:
        await responses_of(request).store.get(principal.name, response_id)
        raise InvalidParameter("the response has finished", param="response_id")
    state = server_of(request)
    state.abort(response_id, principal)
    return Json(running.response("cancelled"))


@router.delete("/v1/responses/{response_id}")
async def delete_response(request: Request, response_id: str) -> Response:
    await responses_of(request).store.delete(principal_of(request.scope).name, response_id)
    return Json({"id": response_id, "object": "response", "deleted": True})


async def _before(request: Request, response_id: str | None) -> Sequence[dict[str, Any]]:
    """The conversation that is continued. Raises ``InvalidParameter`` where it is not known."""
    if response_id is None:
        return ()
    try:
        key = principal_of(request.scope).name
        return (await responses_of(request).store.get(key, response_id)).messages
    except NotFound as error:
        raise InvalidParameter(error.message, param="previous_response_id") from error


def _echo(state: ServerState, body: ResponseBody, plan: ChatPlan, model: str) -> dict[str, Any]:
    """The request's values, with what was used where it gives none."""
    params = plan.ask.params.resolve(state.engine.info.chat_defaults)
    tools = [
        {"description": None, "parameters": None, "strict": None, **t} for t in body.tools or ()
    ]
    return {
        "model": model,
        "background": False,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": None,
        "metadata": body.metadata or {},
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": body.previous_response_id,
        "reasoning": {"effort": None, "summary": None, **(body.reasoning or {})},
        "service_tier": "default",
        "store": body.stored,
        "temperature": params.temperature,
        "text": body.text or {"format": {"type": "text"}},
        "tool_choice": body.tool_choice or "auto",
        "tools": tools,
        "top_logprobs": body.top_logprobs or 0,
        "top_p": params.top_p,
        "truncation": body.truncation or "disabled",
        "user": body.user,
    }
