"""Trial compiles in a process of their own, which can be killed: a compile itself cannot.

The verdict comes back, not the result: written out, a compiled constraint is many times larger
than in memory, and takes far longer to read than to compile.
"""

from __future__ import annotations

from rtlang.grammar.helper import Helper, command
from rtlang.grammar.vocab import Vocab

COMMAND = command("rtlang.grammar.canary_main")


class Canary:
    """Thread-safe: one trial at a time, others wait."""

    def __init__(
        self, vocab: Vocab, *, limit_s: float = 4.0, command: tuple[str, ...] = COMMAND
    ) -> None:
        """``limit_s``: of CPU time for a trial, which other work on the machine does not use up;
        by the clock, it may take twice as long."""
        self._helper = Helper(command, (vocab.token_bytes, sorted(vocab.stop_ids)))
        self._limit_s = limit_s

    def check(self, ebnf: str) -> None:
        """Returns if xgrammar compiles this EBNF within the limits of time and memory.

        Raises ``GrammarTimeout`` if it had to be killed (or ended by itself), ``GrammarError`` if
        xgrammar refused it.
        """
        self._helper.ask((ebnf, self._limit_s), 2 * self._limit_s)

    def close(self) -> None:
        """Ends the process. A trial that runs is lost."""
        self._helper.close()
