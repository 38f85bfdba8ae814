"""A request of Anthropic's Messages API, as a chat of ours."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import Field

from rtlang.errors import InvalidParameter
from rtlang.runtime.job import CallOptions
from rtlang.runtime.server.body import Body
from rtlang.runtime.server.chat_plan import ChatAsk
from rtlang.runtime.server.reading import (
    flag,
    json_text,
    mapping,
    not_built,
    one_of,
    only,
    sequence,
    shown,
    string,
    wrong,
)

#: Their levels as chat templates know them.
_EFFORTS = {"low": "low", "medium": "medium", "high": "high", "xhigh": "high", "max": "high"}
#: Between two turns of the same role, which the API makes one.
_BETWEEN = "\n\n"


_IGNORED = frozenset({"cache_control", "user_profile_id", "workspace_id"})
_NOT_BUILT = {
    "container": "code execution is not built",
    "mcp_servers": "remote tools are not built",
    "context_management": "context management is not built",
    "diagnostics": "cache diagnostics are not built",
    "inference_geo": "regions are not built",
    "speed": "speeds are not built",
}


class CountBody(Body):
    """What makes the prompt. See docs/server.md for what is accepted without effect."""

    WITHOUT_EFFECT: ClassVar[frozenset[str]] = _IGNORED
    NOT_BUILT: ClassVar[dict[str, str]] = _NOT_BUILT

    model: str
    messages: list[dict[str, Any]]
    system: str | list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: dict[str, Any] | None = None
    thinking: dict[str, Any] | None = None
    output_config: dict[str, Any] | None = None


class MessageBody(Body):
    """The same, and how to answer it."""

    WITHOUT_EFFECT: ClassVar[frozenset[str]] = _IGNORED | {"metadata", "service_tier"}
    NOT_BUILT: ClassVar[dict[str, str]] = _NOT_BUILT

    model: str
    messages: list[dict[str, Any]]
    system: str | list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: dict[str, Any] | None = None
    thinking: dict[str, Any] | None = None
    output_config: dict[str, Any] | None = None
    max_tokens: Annotated[int, Field(strict=True)]
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: Annotated[int, Field(strict=True)] | None = None


PromptBody = CountBody | MessageBody


def chat_ask(body: PromptBody) -> ChatAsk:
    """Raises ``RequestError``: whatever is unknown, wrong or not built, by its place."""
    messages = _messages(body)
    last = messages[-1]
    if last["role"] == "assistant" and "tool_calls" in last:
        raise wrong("messages", "the last one calls tools, whose results are missing")
    choice, parallel = _tool_choice(body.tool_choice)
    response_format, variables = _output_config(body.output_config)
    return ChatAsk(
        messages=messages,
        tools=[_tool(tool, f"tools.{i}") for i, tool in enumerate(body.tools or ())],
        tool_choice=choice,
        parallel_tool_calls=parallel,
        response_format=response_format,
        sampling=_sampling(body) if isinstance(body, MessageBody) else {},
        chat_template_kwargs={**_thinking(body.thinking), **variables},
        continue_final_message=last["role"] == "assistant",
        options=CallOptions(),
    )


def _sampling(body: MessageBody) -> dict[str, Any]:
    if body.max_tokens < 0:
        raise wrong("max_tokens", f"must be at least 0, got {shown(body.max_tokens)}")
    if body.temperature is not None and not 0 <= body.temperature <= 1:
        raise wrong("temperature", f"must be in [0, 1], got {body.temperature}")
    budget = (body.thinking or {}).get("budget_tokens")
    if isinstance(budget, int) and budget >= body.max_tokens:
        raise wrong("thinking.budget_tokens", "must be less than max_tokens")
    found = body.given("temperature", "top_p", "top_k")
    if body.top_k == 0:
        found["top_k"] = -1  # 0 means all there
    if body.stop_sequences is not None:
        found["stop"] = body.stop_sequences
    return {**found, "max_new_tokens": body.max_tokens}


def shows_thinking(body: PromptBody) -> bool:
    """Whether the thoughts' text is wanted; else the answer says only that there were some."""
    return (body.thinking or {}).get("display") != "omitted"


