"""Messages on their way into a chat template: checked, normalised, control tokens made harmless.

A control token that somebody spells inside a message must stay text. ``MARK + BREAK`` (private-use
characters) is put before its last character before the template sees it; in the rendered text the
template's own control tokens are those without. A MARK of the text itself is written twice.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rtlang.errors import ChatTemplateError, InvalidPrompt

MARK = "\uf8e5"
BREAK = "\uf8e6"

Defuse = Callable[[str], str]


class ControlTokens:
    """The control tokens' spellings, and what to do where one appears."""

    def __init__(self, spellings: Iterable[str]) -> None:
        tokens = sorted({s for s in spellings if s}, key=len, reverse=True)
        token = "|".join(map(re.escape, tokens)) or "(?!)"
        self._spelled = re.compile(f"(?=({token}))")
        # What begins where a token begins ends there too: the lengths, by the longest.
        self._lengths = {t: [len(p) for p in tokens if t.startswith(p)] for t in tokens}
        # In a marked text, left to right: a mark and what it guards, or a live control token.
        self._units = re.compile(f"{MARK}(?:{MARK}|{BREAK}.)|({token})", re.DOTALL)
        self._marks = re.compile(f"{MARK}(?:{BREAK}|({MARK}))")

    def defuse(self, text: str) -> str:
        """Mark every control token in ``text``, overlapping ones too. ``plain`` undoes it.

        What begins a text begins it defused: ``defuse(a + b).startswith(defuse(a))``.
        """
        last_chars = {
            match.start() + length - 1
            for match in self._spelled.finditer(text)
            for length in self._lengths[match[1]]
        }
        borders = [0, *sorted(last_chars), len(text)]
        parts = (self.escape(text[a:b]) for a, b in itertools.pairwise(borders))
        return f"{MARK}{BREAK}".join(parts)

    def escape(self, text: str) -> str:
        """``text`` as ``pieces`` takes it, with its control tokens live."""
        return text.replace(MARK, MARK + MARK)

    def plain(self, text: str) -> str:
        """``text`` without marks: what the writer wrote."""
        if MARK not in text:
            return text
        return self._marks.sub(lambda match: match[1] or "", text)

    def pieces(self, text: str) -> list[tuple[str, bool]]:
        """Cut a marked text at its live control tokens: [(plain text, is a control token)]."""
        found: list[tuple[str, bool]] = []
        end = 0
        for match in self._units.finditer(text):
            if match[1] is None:
                continue
            if match.start() > end:
                found.append((self.plain(text[end : match.start()]), False))
            found.append((match[1], True))
            end = match.end()
        if end < len(text):
            found.append((self.plain(text[end:]), False))
        return found


def prepare_messages(messages: Sequence[Mapping[str, Any]], defuse: Defuse) -> list[dict[str, Any]]:
    """Copies, ready for a template: text parts joined in order, tool arguments parsed, all text
    defused. A content of null is empty text; any other field of null is left out.

    Raises ``InvalidPrompt`` for what is no message, naming it.
    """
    if not messages:
        raise InvalidPrompt("a chat needs at least one message")
    return [defused(_prepare(i, message), defuse) for i, message in enumerate(messages)]


def defused(value: Any, defuse: Defuse) -> Any:
    """A copy of a JSON-like value with every string in it, keys included, defused."""
    if isinstance(value, str):
        return defuse(value)
    if isinstance(value, Mapping):
        return {defused(k, defuse): defused(v, defuse) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [defused(v, defuse) for v in value]
    return value


def _prepare(index: int, message: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise InvalidPrompt(f"message {index} is no mapping but {type(message).__name__}")
    if not isinstance(message.get("role"), str):
        raise InvalidPrompt(f"message {index} has no role")
    prepared = {k: v for k, v in message.items() if v is not None}
    prepared["content"] = _content_text(index, message.get("content"))
    if "tool_calls" in prepared:
        calls = prepared["tool_calls"]
        if not isinstance(calls, list | tuple):
            raise InvalidPrompt(f"message {index}: tool_calls must be a list")
        prepared["tool_calls"] = [_parse_call(index, call) for call in calls]
    return prepared


def _content_text(index: int, content: Any) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list | tuple):
        raise InvalidPrompt(f"message {index}: content must be text or a list of parts")
    texts: list[str] = []
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
        if kind != "text":
            raise InvalidPrompt(f"message {index}: content part of type {kind!r} is not supported")
        if not isinstance(part.get("text"), str):
            raise InvalidPrompt(f"message {index}: a content part of type 'text' has no text")
        texts.append(part["text"])
    return "".join(texts)


def _parse_call(index: int, call: Any) -> dict[str, Any]:
    """The call with its arguments as an object, as templates expect them; "" is no arguments.

    Both forms that templates know: ``{"function": {"name", "arguments"}}`` and the inner alone.
    """
    if isinstance(call, Mapping) and "function" in call:
        return {**call, "function": _parse_function(index, call["function"])}
    return _parse_function(index, call)


def _parse_function(index: int, function: Any) -> dict[str, Any]:
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise InvalidPrompt(f"message {index}: a tool call needs a function with a name")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments) if arguments.strip() else {}
        except json.JSONDecodeError as error:
            raise InvalidPrompt(
                f"message {index}: the arguments of {function['name']!r} are no JSON: {error}"
            ) from error
    return {**function, "arguments": {} if arguments is None else arguments}


def no_template() -> ChatTemplateError:
    return ChatTemplateError(
        "the tokenizer has no chat template: pass a plain text prompt, put a chat_template.jinja "
        "into the model's folder, or give HFTokenizer(path, chat_template=...) a Jinja text"
    )
