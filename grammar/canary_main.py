"""The process of ``canary.Canary``: ``python -m rtlang.grammar.canary_main``.

It is told the vocabulary (token bytes, stop ids), and then texts of EBNF.
"""

from __future__ import annotations

from collections.abc import Callable

from rtlang.grammar.helper_loop import serve
from rtlang.grammar.vocab import Vocab
from rtlang.grammar.xgr_backend import XgrBackend


def _prepare(told: tuple[tuple[bytes, ...], list[int]]) -> Callable[[str], str]:
    token_bytes, stop_ids = told
    backend = XgrBackend(Vocab(token_bytes, len(token_bytes), frozenset(stop_ids)))

    def answer(ebnf: str) -> str:
        backend.compile_ebnf(ebnf)
        return "it compiles"

    return answer


if __name__ == "__main__":
    serve(_prepare, niceness=10)
