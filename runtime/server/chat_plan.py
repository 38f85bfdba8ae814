"""From a chat request of any API to what the engine is asked, and to what reads its answer."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from rtlang.errors import InvalidParameter, InvalidPrompt
from rtlang.runtime.job import Ask, CallOptions
from rtlang.runtime.parsers.events import OutputParser
from rtlang.runtime.sampling_params import SamplingParams
from rtlang.runtime.server.protocol.constraint import (
    Constrained,
    Thinking,
    behind_reasoning,
    with_tools,
)
from rtlang.runtime.server.protocol.messages import read_messages
from rtlang.runtime.server.protocol.reader import (
    Reader,
    control_of,
    needs_control,
    parsers_of,
    tool_parser_of,
)
from rtlang.runtime.server.protocol.response_format import one_of, read_response_format
from rtlang.runtime.server.protocol.tools import Tools, read_tools
from rtlang.runtime.server.state import ServerState
from rtlang.runtime.server.turns import Turn
from rtlang.runtime.tools.describe import FORMATS, in_words, places_of
from rtlang.runtime.tools.formats import PLAIN

#: What ``render_chat`` takes itself; each has a field of its own in the requests, or none.
_NOT_FOR_TEMPLATES = frozenset(
    {"self", "messages", "tools", "add_generation_prompt", "continue_final_message"}
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChatAsk:
    """What a chat request asks, in OpenAI's words. Nothing in it needs to be right.

    messages               roles system, developer, user, assistant, tool
    tools                  ``{"type": "function", "function": {...}}``
    tool_choice            none | auto | required | {"type": "function", "function": {"name"}}
    sampling               under the names of ``SamplingParams.parse``, constraints included; the
                           length not given: to the end of the context
    separate_reasoning     False: what the model thinks stays in the content, as it writes it
    input_ids              the prompt as ids; then there are no messages
    """

    messages: Sequence[Mapping[str, Any]] = ()
    tools: Sequence[Mapping[str, Any]] = ()
    tool_choice: str | Mapping[str, Any] = "auto"
    parallel_tool_calls: bool = True
    response_format: Mapping[str, Any] | None = None
    sampling: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    chat_template_kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    continue_final_message: bool = False
    add_generation_prompt: bool = True
    separate_reasoning: bool = True
    options: CallOptions = dataclasses.field(default_factory=CallOptions)
    input_ids: Sequence[int] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChatPlan:
    """``ask``: for ``Generation.start``. ``prompt``: the whole prompt as text, for operators."""

    ask: Ask
    prompt: str
    reader: Reader

    def parser(self) -> OutputParser:
        """A new one; each choice of the answer needs its own."""
        return self.reader.parser()

    def turn(self) -> Turn:
        """A new one to collect a choice in."""
        return Turn(short_ids=self.reader.tool_parser == "mistral")


@dataclasses.dataclass(frozen=True, slots=True)
class Prompt:
    """``rendered`` is what the template wrote, "" for a prompt of ids."""

    ids: list[int]
    rendered: str


def plan_chat(state: ServerState, ask: ChatAsk) -> ChatPlan:
    """Raises a ``RequestError`` for everything that can be refused before it is sent, save what
    ``Engine.submit`` and the compiling of its constraint refuse."""
    tokenizer = state.engine.tokenizer
    own = parsers_of(state.config, tokenizer)
    tools = read_tools(ask.tools, ask.tool_choice)
    tool_parser = tool_parser_of(own, tokenizer) if tools.parameters else None
    params = SamplingParams.parse({"max_new_tokens": None, **ask.sampling})
    grammar = one_of(params.grammar, read_response_format(ask.response_format))
    prompt = chat_prompt(state, ask, tools=tools)
    thinking = Thinking.of(own.reasoning, prompt.rendered)
    reader = Reader(
        tool_parser=tool_parser if tools.choice != "none" else None,
        reasoning_parser=own.reasoning if ask.separate_reasoning else None,
        in_reasoning=thinking.opened and ask.separate_reasoning,
        parameters=tools.parameters,
    )
    if reader.tool_parser is not None:
        parallel = ask.parallel_tool_calls
        made = with_tools(reader, tools, grammar, thinking, tokenizer, parallel=parallel)
    elif grammar is not None:
        made = behind_reasoning(reader, grammar, thinking, tokenizer)
    else:
        made = Constrained(reader)
    reader = made.reader
    changes: dict[str, Any] = {"grammar": made.grammar}
    if ask.sampling.get("skip_special_tokens") is None and needs_control(reader, tokenizer):
        changes["skip_special_tokens"] = False
        reader = dataclasses.replace(reader, control=control_of(tokenizer))
    params = msgspec.structs.replace(params, **changes)
    text = tokenizer.plain(prompt.rendered) + reader.lead if prompt.rendered else ""
    ids = [*prompt.ids, *made.lead_ids]
    return ChatPlan(ask=Ask(ids, params, ask.options, chat=True), prompt=text, reader=reader)


def chat_prompt(state: ServerState, ask: ChatAsk, *, tools: Tools) -> Prompt:
    """The prompt without what a constraint puts behind it."""
    tokenizer = state.engine.tokenizer
    if ask.input_ids is not None:
        if ask.messages:
            raise InvalidPrompt("give one of messages and input_ids", param="input_ids")
        return Prompt(list(ask.input_ids), "")
    for name in ask.chat_template_kwargs:
        if name in _NOT_FOR_TEMPLATES:
            text = f"chat_template_kwargs cannot have {name!r}: it is no variable of a template"
            raise InvalidParameter(text, param="chat_template_kwargs")
    messages = read_messages(ask.messages)
    variables = dict(ask.chat_template_kwargs)
    if tools.schemas or any(m["role"] == "tool" or "tool_calls" in m for m in messages):
        own = parsers_of(state.config, tokenizer)
        places = places_of(tokenizer)
        form = FORMATS.get(own.tool or "", PLAIN)
        messages = in_words(messages, tools.schemas, places, form)
        if tools.schemas and places.schemas:
            variables["tools"] = list(tools.schemas)
    rendered = tokenizer.render_chat(
        messages,
        add_generation_prompt=ask.add_generation_prompt and not ask.continue_final_message,
        continue_final_message=ask.continue_final_message,
        **variables,
    )
    return Prompt(tokenizer.encode_rendered(rendered), rendered)
