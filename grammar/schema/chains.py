"""Writing a list of things in a fixed order, some of them optional, with commas between."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence

from rtlang.errors import GrammarTooLarge
from rtlang.grammar.ir import Alt, Expr
from rtlang.grammar.ir_build import repeat
from rtlang.grammar.schema.rules import Rules, sequence

MAX_STEPS = 20_000  # things times counts of those before them


@dataclasses.dataclass(frozen=True)
class Step:
    """A thing in the list."""

    expr: Expr
    required: bool


def chain(
    rules: Rules,
    steps: Sequence[Step],
    low: int,
    high: int | None,
    tail: Callable[[int], Expr | None],
) -> Expr | None:
    """The steps in their order, required ones always, and after them a tail.

    low, high  how many things the list has with its tail; how many there are is only counted so
               far as these bounds need it
    tail       what follows so many things; None: nothing can

    Returns:
        None: there is no such list.

    Raises:
        GrammarTooLarge: too many steps to be counted.
    """
    most = max(low, 1) if high is None else high

    def after(count: int) -> int | None:
        """The count with one thing more; None: that is too many."""
        if count < most:
            return count + 1
        return count if high is None else None

    counts = [{0}]
    uses: Counter[tuple[int, int]] = Counter()
    for i, step in enumerate(steps):
        reached: set[int] = set()
        for count in counts[-1]:
            following = {after(count)} | (set() if step.required else {count})
            found = {n for n in following if n is not None}
            uses.update((i + 1, n) for n in found)
            reached |= found
        counts.append(reached)
    if sum(map(len, counts)) > MAX_STEPS:
        raise GrammarTooLarge("too many members to be counted", limit="members")
    # What follows each count, last part first; None: nothing can.
    lines = {n: None if (end := tail(n)) is None else [end] for n in counts[-1]}
    for i in range(len(steps) - 1, -1, -1):
        for n, line in lines.items():
            if line is not None and uses[i + 1, n] > 1:
                lines[n] = [rules.define(sequence(*reversed(line)))]
        lines = {n: _with_step(rules, steps[i], n, after(n), lines) for n in counts[i]}
    return None if lines[0] is None else sequence(*reversed(lines[0]))


def _with_step(
    rules: Rules,
    step: Step,
    count: int,
    after: int | None,
    following: dict[int, list[Expr] | None],
) -> list[Expr] | None:
    """The line that starts with this step; those that follow it are used up."""
    rest = None if after is None else following.get(after)
    without = None if step.required else following.get(count)
    thing = sequence(rules.comma, step.expr) if count else step.expr
    if rest is None:
        return without
    if without is None:
        return _with(thing, rest)
    if after == count:
        return _with(repeat(thing, 0, 1), without)
    if any(isinstance(part, Alt) for part in rest):  # else choices in choices get too deep
        rest = [rules.define(sequence(*reversed(rest)))]
    # One flat choice of what comes first: a matcher is slow on choices that refer to choices.
    first = without[0] if len(without) == 1 else sequence(*reversed(without))
    others = first.parts if isinstance(first, Alt) else (first,)
    return [Alt((sequence(thing, *reversed(rest)), *others))]


def _with(first: Expr, line: list[Expr]) -> list[Expr]:
    """The line with a part before it; only a line of one part may be in use elsewhere."""
    line = [*line] if len(line) == 1 else line
    line.append(first)
    return line
