"""What a model's chat template says about tools: found by rendering, since it is a program."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Sequence
from typing import Any

from rtlang.errors import RequestError, Unsupported
from rtlang.runtime.tokenizer import Message, Tokenizer
from rtlang.runtime.tools.formats import LLAMA, MISTRAL, PLAIN, ToolFormat

_NAME, _SAID = "qxprobezqx", "zqrtlangprobeqz"
USER = {"role": "user", "content": "hi"}


@dataclasses.dataclass(frozen=True, slots=True)
class ToolStyle:
    """``format``: None where the template's own is not known here. ``describes``: it has a place
    for the tools' schemas. ``role``: of the turns that hold results."""

    format: ToolFormat | None
    describes: bool
    role: str


_styles: weakref.WeakKeyDictionary[Tokenizer, ToolStyle] = weakref.WeakKeyDictionary()


def style_of(tokenizer: Tokenizer) -> ToolStyle:
    """How a chat with this tokenizer's template has tools."""
    found = _styles.get(tokenizer)
    if found is None:
        found = _styles[tokenizer] = _probed(tokenizer)
    return found


@dataclasses.dataclass(frozen=True, slots=True)
class ShownTools:
    """What a template writes where there are tools, "" where it says nothing of them.

    told    a chat with a tool that may be called
    called  a chat with a call
    format  of that call; None: not known here
    """

    told: str
    called: str
    format: ToolFormat | None


def shown_tools(tokenizer: Tokenizer) -> ShownTools:
    schema = {"name": _NAME, "description": "", "parameters": {"type": "object", "properties": {}}}
    told = rendered(tokenizer, [USER], tools=[{"type": "function", "function": schema}])
    call = {"type": "function", "function": {"name": _NAME, "arguments": {}}}
    turn = {"role": "assistant", "content": "", "tool_calls": [call]}
    called = rendered(tokenizer, [USER, turn])
    told, called = told if _NAME in told else "", called if _NAME in called else ""
    return ShownTools(told, called, _format(told, called))


def _probed(tokenizer: Tokenizer) -> ToolStyle:
    shown = shown_tools(tokenizer)
    answer = {"role": "assistant", "content": "yes"}
    result = rendered(tokenizer, [USER, answer, {"role": "tool", "content": _SAID}])
    return ToolStyle(shown.format, bool(shown.told), "tool" if _SAID in result else "user")


def _format(told: str, called: str) -> ToolFormat | None:
    """By the texts of a template that tells of tools, and shows a call."""
    seen = told + called
    if not seen:
        return PLAIN
    if "[TOOL_CALLS]" in seen or "[AVAILABLE_TOOLS]" in seen:
        return MISTRAL
    if "<tool_call>" in seen and "<function=" not in seen:
        return PLAIN
    if f'{{"name": "{_NAME}", "parameters": ' in called:
        return LLAMA
    return None


def rendered(
    tokenizer: Tokenizer,
    messages: Sequence[Message],
    *,
    add_generation_prompt: bool = False,
    **variables: Any,
) -> str:
    """The rendering, "" where the template refuses."""
    try:
        return tokenizer.render_chat(
            messages, add_generation_prompt=add_generation_prompt, **variables
        )
    except RequestError:
        return ""


def lead_ids(form: ToolFormat, tokenizer: Tokenizer) -> list[int]:
    """The ids of the trigger where the tokenizer has it as a control token; else none.

    A constraint allows text only, so control tokens of a format cannot be generated under it: the
    trigger can be put into the prompt. Raises ``Unsupported`` for one anywhere else.
    """
    for what, piece in form.pieces().items():
        ids = tokenizer.encode(piece, add_bos=False) if piece else []
        if what != "trigger" and not tokenizer.special_ids.isdisjoint(ids):
            raise Unsupported(
                f"the tool format's {what}, {piece!r}, has a control token of this model; "
                "constraints are on text",
                param="tools",
            )
    ids = tokenizer.encode(form.trigger, add_bos=False) if form.trigger else []
    return [] if tokenizer.special_ids.isdisjoint(ids) else ids


def chosen_format(given: ToolFormat | None, tokenizer: Tokenizer, *, chat: bool) -> ToolFormat:
    """``given``, or the template's in a chat. Raises ``Unsupported`` for one not known here."""
    form = given or (style_of(tokenizer).format if chat else PLAIN)
    if form is None:
        raise Unsupported(
            "how this model's chat template writes tool calls is not known: give a format, with "
            "Tools(format=...)",
            param="tools",
        )
    return form