def _messages(body: PromptBody) -> list[dict[str, Any]]:
    """In OpenAI's form. Raises ``InvalidParameter``."""
    if not body.messages:
        raise InvalidParameter("messages must not be empty", param="messages")
    messages: list[dict[str, Any]] = []
    if body.system:
        messages.append({"role": "system", "content": _text(body.system, "system")})
    names: dict[str, str] = {}  # of the tools, by the id of the call
    for i, given in enumerate(body.messages):
        where = f"messages.{i}"
        only(given, where, "role", "content")
        role = one_of(given.get("role"), f"{where}.role", ("user", "assistant", "system"))
        content = given.get("content")
        if role == "system":
            messages.append({"role": role, "content": _text(content, f"{where}.content")})
        elif role == "user":
            _add_user(messages, _blocks(content, f"{where}.content"), names)
        else:
            _add_assistant(messages, _blocks(content, f"{where}.content"), names)
    return messages


def _blocks(content: Any, where: str) -> list[tuple[str, dict[str, Any], str]]:
    """(type, block, its place) of each."""
    if isinstance(content, str):
        return [("text", {"text": content}, where)]
    found = []
    for i, block in enumerate(sequence(content, where)):
        at = f"{where}.{i}"
        kind = string(mapping(block, at).get("type"), f"{at}.type")
        found.append((kind, block, at))
    return found


def _text(content: Any, where: str) -> str:
    """Of a text, or of blocks that are all text."""
    return "".join(_text_of(*block) for block in _blocks(content, where))


def _text_of(kind: str, block: dict[str, Any], where: str) -> str:
    if kind != "text":
        raise not_built(f"{where}.type", f"content of type {shown(kind)} is")
    only(block, where, "type", "text", "cache_control", "citations")
    if block.get("citations"):
        raise not_built(f"{where}.citations", "citations are")
    return string(block.get("text"), f"{where}.text")


def _add_user(
    messages: list[dict[str, Any]],
    blocks: list[tuple[str, dict[str, Any], str]],
    names: dict[str, str],
) -> None:
    between = _BETWEEN
    if not blocks:
        messages.append({"role": "user", "content": ""})
    for kind, block, where in blocks:
        if kind == "tool_result":
            messages.append(_result(block, where, names))
        else:
            text = _text_of(kind, block, where)
            if messages and messages[-1]["role"] == "user":
                messages[-1]["content"] += between + text
            else:
                messages.append({"role": "user", "content": text})
            between = ""  # of one message, nothing


def _result(block: dict[str, Any], where: str, names: dict[str, str]) -> dict[str, Any]:
    only(block, where, "type", "tool_use_id", "content", "is_error", "cache_control")
    call = string(block.get("tool_use_id"), f"{where}.tool_use_id")
    if call not in names:
        raise wrong(f"{where}.tool_use_id", f"no tool_use before it has the id {shown(call)}")
    content = block.get("content")
    text = "" if content is None else _text(content, f"{where}.content")
    if flag(block.get("is_error"), f"{where}.is_error", False):
        text = f"Error: {text}"  # a template has no other place for it
    return {"role": "tool", "tool_call_id": call, "name": names[call], "content": text}


def _add_assistant(
    messages: list[dict[str, Any]],
    blocks: list[tuple[str, dict[str, Any], str]],
    names: dict[str, str],
) -> None:
    texts, thoughts, calls = [], [], []
    for kind, block, where in blocks:
        if kind == "tool_use":
            calls.append(_call(block, where, names))
        elif kind == "thinking":
            only(block, where, "type", "thinking", "signature")
            thoughts.append(string(block.get("thinking"), f"{where}.thinking"))
        else:
            texts.append(_text_of(kind, block, where))
    turn: dict[str, Any] = {"role": "assistant", "content": "".join(texts)}
    if thoughts:
        turn["reasoning_content"] = "".join(thoughts)
    if calls:
        turn["tool_calls"] = calls
    before = messages[-1] if messages else {}
    if before.get("role") != "assistant":
        messages.append(turn)
        return
    for name in ("content", "reasoning_content"):
        parts = [part for part in (before.get(name), turn.get(name)) if part]
        if parts:
            before[name] = _BETWEEN.join(parts)
    if calls:
        before["tool_calls"] = before.get("tool_calls", []) + calls


