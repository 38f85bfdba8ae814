"""Messages on their way into a chat template: checked, normalised, control tokens made harmless.

A control token that somebody spells inside a message must stay text. Its first character is
followed by ``MARK`` (a private-use character) before the template sees it; after rendering the
marked text can be told from the template's own control tokens.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rtlang.errors import ChatTemplateError, InvalidPrompt

MARK = "\uf8e5"


class ControlTokens:
    """The control tokens' spellings, and what to do where one appears."""

    def __init__(self, spellings: Iterable[str]) -> None:
        ordered = sorted({s for s in spellings if s}, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, ordered)) or r"(?!)")

    def defuse(self, text: str) -> str:
        """Mark every control token in ``text``; a MARK of the text itself is doubled."""
        text = text.replace(MARK, MARK + MARK)
        return self._pattern.sub(lambda m: m[0][0] + MARK + m[0][1:], text)

    def plain(self, text: str) -> str:
        """``text`` without marks: what the writer wrote."""
        if MARK not in text:
            return text
        return re.sub(f"{MARK}({MARK}?)", r"\1", text)

    def starts(self, text: str) -> bool:
        return self._pattern.match(text) is not None

    def pieces(self, text: str) -> list[tuple[str, bool]]:
        """Cut a marked text at its live control tokens: (plain text, is a control token)."""
        found: list[tuple[str, bool]] = []
        end = 0
        for match in self._pattern.finditer(text):
            if match.start() > end:
                found.append((self.plain(text[end : match.start()]), False))
            found.append((match[0], True))
            end = match.end()
        if end < len(text):
            found.append((self.plain(text[end:]), False))
        return found


def prepare_messages(
    messages: Sequence[Mapping[str, Any]], defuse: Callable[[str], str]
) -> list[dict[str, Any]]:
    """Copies with text contents joined, null as empty, tool arguments parsed, text defused.

    Raises ``InvalidPrompt`` for what is no message, naming it.
    """
    if not messages:
        raise InvalidPrompt("a chat needs at least one message")
    return [_prepare(i, message, defuse) for i, message in enumerate(messages)]


def _prepare(
    index: int, message: Mapping[str, Any], defuse: Callable[[str], str]
) -> dict[str, Any]:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise InvalidPrompt(f"message {index} has no role")
    prepared = {k: _defused(v, defuse) for k, v in message.items() if k != "content"}
    prepared["role"] = message["role"]
    prepared["content"] = defuse(_content_text(index, message.get("content")))
    if prepared.get("tool_calls"):
        prepared["tool_calls"] = [_parse_call(call) for call in prepared["tool_calls"]]
    return prepared


def _defused(value: Any, defuse: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return defuse(value)
    if isinstance(value, Mapping):
        return {k: _defused(v, defuse) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_defused(v, defuse) for v in value]
    return value


def _content_text(index: int, content: Any) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list | tuple):
        raise InvalidPrompt(f"message {index}: content must be text or a list of parts")
    texts = []
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind != "text" or not isinstance(part.get("text"), str):
            raise InvalidPrompt(f"message {index}: content part of type {kind!r} is not supported")
        texts.append(part["text"])
    return "".join(texts)


def _parse_call(call: dict[str, Any]) -> dict[str, Any]:
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"])
    except json.JSONDecodeError as error:
        raise InvalidPrompt(f"a tool call's arguments are no JSON: {error}") from error
    return {**call, "function": {**function, "arguments": arguments}}


def no_template() -> ChatTemplateError:
    return ChatTemplateError(
        "the tokenizer has no chat template: pass a plain text prompt, or a model folder with a "
        "chat_template.jinja"
    )
