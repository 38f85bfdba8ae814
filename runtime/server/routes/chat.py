"""POST /v1/chat/completions."""

from __future__ import annotations

import time
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from rtlang.runtime.result import GenerateResult
from rtlang.runtime.server.chat_plan import ChatPlan, plan_chat
from rtlang.runtime.server.generation import Generation, new_id
from rtlang.runtime.server.protocol.aside import aside
from rtlang.runtime.server.protocol.chat import ChatBody
from rtlang.runtime.server.protocol.chat_stream import ChatStream
from rtlang.runtime.server.protocol.counts import Counts
from rtlang.runtime.server.protocol.logprobs import chat_entries, num_shown, prompt_entries
from rtlang.runtime.server.protocol.sampling import client_names
from rtlang.runtime.server.protocol.sse import error_event
from rtlang.runtime.server.replies import EventStream, Json
from rtlang.runtime.server.state import server_of
from rtlang.runtime.server.turns import Turn, count_reasoning, finish_reason
from rtlang.runtime.tokenizer import Tokenizer

router = APIRouter()


@router.post("/v1/chat/completions")
async def chat_completions(request: Request, body: ChatBody) -> Response:
    state = server_of(request)
    model = state.check_model(body.model)
    body.check()
    with client_names(max_new_tokens=body.length_name):
        plan = await aside(request, plan_chat, state, body.ask())
        ask = body.cut(plan.ask)
        generation = await Generation.start(
            state,
            request,
            [ask],
            model=model,
            stream=bool(body.stream),
            rids=[] if body.rid is None else [body.rid],
            prompt=plan.prompt,
        )
    head = {"id": new_id("chatcmpl-"), "created": int(time.time()), "model": model}
    if body.stream:
        stream = ChatStream(state.engine.tokenizer, body, plan, ask, generation, head)
        return await EventStream.open(request, stream.events(), generation.abort, error_event)
    [results] = await generation.results(request)
    counts = Counts([len(ask.ids)])
    answer = {
        **head,
        "object": "chat.completion",
        "choices": [_choice(state.engine.tokenizer, body, plan, r, counts) for r in results],
        "usage": counts.payload(),
    }
    if body.prompt_logprobs is not None:
        known = [e for e in results[0].prompt_logprobs or () if e.token_id >= 0]
        top = body.prompt_logprobs
        answer["prompt_logprobs"] = prompt_entries(state.engine.tokenizer, known, top)
    if body.return_token_ids:
        answer["prompt_token_ids"] = list(ask.ids)
    return Json(answer)


def _choice(
    tokenizer: Tokenizer, body: ChatBody, plan: ChatPlan, result: GenerateResult, counts: Counts
) -> dict[str, Any]:
    turn, parser = plan.turn(), plan.parser()
    turn.feed(parser.feed(result.text))
    turn.feed(parser.finish())
    counts.add_tokens(len(result.token_ids))
    reasoning_tokens = count_reasoning(tokenizer.token_bytes, result.token_ids, turn)
    counts.ended(result.index, result.usage, reasoning_tokens)
    choice: dict[str, Any] = {
        "index": result.choice,
        "message": _message(turn, plan),
        "logprobs": None,
        "finish_reason": finish_reason(result.finish_reason, turn),
        "matched_stop": result.finish_reason.matched,
    }
    if body.top_num is not None:
        entries = result.logprobs or []
        shown = entries[: num_shown(len(entries), result.finish_reason, plan.ask.params)]
        choice["logprobs"] = {
            "content": chat_entries(tokenizer, shown, body.top_num),
            "refusal": None,
        }
    if body.return_token_ids:
        choice["token_ids"] = result.token_ids
    return choice


def _message(turn: Turn, plan: ChatPlan) -> dict[str, Any]:
    message: dict[str, Any] = {
        "role": "assistant",
        "content": turn.content or (None if turn.calls else ""),
        "refusal": None,
    }
    if plan.reader.reasoning_parser is not None:
        message["reasoning_content"] = turn.reasoning or None
    if turn.calls:
        message["tool_calls"] = [
            {
                "index": index,
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for index, call in enumerate(turn.calls)
        ]
    return message
