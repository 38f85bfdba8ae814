"""Messages of a chat, as clients send them, made ready for the model's template."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rtlang.errors import InvalidParameter, InvalidPrompt, Unsupported
from rtlang.runtime.server.body import check_json

ROLES = {role: role for role in ("system", "user", "assistant", "tool")} | {"developer": "system"}
#: What a message may have, besides its role. What else a template reads of turns is not known.
FIELDS = frozenset(
    {"content", "name", "tool_calls", "tool_call_id", "refusal", "reasoning_content"}
)
#: Clients send answers back as they came; these say nothing that a model reads.
WITHOUT_EFFECT = frozenset({"annotations", "id", "index", "type", "status"})
#: Content parts whose text is under the part's own name.
TEXT_PARTS = frozenset({"text", "refusal"})


def read_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Copies: roles checked ("developer" is "system"), text parts joined, null left out (of the
    content: empty text), the arguments of calls parsed.

    Raises ``InvalidPrompt`` or ``InvalidParameter`` that names the message, and ``Unsupported``
    for a part that is no text.
    """
    if not messages:
        raise InvalidPrompt("messages is empty: a chat needs at least one", param="messages")
    return [_read(f"messages[{at}]", message) for at, message in enumerate(messages)]


def _read(where: str, message: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise _bad(where, f"is no object but {type(message).__name__}")
    role = message.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise _bad(f"{where}.role", f"is {role!r}, none of {', '.join(ROLES)}")
    found: dict[str, Any] = {"role": ROLES[role]}
    for name, value in message.items():
        if name == "role" or value is None or name in WITHOUT_EFFECT:
            continue
        if name not in FIELDS:
            raise InvalidParameter(f"unknown field {name!r} in {where}", param=f"{where}.{name}")
        found[name] = value
    refusal = found.pop("refusal", None)
    content = found.get("content", refusal)
    found["content"] = _content(f"{where}.content", content)
    for name in ("name", "tool_call_id", "reasoning_content"):
        if not isinstance(found.get(name, ""), str):
            raise _bad(f"{where}.{name}", "is no text")
    if "tool_calls" in found:
        found["tool_calls"] = _calls(f"{where}.tool_calls", role, found["tool_calls"])
        if not found["tool_calls"]:
            del found["tool_calls"]
    return found


def _content(where: str, content: Any) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list | tuple):
        raise _bad(where, "is neither text nor a list of parts")
    return "".join(_part(f"{where}[{at}]", part) for at, part in enumerate(content))


def _part(where: str, part: Any) -> str:
    if not isinstance(part, Mapping):
        raise _bad(where, f"is no object but {type(part).__name__}")
    kind = part.get("type")
    if not isinstance(kind, str) or kind not in TEXT_PARTS:
        raise Unsupported(f"{where}: content parts of type {kind!r} are not built", param=where)
    text = part.get(kind)
    if not isinstance(text, str):
        raise _bad(where, f"of type {kind!r} has no {kind}")
    return text


def _calls(where: str, role: str, calls: Any) -> list[dict[str, Any]]:
    if role != "assistant":
        raise _bad(where, f"belongs to the assistant, not to {role!r}")
    if not isinstance(calls, list | tuple):
        raise _bad(where, "is no list")
    return [_call(f"{where}[{at}]", call) for at, call in enumerate(calls)]


def _call(where: str, call: Any) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise _bad(where, "has no function with a name")
    if call.get("type", "function") != "function":
        kind = call["type"]
        raise Unsupported(f"{where}: calls of type {kind!r} are not built", param=where)
    found: dict[str, Any] = {"type": "function"}
    if call.get("id") is not None:
        if not isinstance(call["id"], str):
            raise _bad(f"{where}.id", "is no text")
        found["id"] = call["id"]
    arguments = _arguments(f"{where}.function.arguments", function.get("arguments"))
    return {**found, "function": {"name": function["name"], "arguments": arguments}}


def _arguments(where: str, given: Any) -> dict[str, Any]:
    """Templates want an object; clients send its JSON text, "" for none."""
    if isinstance(given, str):
        try:
            given = json.loads(given) if given.strip() else {}
        except (ValueError, RecursionError) as error:
            raise _bad(where, f"is no JSON: {error}") from error
        check_json(given)
    if given is None:
        return {}
    if not isinstance(given, dict):
        raise _bad(where, "is no JSON object")
    return given


def _bad(where: str, what: str) -> InvalidPrompt:
    return InvalidPrompt(f"{where} {what}", param=where)
