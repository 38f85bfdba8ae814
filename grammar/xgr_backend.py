"""Token masks through xgrammar. Importing it takes seconds: only what compiles imports this."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

import xgrammar

from rtlang.errors import GrammarError
from rtlang.grammar.emit import to_ebnf
from rtlang.grammar.ir import Grammar
from rtlang.grammar.matcher import Matcher, Native
from rtlang.grammar.vocab import Bitmask, Vocab

#: More threads than this do not fill the masks of a batch faster.
_MAX_THREADS = 8
#: How xgrammar starts its messages.
_WHERE = re.compile(r"^\[[\d:]+\] \S+:\d+: ")


class XgrBackend:
    """xgrammar for one vocabulary. Thread-safe; compiling and filling release the GIL."""

    def __init__(self, vocab: Vocab) -> None:
        self.vocab = vocab
        info = xgrammar.TokenizerInfo(
            list(vocab.token_bytes),
            xgrammar.VocabType.RAW,
            vocab_size=vocab.vocab_size,
            stop_token_ids=sorted(vocab.stop_ids),
        )
        # Compiled constraints are cached by their own key elsewhere, within a bound.
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
        # It warns when it is given more threads than there are cores.
        self.batch = xgrammar.BatchGrammarMatcher(min(_MAX_THREADS, _num_cores()))

    def compile(self, grammar: Grammar) -> XgrCompiled:
        """Raises what ``to_ebnf`` does, and ``GrammarError``."""
        return self.compile_ebnf(to_ebnf(grammar))

    def compile_ebnf(self, ebnf: str) -> XgrCompiled:
        """All masks that can be known beforehand are made now, not during generation. It cannot
        be interrupted. Raises ``GrammarError`` for whatever xgrammar says."""
        try:
            compiled = self._compiler.compile_grammar(ebnf)
        except RuntimeError as error:
            raise GrammarError(f"the constraint does not compile: {cleaned(error)}") from error
        return XgrCompiled(self, compiled)


class XgrCompiled:
    """Implements ``Compiled``."""

    def __init__(self, backend: XgrBackend, compiled: xgrammar.CompiledGrammar) -> None:
        self.size_bytes = int(compiled.memory_size_bytes)
        self._backend = backend
        self._compiled = compiled

    def matcher(self) -> Matcher:
        native = _XgrNative(self._backend, xgrammar.GrammarMatcher(self._compiled))
        return Matcher(native, self._backend.vocab)


class _XgrNative:
    """Implements ``Native``. The stop ids that xgrammar knows of only show in its masks."""

    def __init__(self, backend: XgrBackend, sequence: xgrammar.GrammarMatcher) -> None:
        self._backend = backend
        self.sequence = sequence

    def accept(self, token_id: int) -> bool:
        return bool(self.sequence.accept_token(token_id))

    def can_end(self) -> bool:
        return bool(self.sequence.is_completed())

    def fill(self, bitmask: Bitmask, row: int) -> None:
        if not self.sequence.fill_next_token_bitmask(bitmask, row):
            bitmask[row] = -1  # then the row need not have been written

    def fill_many(self, natives: Sequence[Native], bitmask: Bitmask, rows: Sequence[int]) -> None:
        bitmask[rows] = -1
        sequences = [native.sequence for native in natives if isinstance(native, _XgrNative)]
        assert len(sequences) == len(natives)
        self._backend.batch.batch_fill_next_token_bitmask(sequences, bitmask, list(rows))

    def rollback(self, num_tokens: int) -> None:
        self.sequence.rollback(num_tokens)

    def fork(self) -> _XgrNative:
        return _XgrNative(self._backend, self.sequence.fork())

    def forced_text(self) -> str:
        return self.sequence.find_jump_forward_string()


def cleaned(error: RuntimeError) -> str:
    """Its message without the time and the place in xgrammar's source."""
    return _WHERE.sub("", str(error)).strip()


def _num_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
