"""A request of OpenAI's Responses API, as a chat of ours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

from pydantic import Field

from rtlang.errors import InvalidParameter, InvalidPrompt
from rtlang.runtime.job import CallOptions
from rtlang.runtime.messages import LogprobOptions
from rtlang.runtime.server.body import Body
from rtlang.runtime.server.chat_plan import ChatAsk
from rtlang.runtime.server.reading import (
    flag,
    mapping,
    not_built,
    one_of,
    only,
    sequence,
    shown,
    string,
    wrong,
)

#: Of ``include``: log-probabilities of the text.
LOGPROBS = "message.output_text.logprobs"
#: Nothing to encrypt: reasoning items carry their text.
_ENCRYPTED = "reasoning.encrypted_content"
_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
_SUMMARIES = ("auto", "concise", "detailed")
#: Between two texts of the assistant in a row, which become one turn.
_BETWEEN = "\n\n"

Metadata = dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]]
Int = Annotated[int, Field(strict=True)]


class ResponseBody(Body):
    """``metadata`` comes back as it was; the others without effect are told in docs/server.md."""

    WITHOUT_EFFECT: ClassVar[frozenset[str]] = frozenset(
        {
            "prompt_cache_key",
            "prompt_cache_retention",
            "prompt_cache_options",
            "safety_identifier",
            "stream_options",
            "max_tool_calls",  # of tools that the server runs: there are none
        }
    )
    NOT_BUILT: ClassVar[dict[str, str]] = {
        "conversation": "conversations are not built; see previous_response_id",
        "prompt": "stored prompts are not built",
        "context_management": "context management is not built",
        "moderation": "moderation is not built",
        "background_options": "background responses are not built",
        "access_programs": "access programs are not built",
        "image": "images are not built",
    }

    model: str | None = None
    input: str | list[dict[str, Any]] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    stream: bool | None = None
    background: bool | None = None
    max_output_tokens: Int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_logprobs: Annotated[Int, Field(ge=0, le=20)] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning: dict[str, Any] | None = None
    text: dict[str, Any] | None = None
    include: list[str] | None = None
    metadata: Annotated[Metadata, Field(max_length=16)] | None = None
    truncation: str | None = None
    service_tier: str | None = None
    user: str | None = None

    @property
    def wants_logprobs(self) -> bool:
        return LOGPROBS in (self.include or ()) or bool(self.top_logprobs)

    @property
    def stored(self) -> bool:
        return self.store is not False


def chat_ask(body: ResponseBody, messages: Sequence[dict[str, Any]]) -> ChatAsk:
    """``messages``: the conversation, without the instructions. Raises ``RequestError``."""
    _check_modes(body)
    sampling = body.given("temperature", "top_p")
    if body.max_output_tokens is not None:
        if body.max_output_tokens < 1:
            raise wrong("max_output_tokens", "must be at least 1")
        sampling["max_new_tokens"] = body.max_output_tokens
    system = [] if body.instructions is None else [_turn("system", body.instructions)]
    if not messages:
        raise InvalidPrompt("input holds no message", param="input")
    logprobs = LogprobOptions(top_num=body.top_logprobs or 0) if body.wants_logprobs else None
    return ChatAsk(
        messages=[*system, *messages],
        tools=[_tool(tool, f"tools.{i}") for i, tool in enumerate(body.tools or ())],
        tool_choice=_tool_choice(body.tool_choice),
        parallel_tool_calls=body.parallel_tool_calls is not False,
        response_format=_text_format(body.text),
        sampling=sampling,
        chat_template_kwargs=_reasoning(body.reasoning),
        options=CallOptions(logprobs=logprobs),
    )


def _check_modes(body: ResponseBody) -> None:
    if body.background:
        raise not_built("background", "background responses are")
    if body.truncation is not None:
        one_of(body.truncation, "truncation", ("auto", "disabled"))
    for name in body.include or ():
        if name not in (LOGPROBS, _ENCRYPTED):
            raise not_built("include", f"{shown(name)}: what it belongs to is")


# -- the conversation -----------------------------------------------------------------------


def read_input(
    given: str | list[dict[str, Any]] | None, before: Sequence[dict[str, Any]] = ()
) -> list[dict[str, Any]]:
    """Messages in OpenAI's chat form: those ``before`` (which stay as they are), then what the
    items say. Items of the assistant in a row make one turn. Raises ``RequestError``."""
    reader = _Items(before)
    if isinstance(given, str):
        reader.messages.append(_turn("user", given))
    else:
        for i, item in enumerate(given or ()):
            reader.add(item, f"input.{i}")
    if reader.waiting:
        missing = next(iter(reader.waiting))
        raise wrong("input", f"holds no function_call_output for the call {shown(missing)}")
    return reader.messages


class _Items:
    def __init__(self, before: Sequence[dict[str, Any]]) -> None:
        self.messages = list(before)
        calls = [call for message in before for call in message.get("tool_calls", ())]
        self._names = {call["id"]: call["function"]["name"] for call in calls}
        answered = {message.get("tool_call_id") for message in before}
        self.waiting = dict.fromkeys(call_id for call_id in self._names if call_id not in answered)

    def add(self, item: dict[str, Any], where: str) -> None:
        kind = item.get("type")
        match "message" if kind is None else kind:
            case "message":
                self._message(item, where)
            case "reasoning":
                text = _thoughts(item, where)
                if text:
                    self._say("reasoning_content", text)
            case "function_call":
                self._call(item, where)
            case "function_call_output":
                self._output(item, where)
            case _:
                raise not_built(f"{where}.type", f"items of type {shown(kind)} are")

    def _message(self, item: dict[str, Any], where: str) -> None:
        only(item, where, "type", "id", "status", "role", "content", "phase")
        roles = ("user", "assistant", "system", "developer")
        role = one_of(item.get("role"), f"{where}.role", roles)
        text = _content(item.get("content"), f"{where}.content")
        if role == "assistant":
            self._say("content", text)
        else:
            self.messages.append(_turn(role, text))

    def _turn_of_assistant(self) -> dict[str, Any]:
        if not self.messages or self.messages[-1]["role"] != "assistant":
            self.messages.append(_turn("assistant", ""))
        else:
            self.messages[-1] = dict(self.messages[-1])  # it may be another response's
        return self.messages[-1]

    def _say(self, name: str, text: str) -> None:
        turn = self._turn_of_assistant()
        turn[name] = _BETWEEN.join(filter(None, (turn.get(name), text)))

    def _call(self, item: dict[str, Any], where: str) -> None:
        only(item, where, "type", "id", "status", "call_id", "name", "arguments")
        call_id = string(item.get("call_id"), f"{where}.call_id")
        if call_id in self._names:
            raise wrong(f"{where}.call_id", f"{shown(call_id)} belongs to another call")
        name = self._names[call_id] = string(item.get("name"), f"{where}.name")
        self.waiting[call_id] = None
        arguments = string(item.get("arguments"), f"{where}.arguments")
        function = {"name": name, "arguments": arguments}
        turn = self._turn_of_assistant()
        call = {"id": call_id, "type": "function", "function": function}
        turn["tool_calls"] = [*turn.get("tool_calls", ()), call]

    def _output(self, item: dict[str, Any], where: str) -> None:
        only(item, where, "type", "id", "status", "call_id", "output", "name")
        call_id = string(item.get("call_id"), f"{where}.call_id")
        if call_id not in self._names:
            raise wrong(f"{where}.call_id", f"no call before it has the id {shown(call_id)}")
        self.waiting.pop(call_id, None)
        text = _content(item.get("output"), f"{where}.output")
        self.messages.append(
            {
                "role": "tool",
                "tool_call_id": call_id,
                "name": self._names[call_id],
                "content": text,
            }
        )


def _turn(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": text}


_PARTS = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}


def _content(given: Any, where: str) -> str:
    if isinstance(given, str):
        return given
    texts = []
    for i, part in enumerate(sequence(given, where)):
        at = f"{where}.{i}"
        kind = mapping(part, at).get("type")
        field = _PARTS.get(kind) if isinstance(kind, str) else None
        if field is None:
            raise not_built(f"{at}.type", f"content of type {shown(kind)} is")
        only(part, at, "type", field, "annotations", "logprobs", "prompt_cache_breakpoint")
        texts.append(string(part.get(field), f"{at}.{field}"))
    return "".join(texts)


def _thoughts(item: dict[str, Any], where: str) -> str:
    """Of a reasoning item: its text, or its summary where it has no text."""
    only(item, where, "type", "id", "status", "summary", "content", "encrypted_content")
    for name in ("content", "summary"):
        texts = [
            string(mapping(part, f"{where}.{name}.{i}").get("text"), f"{where}.{name}.{i}.text")
            for i, part in enumerate(sequence(item.get(name) or [], f"{where}.{name}"))
        ]
        if texts:
            return "".join(texts)
    if item.get("encrypted_content") is not None:
        raise not_built(f"{where}.encrypted_content", "reading encrypted reasoning is")
    return ""


# -- what the answer may be -----------------------------------------------------------------


def _tool(tool: dict[str, Any], where: str) -> dict[str, Any]:
    kind = tool.get("type")
    if kind != "function":
        raise not_built(f"{where}.type", f"tools of type {shown(kind)} are")
    deferred = flag(tool.get("defer_loading"), f"{where}.defer_loading", False)
    known = ("type", "name", "description", "parameters", "strict")
    only(tool, where, *known, *(() if deferred else ("defer_loading",)))
    rest = {name: tool[name] for name in known[1:] if tool.get(name) is not None}
    string(rest.get("name"), f"{where}.name")
    return {"type": "function", "function": rest}


def _tool_choice(given: str | dict[str, Any] | None) -> str | dict[str, Any]:
    if given is None or isinstance(given, str):
        return given or "auto"
    where = "tool_choice"
    if given.get("type") != "function":
        raise not_built(f"{where}.type", f"a choice of type {shown(given.get('type'))} is")
    only(given, where, "type", "name")
    name = string(given.get("name"), f"{where}.name")
    return {"type": "function", "function": {"name": name}}


def _text_format(given: dict[str, Any] | None) -> dict[str, Any] | None:
    """As ``response_format``, whose schema stands one level deeper."""
    if given is None:
        return None
    only(given, "text", "format", "verbosity")
    if one_of(given.get("verbosity") or "medium", "text.verbosity", _VERBOSITIES) != "medium":
        raise not_built("text.verbosity", "other verbosities than medium are")
    wanted = given.get("format")
    if wanted is None:
        return None
    where = "text.format"
    kinds = ("text", "json_object", "json_schema")
    kind = one_of(mapping(wanted, where).get("type"), f"{where}.type", kinds)
    fields = ("name", "description", "schema", "strict") if kind == "json_schema" else ()
    only(wanted, where, "type", *fields)
    if kind != "json_schema":
        return {"type": kind}
    if not isinstance(wanted.get("schema"), dict):
        raise InvalidParameter(f"{where}.schema is no JSON schema", param=f"{where}.schema")
    inner = {name: wanted[name] for name in fields if wanted.get(name) is not None}
    return {"type": kind, "json_schema": inner}


_VERBOSITIES = ("low", "medium", "high")


def _reasoning(given: dict[str, Any] | None) -> dict[str, Any]:
    """Variables of the chat template. A summary changes nothing: the reasoning comes in full."""
    if given is None:
        return {}
    only(given, "reasoning", "effort", "summary", "generate_summary")
    for name in ("summary", "generate_summary"):
        if given.get(name) is not None:
            one_of(given[name], f"reasoning.{name}", _SUMMARIES)
    if given.get("effort") is None:
        return {}
    effort = one_of(given["effort"], "reasoning.effort", _EFFORTS)
    return {"enable_thinking": False} if effort == "none" else {"reasoning_effort": effort}
