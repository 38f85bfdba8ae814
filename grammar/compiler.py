"""From a constraint to what matches it: translated, tried out if it looks expensive, compiled."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cached_property

from rtlang.errors import GrammarError, GrammarTimeout, GrammarTooLarge, UnsupportedKeyword
from rtlang.grammar.canary import Canary
from rtlang.grammar.llg_backend import LlgBackend
from rtlang.grammar.matcher import Compiled
from rtlang.grammar.shared_masks import SharedCompiled, Sharing
from rtlang.grammar.spec import GrammarSpec
from rtlang.grammar.translator import Translators, is_quick
from rtlang.grammar.vocab import Vocab
from rtlang.grammar.written import Written, written
from rtlang.grammar.xgr_backend import XgrBackend

#: Below both, compiles took under 2 s for every family of grammars tried (choices, optional
#: properties, nested groups, automata, counted classes); beyond them up to minutes. Counting a
#: class costs little: 100,000 characters took 0.1 s.
_MAX_CHARS = 32_768
_MAX_COUNTS = 4096
_CLASS_SHARE = 50  # so many rounds of a class cost as much as one of something else
_COUNT = re.compile(r"(\]?)\{(\d+)(?:,(\d*))?\}")

#: Brackets the work that cannot be interrupted: it has to end within the budget.
Watch = Callable[[], AbstractContextManager[None]]


class Compiler:
    """For one vocabulary. Thread-safe."""

    def __init__(self, vocab: Vocab, *, use_llguidance: bool, budget_s: float = 10.0) -> None:
        """``use_llguidance``: for JSON schemas that ours refuses. ``budget_s``: for translating a
        constraint, in a process that is killed then."""
        vocab.tabulate()
        self._vocab = vocab
        self._budget_s = budget_s
        self._xgr = XgrBackend(vocab)
        self._canary = Canary(vocab)
        self._translators = Translators()
        self._sharing = Sharing(vocab)
        self._use_llguidance = use_llguidance

    def __call__(self, spec: GrammarSpec, watch: Watch) -> Compiled:
        """Raises a ``GrammarError``."""
        try:
            ebnf, program = self._translated(spec, watch)
            if looks_expensive(ebnf):
                self._canary.check(ebnf)
        except (UnsupportedKeyword, GrammarTooLarge, GrammarTimeout) as refusal:
            if (
                not self._use_llguidance
                or spec.kind != "json_schema"
                or spec.additional != "schema"
            ):
                raise
            with watch():
                return self._by_llguidance(spec, refusal)
        with watch():
            compiled = self._xgr.compile_ebnf(ebnf)
        if program is None:
            return compiled
        return SharedCompiled(compiled, program, self._sharing)

    def _translated(self, spec: GrammarSpec, watch: Watch) -> Written:
        if is_quick(spec):
            with watch():
                return written(spec)
        with self._translators.one() as translator, watch():
            answer = translator.ask(spec, self._budget_s)
        assert isinstance(answer, Written)
        return answer

    def _by_llguidance(self, spec: GrammarSpec, refusal: GrammarError) -> Compiled:
        try:
            return self._llg.compile_schema(spec.source, max_whitespace=spec.whitespace)
        except GrammarError as error:
            raise refusal from error  # ours says where

    @cached_property
    def _llg(self) -> LlgBackend:
        return LlgBackend(self._vocab)

    def close(self) -> None:
        self._canary.close()
        self._translators.close()


def looks_expensive(ebnf: str) -> bool:
    """Whether to try it out first: a long text, or one that counts far."""
    counts = sum(
        int(high or low) // (_CLASS_SHARE if of_class else 1)
        for of_class, low, high in _COUNT.findall(ebnf)
    )
    return len(ebnf) > _MAX_CHARS or counts > _MAX_COUNTS
