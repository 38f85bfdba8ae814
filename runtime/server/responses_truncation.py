"""What `truncation` says of a conversation that is too long: refuse it, or drop its start."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from rtlang.runtime.server.chat_plan import ChatPlan, plan_chat
from rtlang.runtime.server.responses_request import ResponseBody, chat_ask
from rtlang.runtime.server.state import ServerState


def plan_response(
    state: ServerState, body: ResponseBody, messages: Sequence[dict[str, Any]]
) -> ChatPlan:
    """With ``truncation="auto"``, turns are dropped from the start until prompt and answer fit
    the context: as few as may be, up to a turn of the user, and never the system turns that
    stand first. What does not fit even so is refused when it is sent. Raises ``RequestError``."""
    plan = plan_chat(state, chat_ask(body, messages))
    context = state.engine.info.context_length
    answer = min(body.max_output_tokens or 1, context // 2)
    if body.truncation != "auto" or len(plan.ask.ids) + answer <= context:
        return plan
    first = [*itertools.takewhile(lambda m: m["role"] in ("system", "developer"), messages)]
    starts = [at for at, message in enumerate(messages) if message["role"] == "user"][1:]
    low, high = 0, len(starts)  # whatever starts before ``low`` is too long
    while low < high:
        middle = (low + high) // 2
        shorter = plan_chat(state, chat_ask(body, [*first, *messages[starts[middle] :]]))
        if len(shorter.ask.ids) + answer <= context:
            plan, high = shorter, middle
        else:
            low = middle + 1
    return plan
