"""The process of ``canary.Canary``: ``python -m rtlang.grammar.canary_main``.

It is told the vocabulary (token bytes, stop ids), and then texts of EBNF, each with the seconds of
CPU time that it may take: a process that needs more ends.
"""

from __future__ import annotations

import signal
from collections.abc import Callable

from rtlang.grammar.helper_loop import serve
from rtlang.grammar.vocab import Vocab
from rtlang.grammar.xgr_backend import XgrBackend


def _prepare(told: tuple[tuple[bytes, ...], list[int]]) -> Callable[[tuple[str, float]], str]:
    token_bytes, stop_ids = told
    backend = XgrBackend(Vocab(token_bytes, len(token_bytes), frozenset(stop_ids)))

    def answer(question: tuple[str, float]) -> str:
        ebnf, cpu_s = question
        signal.setitimer(signal.ITIMER_PROF, cpu_s)  # nobody catches SIGPROF: it kills
        try:
            backend.compile_ebnf(ebnf)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        return "it compiles"

    return answer


if __name__ == "__main__":
    serve(_prepare, niceness=10)
