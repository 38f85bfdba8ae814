"""Token masks through xgrammar. Importing it takes seconds: only what compiles imports this."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence

import xgrammar

from rtlang.errors import GrammarError
from rtlang.grammar.emit import to_ebnf
from rtlang.grammar.ir import Grammar
from rtlang.grammar.matcher import Matcher, Native
from rtlang.grammar.vocab import Bitmask, Vocab

#: How many threads may fill the masks of a batch, and for how many masks there is one more. To
#: start and to join them costs 0.05 to 0.3 ms, so that they pay on some machines only.
_THREADS, _ROWS_OF_THREAD = (1, 2, 4, 8), 16
_WORTH_S = 0.0002  # what one thread does in less is never shared
_TRY_EACH = 64  # calls, where sharing did not pay
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
        self.filler = _Filler(_num_cores())

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
        sequence = xgrammar.GrammarMatcher(self._compiled)
        backend = self._backend
        return Matcher(_XgrNative(sequence, backend.vocab, backend.filler), backend.vocab)


class _Filler:
    """The masks of many sequences, by one thread or several, whichever was faster lately."""

    def __init__(self, num_cores: int) -> None:
        # xgrammar warns when it is given more threads than there are cores.
        self._by_threads = {
            n: xgrammar.BatchGrammarMatcher(n) for n in _THREADS if n <= max(1, num_cores)
        }
        self._alone_s = self._shared_s = 0.0  # for a mask, lately
        self._num_calls = 0

    def fill(
        self, sequences: Sequence[xgrammar.GrammarMatcher], bitmask: Bitmask, rows: list[int]
    ) -> None:
        timed = number = len(rows)
        threads = max(n for n in self._by_threads if n == 1 or n * _ROWS_OF_THREAD <= number)
        self._num_calls += 1
        pays = self._shared_s < self._alone_s or self._num_calls % _TRY_EACH == 0
        if threads > 1 and pays and self._alone_s * number > _WORTH_S:
            timed = number // _ROWS_OF_THREAD  # how long one thread takes stays known
        start = time.perf_counter()
        fill = self._by_threads[1].batch_fill_next_token_bitmask
        fill(list(sequences[:timed]), bitmask, rows[:timed])
        middle = time.perf_counter()
        self._alone_s = _smoothed(self._alone_s, (middle - start) / timed)
        if timed < number:
            fill = self._by_threads[threads].batch_fill_next_token_bitmask
            fill(list(sequences[timed:]), bitmask, rows[timed:])
            took = time.perf_counter() - middle
            self._shared_s = _smoothed(self._shared_s, took / (number - timed))


def _smoothed(before: float, found: float) -> float:
    return 0.8 * before + 0.2 * found if before else found


class _XgrNative:
    """Implements ``Native``. The stop ids that xgrammar knows of only show in its masks.

    xgrammar writes every row whole, and in it nothing but text and stop ids; past the vocabulary,
    it may write ones.
    """

    __slots__ = ("_filler", "_vocab", "accept", "sequence")

    def __init__(self, sequence: xgrammar.GrammarMatcher, vocab: Vocab, filler: _Filler) -> None:
        self.accept = sequence.accept_token  # itself: it is called for each token
        self.sequence = sequence
        self._vocab = vocab
        self._filler = filler

    def can_end(self) -> bool:
        return bool(self.sequence.is_completed())

    def fill(self, bitmask: Bitmask, row: int) -> None:
        self.sequence.fill_next_token_bitmask(bitmask, row)
        if self._vocab.vocab_size % 32:
            bitmask[row, -1] &= self._vocab.open_row[-1]

    def fill_many(self, natives: Sequence[Native], bitmask: Bitmask, rows: Sequence[int]) -> None:
        sequences = [native.sequence for native in natives if isinstance(native, _XgrNative)]
        assert len(sequences) == len(natives)
        self._filler.fill(sequences, bitmask, list(rows))
        if self._vocab.vocab_size % 32:
            bitmask[rows, -1] &= self._vocab.open_row[-1]

    def rollback(self, num_tokens: int) -> None:
        self.sequence.rollback(num_tokens)

    def fork(self) -> _XgrNative:
        return _XgrNative(self.sequence.fork(), self._vocab, self._filler)

    def note_jump(self, jumped: bool) -> None:
        """Nothing is remembered for other sequences."""

    def expects_jump(self) -> bool:
        return False

    def forced_text(self) -> str:
        return self.sequence.find_jump_forward_string()


def cleaned(error: RuntimeError) -> str:
    """Its message without the time and the place in xgrammar's source."""
    return _WHERE.sub("", str(error)).strip()


def _num_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
