"""Tools in words: for models whose chat template has no place for tools, or for their calls."""

from __future__ import annotations

import dataclasses
import json
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from rtlang.errors import RequestError
from rtlang.runtime.tokenizer import Tokenizer
from rtlang.runtime.tools.formats import (
    DEEPSEEK_V3,
    DEEPSEEK_V31,
    LLAMA,
    MISTRAL,
    PLAIN,
    ToolFormat,
)
from rtlang.runtime.tools.style import style_of

#: Around a result in a turn of the user, where no template has a role for tools.
TAGGED = "<tool_response>\n{result}\n</tool_response>"

#: Parser of calls -> how it reads one, where that can be told in text. Others: ``PLAIN``.
FORMATS: Mapping[str, ToolFormat] = {
    "hermes": PLAIN,
    "qwen": PLAIN,
    "llama3": LLAMA,
    "mistral": MISTRAL,
    "deepseek_v3": DEEPSEEK_V3,
    "deepseek_v31": DEEPSEEK_V31,
}

_PROBE = "qxcalledzqx"


def describe(schemas: Sequence[Mapping[str, Any]], form: ToolFormat) -> str:
    """A text for a system prompt. ``schemas``: of tools, as chat templates take them."""
    lines = ["You may call these functions:"]
    lines += [json.dumps(schema["function"], ensure_ascii=False) for schema in schemas]
    lines += ["To call one, write exactly this, with its name and its arguments:"]
    return "\n".join([*lines, form.sample()])


def write_calls(calls: Sequence[Mapping[str, Any]], form: ToolFormat) -> str:
    """A turn's calls as the model would have written them. ``calls``: OpenAI's, their arguments
    parsed."""
    parts: list[str] = []
    for call in calls:
        name, arguments = call["function"]["name"], call["function"]["arguments"]
        text = json.dumps(arguments, ensure_ascii=False)
        parts.append(f"{form.begin_of(name)}{text}{form.end_of(name)}")
    return f"{form.opening}{form.separator.join(parts)}{form.closing}"


@dataclasses.dataclass(frozen=True, slots=True)
class ToolPlaces:
    """What a chat template has a place for: tools' schemas, calls in a turn of the assistant,
    and turns with results (``role`` is "tool" then, else "user")."""

    schemas: bool
    calls: bool
    role: str


_places: weakref.WeakKeyDictionary[Tokenizer, ToolPlaces] = weakref.WeakKeyDictionary()


def places_of(tokenizer: Tokenizer) -> ToolPlaces:
    """Found by rendering, once for each tokenizer."""
    found = _places.get(tokenizer)
    if found is None:
        style = style_of(tokenizer)
        found = ToolPlaces(style.describes, _shows_calls(tokenizer), style.role)
        _places[tokenizer] = found
    return found


def _shows_calls(tokenizer: Tokenizer) -> bool:
    function = {"name": _PROBE, "arguments": {}}
    call = {"type": "function", "id": "call00000", "function": function}
    turn = {"role": "assistant", "content": "", "tool_calls": [call]}
    user = {"role": "user", "content": "hi"}
    try:
        return _PROBE in tokenizer.render_chat([user, turn], add_generation_prompt=False)
    except RequestError:
        return False


def in_words(
    messages: Sequence[Mapping[str, Any]],
    schemas: Sequence[Mapping[str, Any]],
    places: ToolPlaces,
    form: ToolFormat,
) -> list[dict[str, Any]]:
    """The messages with everything in their texts that the template has no place for."""
    told: list[dict[str, Any]] = []
    after_result = False
    for message in messages:
        turn = dict(message)
        if not places.calls and turn.get("tool_calls"):
            written = write_calls(turn.pop("tool_calls"), form)
            turn["content"] = "\n".join(filter(None, [turn.get("content"), written]))
        is_result = places.role != "tool" and turn["role"] == "tool"
        if is_result:
            turn = {"role": "user", "content": TAGGED.replace("{result}", turn["content"])}
        if is_result and after_result:  # one turn: user and assistant may have to alternate
            told[-1]["content"] += "\n" + turn["content"]
        else:
            told.append(turn)
        after_result = is_result
    if schemas and not places.schemas:
        _add_to_system(told, describe(schemas, form))
    return told


def _add_to_system(messages: list[dict[str, Any]], text: str) -> None:
    """Behind the first system turn's text, or as the first turn."""
    if messages and messages[0]["role"] == "system":
        content = messages[0].get("content")
        messages[0]["content"] = f"{content}\n\n{text}" if content else text
    else:
        messages.insert(0, {"role": "system", "content": text})
