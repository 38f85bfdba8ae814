"""Repetitions of single characters and their spellings, taken apart into alternatives."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from rtlang.grammar.ir import Alt, Chars, Expr, Ref, Repeat, Seq, Text
from rtlang.grammar.ir_walk import nodes

_MAX_BRANCHES = 24
#: Of a rule that is written out where it is called.
_MAX_NODES = 64


def loop_branches(body: Expr, rules: Mapping[str, Expr]) -> list[Expr]:
    """What ``body`` may be, one sequence each, without alternatives inside; [] where that is too
    much, or no help: a plain class, or something that calls rules of some size."""
    if isinstance(body, Chars):
        return []
    inlined = _inlined(body, rules)
    if inlined is None:
        return []
    branches = _branches(inlined)
    if not 1 < len(branches) <= _MAX_BRANCHES:
        return []
    return [Seq(tuple(parts)) if len(parts) > 1 else parts[0] for parts in branches]


def _inlined(expr: Expr, rules: Mapping[str, Expr]) -> Expr | None:
    """Without references; None if one leads to more than a leaf."""
    if isinstance(expr, Ref):
        target = rules[expr.name]
        found = list(itertools.islice(nodes(target), _MAX_NODES + 1))
        leaf = all(isinstance(n, Text | Chars | Seq | Alt | Repeat) for n in found)
        return target if leaf and len(found) <= _MAX_NODES else None
    if isinstance(expr, Seq | Alt):
        parts = [_inlined(part, rules) for part in expr.parts]
        known = tuple(part for part in parts if part is not None)
        return type(expr)(known) if len(known) == len(parts) else None
    if isinstance(expr, Repeat):
        inner = _inlined(expr.expr, rules)
        return None if inner is None else Repeat(inner, expr.low, expr.high)
    return expr if isinstance(expr, Text | Chars) else None


def _branches(expr: Expr) -> list[list[Expr]]:
    """Sequences of parts that are no alternatives; more than the limit: cut short."""
    if isinstance(expr, Alt):
        found = [branch for part in expr.parts for branch in _branches(part)]
        return found[: _MAX_BRANCHES + 1]
    if isinstance(expr, Seq):
        sequences: list[list[Expr]] = [[]]
        for part in expr.parts:
            sequences = [a + b for a in sequences for b in _branches(part)][: _MAX_BRANCHES + 1]
        return sequences
    return [[expr]]
