"""Which parsers fit a model: by what its chat template writes, and by its vocabulary."""

from __future__ import annotations

import weakref

from rtlang.runtime.parsers import deepseek, harmony
from rtlang.runtime.parsers.thinking import MISTRAL_THINK, THINK
from rtlang.runtime.tokenizer import Tokenizer
from rtlang.runtime.tools.formats import LLAMA, MISTRAL, PLAIN
from rtlang.runtime.tools.style import USER, rendered, shown_tools

#: Variables by which templates switch reasoning on and off.
_SWITCHES: tuple[dict[str, bool], ...] = (
    {},
    {"enable_thinking": True},
    {"enable_thinking": False},
    {"thinking": True},
)
_Found = tuple[str | None, str | None]

_found: weakref.WeakKeyDictionary[Tokenizer, _Found] = weakref.WeakKeyDictionary()


def detect(tokenizer: Tokenizer) -> tuple[str | None, str | None]:
    """(tool parser, reasoning parser) of the tokenizer's chat template; None where unknown."""
    found = _found.get(tokenizer)
    if found is None:
        found = _found[tokenizer] = _detected(tokenizer)
    return found


def _detected(tokenizer: Tokenizer) -> _Found:
    shown = shown_tools(tokenizer)
    starts = [
        rendered(tokenizer, [USER], add_generation_prompt=True, **switch) for switch in _SWITCHES
    ]
    has_harmony = _is_token(tokenizer, harmony.CHANNEL)
    has_deepseek = _is_token(tokenizer, deepseek.CALLS)
    seen = "".join([shown.told, shown.called, *starts])
    reasoning: str | None = None
    if has_harmony:
        reasoning = "gpt_oss"
    elif any(marker in seen for marker in MISTRAL_THINK):
        reasoning = "mistral"
    elif any(marker in seen for marker in THINK):
        reasoning = "deepseek_r1" if has_deepseek else "qwen3"
    if has_harmony:
        return "gpt_oss", reasoning
    if has_deepseek:
        # Templates of newer models close the reasoning where there shall be none.
        fenced = deepseek.FENCE in shown.called or not starts[0].endswith(THINK[1])
        return "deepseek_v3" if fenced else "deepseek_v31", reasoning
    if "<function=" in shown.told + shown.called:
        return "qwen_xml", reasoning
    by_format = {MISTRAL: "mistral", PLAIN: "hermes", LLAMA: "llama3"}
    known = by_format.get(shown.format) if shown.format and shown.told + shown.called else None
    return known, reasoning


def _is_token(tokenizer: Tokenizer, text: str) -> bool:
    return len(tokenizer.encode(text, add_bos=False)) == 1
