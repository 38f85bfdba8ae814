"""States of an automaton that lead back to each other, and their texts without such a way back."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rtlang.errors import GrammarTooLarge
from rtlang.grammar.ir import Expr, Ref, Repeat
from rtlang.grammar.ir_build import EMPTY, alt, seq
from rtlang.grammar.ir_walk import nodes

MAX_PATHS = 5_000  # from state to state, written out while states are taken away
MAX_COPIED = 40  # elements of an expression that is copied instead of made a rule


def components(successors: Sequence[Sequence[int]]) -> list[list[int]]:
    """The groups of states that can reach each other, each after all groups that it leads to.

    Tarjan, "Depth-first search and linear graph algorithms" (1972).
    """
    found: list[list[int]] = []
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    done: set[int] = set()
    for root in range(len(successors)):
        path = [] if root in index else [(root, iter(successors[root]))]
        while path:
            state, rest = path[-1]
            if state not in index:
                index[state] = low[state] = len(index)
                stack.append(state)
            for target in rest:
                if target not in index:
                    path.append((target, iter(successors[target])))
                    break
                if target not in done:
                    low[state] = min(low[state], low[target])
            else:
                path.pop()
                if path:
                    low[path[-1][0]] = min(low[path[-1][0]], low[state])
                if low[state] == index[state]:
                    at = stack.index(state)
                    found.append(sorted(stack[at:]))
                    done.update(stack[at:])
                    del stack[at:]
    return found


def solved(
    steps: dict[int, dict[int, Expr]], ends: dict[int, Expr], define: Callable[[Expr], Ref]
) -> dict[int, Expr]:
    """The texts of each state; those of s are ends[s], and each steps[s][t] with those of t behind.

    States are taken away one after the other, and X = A X | B is A* B: Arden, "Delayed-logic and
    finite-state machines" (1961).

    Raises:
        GrammarTooLarge: there are more than ``MAX_PATHS`` ways to write out.
    """
    steps = {s: dict(row) for s, row in steps.items()}
    ends = dict(ends)
    sources = {t: {s for s, row in steps.items() if t in row} for t in steps}
    taken: list[int] = []
    left = set(steps)
    paths = 0

    def kept(expr: Expr) -> Expr:
        return expr if sum(1 for _ in nodes(expr)) <= MAX_COPIED else define(expr)

    def join(row: dict[int, Expr], key: int, expr: Expr) -> None:
        row[key] = kept(alt([row[key], expr])) if key in row else expr

    while left:
        state = min(left, key=lambda s: (len(sources[s] & left) * len(steps[s]), s))
        left.remove(state)
        taken.append(state)
        again = steps[state].pop(state, None)
        star = EMPTY if again is None else Repeat(again, 0, None)
        ends_here = ends.get(state)
        # state's texts are now: star, and then a step to one that is left, or its end
        steps[state] = {t: kept(seq([star, e])) for t, e in steps[state].items()}
        if ends_here is not None:
            ends[state] = kept(seq([star, ends_here]))
        for source in sorted(sources[state] & left):
            way = steps[source].pop(state)
            for target, expr in steps[state].items():
                paths += 1
                join(steps[source], target, kept(seq([way, expr])))
                sources[target].add(source)
            if ends_here is not None:
                join(ends, source, kept(seq([way, ends[state]])))
        if paths > MAX_PATHS:
            raise GrammarTooLarge("an automaton's cycles are too entangled", limit="states")
    texts: dict[int, Expr] = {}
    for state in reversed(taken):
        ways = [seq([expr, texts[t]]) for t, expr in sorted(steps[state].items())]
        ways += [ends[state]] if state in ends else []
        texts[state] = define(alt(ways))
    return texts
