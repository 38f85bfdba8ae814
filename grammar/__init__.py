"""Constraints on generated text: what a request may say, compiled to token bitmasks.

``GrammarSpec`` is a constraint, ``accepts(spec, text)`` tells whether it allows a text. Nothing
is loaded before its first use: a constraint is plain data, what matches takes seconds to load.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rtlang.grammar.accept import accepts
    from rtlang.grammar.spec import GrammarSpec

__all__ = ["GrammarSpec", "accepts"]

_LAZY = {"GrammarSpec": "rtlang.grammar.spec", "accepts": "rtlang.grammar.accept"}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_LAZY[name]), name)
    globals()[name] = value
    return value
