"""Writing objects: declared properties in their order, then all other members."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain as joined_lists
from itertools import combinations

from rtlang.grammar.dfa import Dfa
from rtlang.grammar.ir import Expr, Text
from rtlang.grammar.ir_build import alt, repeat
from rtlang.grammar.schema.chains import Step, chain
from rtlang.grammar.schema.keywords import unsupported
from rtlang.grammar.schema.rules import Rules, sequence
from rtlang.grammar.schema.scalars import key
from rtlang.grammar.schema.text import quoted
from rtlang.grammar.schema.values import ANY, NEVER, Member, Objects, joined

MAX_MEMBERS = 4  # that must occur beside the declared ones


def members(rules: Rules, objects: Objects) -> Expr:
    """An object.

    Raises:
        UnsupportedKeyword: a number of members that has no grammar.
    """
    _check(objects)
    steps = [
        Step(sequence(quoted(name), rules.colon, rules.node(node)), name in objects.required)
        for name, node in objects.properties
        if node != NEVER
    ]
    others = _Others(rules, objects)
    found = chain(rules, steps, objects.low, objects.high, others.after)
    if found is None:
        reason = "of the members that are not declared only one can be counted as different"
        raise unsupported(objects.counted, objects.counted.rsplit("/", 1)[-1], reason)
    return rules.define(sequence(rules.opening("{"), found))


def _check(objects: Objects) -> None:
    with_value = [member for member in objects.some if member.node != ANY]
    counted = objects.low > 1 or objects.high is not None
    if len(objects.some) > MAX_MEMBERS or len(with_value) > 1 or (objects.some and counted):
        where = objects.some[0].where
        reason = "its opposite is asked for, together with others or with a number of members"
        raise unsupported(where, where.rsplit("/", 1)[-1], reason)


class _Others:
    """Members whose keys are not declared. A key may be written twice among them; a reader that
    keeps the last one, or any, still finds a value that satisfies its schema."""

    def __init__(self, rules: Rules, objects: Objects) -> None:
        self._rules = rules
        self._objects = objects
        rest = objects.rest
        if rules.closed and objects.implied and objects.properties:
            rest = tuple(cell for cell in rest if cell[1] != ANY)
        if objects.properties and rest:
            declared = Dfa.words(objects.by_name)
            rest = tuple((keys - declared, node) for keys, node in rest)
        self._cells = rest
        self._member = self._any_of([])

    def after(self, count: int) -> Expr | None:
        """What follows ``count`` declared members, up to the end of the object."""
        if self._objects.some:
            return self._with_members(self._objects.some, count)
        close = self._rules.closing("}", empty=count == 0)
        need, high = max(self._objects.low - count, 0), self._objects.high
        room = None if high is None else high - count
        if self._member is None or room == 0:
            return None if need else close
        if need > 1:
            return None
        more = sequence(self._rules.comma, self._member)
        if count:
            return sequence(repeat(more, need, room), close)
        left = None if room is None else room - 1
        end = self._rules.closing("}", empty=False)
        some = sequence(self._member, repeat(more, 0, left), end)
        return some if need else alt([close, some])

    def _any_of(self, needed: Sequence[Member]) -> Expr | None:
        """A member that is each of the needed ones; None: there is none."""
        parts: list[Expr] = []
        for cell, value in self._cells:
            keys, node = cell, value
            for member in needed:
                keys, node = keys & member.keys, joined(node, member.node)
            if not keys.is_empty and node != NEVER:
                written = key(self._rules, keys)
                parts.append(sequence(written, self._rules.colon, self._rules.node(node)))
        return self._rules.define(alt(parts)) if parts else None

    def _with_members(self, pending: tuple[Member, ...], count: int) -> Expr:
        """Free members, then one that is some of the pending ones, and so on until none is.

        One with a value of its own comes last, so that no later member takes its key.
        """
        rules = self._rules
        comma = rules.comma if count else Text("")
        found: list[Expr] = []
        subsets = joined_lists.from_iterable(
            combinations(pending, n) for n in range(1, len(pending) + 1)
        )
        for needed in subsets:
            left = tuple(member for member in pending if member not in needed)
            one = self._any_of(needed)
            last = any(member.node != ANY for member in needed)
            if one is None or (last and left):
                continue
            if left:
                rest = self._with_members(left, 1)
            else:
                free = None if last or self._member is None else self._member
                more = repeat(sequence(rules.comma, free), 0, None) if free else Text("")
                rest = sequence(more, rules.closing("}", empty=False))
            found.append(sequence(comma, one, rest))
        if self._member is not None:
            if count:
                return sequence(repeat(sequence(comma, self._member), 0, None), alt(found))
            found.append(sequence(self._member, self._with_members(pending, 1)))
        return alt(found)
