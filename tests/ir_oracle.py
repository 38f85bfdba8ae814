"""What the grammar IR means, written down plainly: which texts a grammar matches."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from rtlang.grammar.ir import Alt, Chars, Dispatch, Expr, Grammar, Ref, Repeat, Seq, Text


def matches(what: Grammar | Expr, rules: Mapping[str, Expr] | None, text: str) -> bool:
    """Whether the whole ``text`` matches; ``rules`` are those of an expression (a grammar has its
    own). Any context-free grammar; time grows with the cube of the text's length."""
    if isinstance(what, Grammar):
        return matches(Ref(what.root), what.rules, text)
    return len(text) in _Recogniser(rules or {}, text).all_ends(what)


class _Recogniser:
    """Grows the sets of ends of each (rule or repetition, start) until nothing is added to any."""

    def __init__(self, rules: Mapping[str, Expr], text: str) -> None:
        self._rules, self._text = rules, text
        self._known: dict[tuple[int, int], set[int]] = {}  # by the id of the expression
        self._users: defaultdict[tuple[int, int], set[tuple[int, int]]] = defaultdict(set)
        self._exprs: dict[int, Expr] = {}
        self._pending: list[tuple[int, int]] = []
        self._now = (0, 0)  # what is being matched

    def all_ends(self, expr: Expr) -> set[int]:
        ends = self._shared(expr, 0)
        while self._pending:
            self._now = key, start = self._pending.pop()
            expr = self._exprs[key]
            if isinstance(expr, Repeat):
                found = self._repeated(expr.expr, expr.low, expr.high, start)
            else:
                found = self._ends(expr, start)
            if not found <= self._known[self._now]:
                self._known[self._now] |= found
                self._pending += self._users[self._now]
        return ends

    def _shared(self, expr: Expr, start: int) -> set[int]:
        key = id(expr), start
        if key not in self._known:
            self._known[key] = set()
            self._exprs[id(expr)] = expr
            self._pending.append(key)
        if self._now in self._known:
            self._users[key].add(self._now)
        return self._known[key]

    def _ends(self, expr: Expr, start: int) -> set[int]:
        text = self._text
        match expr:
            case Text(literal):
                return {start + len(literal)} if text.startswith(literal, start) else set()
            case Chars(ranges):
                code = ord(text[start]) if start < len(text) else -1
                return {start + 1} if any(a <= code <= b for a, b in ranges) else set()
            case Alt(parts):
                return {end for part in parts for end in self._ends(part, start)}
            case Seq(parts):
                ends = {start}
                for part in parts:
                    ends = self._after(part, ends)
                return ends
            case Repeat():
                return self._shared(expr, start)
            case Ref(name):
                return self._shared(self._rules[name], start)
            case Dispatch():
                return self._dispatched(expr, start)

    def _after(self, expr: Expr, starts: set[int]) -> set[int]:
        return {end for start in starts for end in self._ends(expr, start)}

    def _repeated(self, body: Expr, low: int, high: int | None, start: int) -> set[int]:
        steps = len(self._text) + 1  # after so many nothing changes any more
        ends = {start}
        for _ in range(min(low, steps)):
            ends = self._after(body, ends)
        for _ in range(steps if high is None else min(high - low, steps)):
            ends = ends | self._after(body, ends)
        return ends

    def _dispatched(self, expr: Dispatch, start: int) -> set[int]:
        barred = [trigger for trigger, _ in expr.tags] + list(expr.excludes)
        starts, ends = {start}, set[int]()
        for begin in (order := [start]):  # grows while it is walked
            free = [
                end
                for end in range(begin, len(self._text) + 1)
                if not any(word in self._text[begin:end] for word in barred)
            ]
            ends.update(free)
            for trigger, name in expr.tags:
                tagged = self._after(Seq((Text(trigger), Ref(name))), set(free))
                order += sorted(tagged - starts)
                starts |= tagged
        return ends
