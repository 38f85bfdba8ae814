"""A constraint as the engine that matches it reads it, and as its states are found."""

from __future__ import annotations

from typing import NamedTuple

from rtlang.grammar.checks import prepared
from rtlang.grammar.emit import to_ebnf
from rtlang.grammar.spec import GrammarSpec
from rtlang.grammar.states import Program, flattened
from rtlang.grammar.translate import translate


class Written(NamedTuple):
    """``program`` is None for what is not followed."""

    ebnf: str
    program: Program | None


def written(spec: GrammarSpec) -> Written:
    """Raises a ``GrammarError``."""
    grammar = prepared(translate(spec))
    return Written(to_ebnf(grammar), flattened(grammar))