def _call(block: dict[str, Any], where: str, names: dict[str, str]) -> dict[str, Any]:
    only(block, where, "type", "id", "name", "input", "cache_control", "caller")
    call = string(block.get("id"), f"{where}.id")
    if call in names:
        raise wrong(f"{where}.id", f"the id {shown(call)} belongs to another call")
    names[call] = string(block.get("name"), f"{where}.name")
    given = mapping(block.get("input"), f"{where}.input")
    function = {"name": names[call], "arguments": json_text(given, f"{where}.input")}
    return {"id": call, "type": "function", "function": function}


def _tool(tool: dict[str, Any], where: str) -> dict[str, Any]:
    kind = tool.get("type")
    if kind not in (None, "custom"):
        raise not_built(f"{where}.type", f"tools of type {shown(kind)} are")
    # Inputs are streamed as they come whether it is asked or not.
    known = ("type", "name", "description", "input_schema", "cache_control", "strict")
    only({**tool, "eager_input_streaming": None}, where, *known)
    function: dict[str, Any] = {
        "name": string(tool.get("name"), f"{where}.name"),
        "parameters": mapping(tool.get("input_schema"), f"{where}.input_schema"),
    }
    if tool.get("description") is not None:
        function["description"] = string(tool["description"], f"{where}.description")
    if tool.get("strict") is not None:
        function["strict"] = flag(tool["strict"], f"{where}.strict", False)
    return {"type": "function", "function": function}


def _tool_choice(given: dict[str, Any] | None) -> tuple[str | dict[str, Any], bool]:
    """OpenAI's form of it, and whether a turn may have several calls."""
    if given is None:
        return "auto", True
    where = "tool_choice"
    only(given, where, "type", "name", "disable_parallel_tool_use")
    kind = one_of(given.get("type"), f"{where}.type", ("auto", "any", "tool", "none"))
    single = flag(given.get("disable_parallel_tool_use"), f"{where}.{_SINGLE}", False)
    if kind == "tool":
        name = string(given.get("name"), f"{where}.name")
        return {"type": "function", "function": {"name": name}}, not single
    return "required" if kind == "any" else kind, not single


_SINGLE = "disable_parallel_tool_use"


def _thinking(given: dict[str, Any] | None) -> dict[str, Any]:
    """Variables of the chat template. The budget is checked and binds nobody: ``max_tokens``
    bounds thoughts and answer together."""
    if given is None:
        return {}
    where = "thinking"
    only(given, where, "type", "budget_tokens", "display")
    kind = one_of(given.get("type"), f"{where}.type", ("enabled", "disabled", "adaptive"))
    if given.get("display") is not None:
        one_of(given["display"], f"{where}.display", ("summarized", "omitted"))
    budget = given.get("budget_tokens")
    if kind == "enabled" and (type(budget) is not int or budget < 1024):
        raise wrong(f"{where}.budget_tokens", "must be an integer of at least 1024")
    if kind != "enabled" and budget is not None:
        raise wrong(f"{where}.budget_tokens", "belongs to the type enabled")
    return {"enable_thinking": kind != "disabled"}


def _output_config(
    given: dict[str, Any] | None,
) -> tuple[dict[str, Any] | None, dict[str, Any]]:
    """The response format, and variables of the chat template."""
    if given is None:
        return None, {}
    where = "output_config"
    only(given, where, "format", "effort")
    variables: dict[str, Any] = {}
    if given.get("effort") is not None:
        effort = one_of(given["effort"], f"{where}.effort", tuple(_EFFORTS))
        variables["reasoning_effort"] = _EFFORTS[effort]
    wanted = given.get("format")
    if wanted is None:
        return None, variables
    where = f"{where}.format"
    only(mapping(wanted, where), where, "type", "schema")
    one_of(wanted.get("type"), f"{where}.type", ("json_schema",))
    schema = mapping(wanted.get("schema"), f"{where}.schema")
    described = {"name": "output", "schema": schema, "strict": True}
    return {"type": "json_schema", "json_schema": described}, variables
