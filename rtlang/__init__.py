"""rtlang: a language for LLM programs, and the radix-cache runtime that serves them."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from rtlang.api import (
    assistant,
    assistant_begin,
    assistant_end,
    gen,
    gen_int,
    gen_string,
    raw,
    select,
    system,
    system_begin,
    system_end,
    user,
    user_begin,
    user_end,
)
from rtlang.chat import ChatTemplateWarning
from rtlang.choices import (
    greedy_token_selection,
    token_length_normalized,
    unconditional_likelihood_normalized,
)
from rtlang.defaults import flush_cache, set_default_backend, use
from rtlang.errors import RtlangError
from rtlang.forks import ForkGroup
from rtlang.join import Failed
from rtlang.program import Program, function
from rtlang.runtime.sampling_params import SamplingParams
from rtlang.state import ProgramRun, ProgramState

if TYPE_CHECKING:
    from rtlang.backends.anthropic import Anthropic
    from rtlang.backends.http import HTTP
    from rtlang.backends.openai import OpenAI
    from rtlang.runtime.engine import Engine
    from rtlang.runtime.result import GenerateResult
    from rtlang.runtime.tools.formats import ToolFormat
    from rtlang.tools import Tool, Tools, tool

__version__ = "0.1.0"

__all__ = [  # noqa: RUF022 -- plain order, as sorted() has it
    "Anthropic",
    "ChatTemplateWarning",
    "Engine",
    "Failed",
    "ForkGroup",
    "GenerateResult",
    "HTTP",
    "OpenAI",
    "Program",
    "ProgramRun",
    "ProgramState",
    "RtlangError",
    "SamplingParams",
    "Tool",
    "ToolFormat",
    "Tools",
    "assistant",
    "assistant_begin",
    "assistant_end",
    "flush_cache",
    "function",
    "gen",
    "gen_int",
    "gen_string",
    "greedy_token_selection",
    "raw",
    "select",
    "set_default_backend",
    "system",
    "system_begin",
    "system_end",
    "token_length_normalized",
    "tool",
    "unconditional_likelihood_normalized",
    "use",
    "user",
    "user_begin",
    "user_end",
]

#: Loaded when first used: the engine needs torch, a program's definition does not; and tools
#: need more of Python's own library than all the rest of the language.
_LAZY = {
    "Anthropic": "rtlang.backends.anthropic",
    "Engine": "rtlang.runtime.engine",
    "GenerateResult": "rtlang.runtime.result",
    "HTTP": "rtlang.backends.http",
    "OpenAI": "rtlang.backends.openai",
    "Tool": "rtlang.tools",
    "ToolFormat": "rtlang.runtime.tools.formats",
    "Tools": "rtlang.tools",
    "tool": "rtlang.tools",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'rtlang' has no attribute {name!r}")
    value = getattr(importlib.import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_LAZY])
