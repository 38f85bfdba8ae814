"""The process of a ``translator.Translators``: ``python -m rtlang.grammar.translator_main``."""

from __future__ import annotations

from collections.abc import Callable

from rtlang.grammar.emit import to_ebnf
from rtlang.grammar.helper_loop import serve
from rtlang.grammar.spec import GrammarSpec
from rtlang.grammar.translate import translate


def _prepare(told: str) -> Callable[[GrammarSpec], str]:
    assert told == "translate", told
    return lambda spec: to_ebnf(translate(spec))


if __name__ == "__main__":
    serve(_prepare, niceness=5)
