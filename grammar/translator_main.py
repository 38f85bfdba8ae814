"""The process of a ``translator.Translators``: ``python -m rtlang.grammar.translator_main``."""

from __future__ import annotations

from collections.abc import Callable

from rtlang.grammar.helper_loop import serve
from rtlang.grammar.spec import GrammarSpec
from rtlang.grammar.written import Written, written


def _prepare(told: str) -> Callable[[GrammarSpec], Written]:
    assert told == "translate", told
    return written


if __name__ == "__main__":
    serve(_prepare, niceness=5)
