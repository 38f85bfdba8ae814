"""Writing arrays."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from itertools import product

from rtlang.errors import GrammarTooLarge
from rtlang.grammar.ir import Expr, Ref, Text
from rtlang.grammar.ir_build import alt, repeat
from rtlang.grammar.schema.chains import Step, chain
from rtlang.grammar.schema.keywords import unsupported
from rtlang.grammar.schema.rules import Rules, sequence
from rtlang.grammar.schema.structure import opposite
from rtlang.grammar.schema.text import quoted
from rtlang.grammar.schema.values import ANY, Arrays, Contains, Node, Values, joined

MAX_STATES = 1000  # of an array that must contain something
MAX_DIFFERENT = 256  # values of elements that must differ
MAX_ANY_ORDER = 6  # of them, in any order


def elements(rules: Rules, arrays: Arrays) -> Expr:
    """An array whose elements may be equal."""
    if arrays.contains:
        return sequence(rules.opening("["), _Containing(rules, arrays).start())
    low, high, length = arrays.low, arrays.high, len(arrays.prefix)
    found: Expr | None = None
    if high is None or high > length:
        room = None if high is None else high - length
        rest = rules.node(arrays.rest)
        more = sequence(rules.comma, rest)
        need = max(low - length, 0)
        if length:
            found = sequence(repeat(more, need, room), rules.closing("]", empty=False))
        else:
            left = None if room is None else room - 1
            end = rules.closing("]", empty=False)
            found = sequence(rest, repeat(more, max(need - 1, 0), left), end)
            if need == 0:
                found = alt([rules.closing("]", empty=True), found])
    for i in range(length, -1, -1):
        if i < length:
            written = rules.node(arrays.prefix[i])
            assert found is not None
            found = sequence(rules.comma if i else Text(""), written, found)
        if i < low or (i == length and found is not None):
            continue
        close = rules.closing("]", empty=i == 0)
        found = close if found is None else rules.define(alt([close, found]))
    assert found is not None, arrays
    return rules.define(sequence(rules.opening("["), found))


class _Containing:
    """Arrays some elements of which are counted, as a rule for each state.

    A state is (elements written, then for each `contains` how many of them satisfy it), each
    number only so far as it matters.
    """

    def __init__(self, rules: Rules, arrays: Arrays) -> None:
        self._rules = rules
        self._arrays = arrays
        bounds = [len(arrays.prefix), arrays.low, *(part.start for part in arrays.contains)]
        self._length = max(bounds) if arrays.high is None else max(*bounds, arrays.high)
        self._names: dict[tuple[int, ...], str] = {}
        self._pending: list[tuple[int, ...]] = []

    def start(self) -> Expr:
        found = self._state((0,) * (1 + len(self._arrays.contains)), started=False)
        while self._pending:
            state = self._pending.pop()
            self._rules.put(self._names[state], self._after(state, started=True))
        return found

    def _state(self, state: tuple[int, ...], *, started: bool) -> Expr:
        if not started:
            return self._after(state, started=False)
        if state not in self._names:
            self._names[state] = self._rules.fresh()
            self._pending.append(state)
            if len(self._names) > MAX_STATES:
                message = "an array that must contain something is too large to be counted"
                raise GrammarTooLarge(message, limit="contains")
        return Ref(self._names[state])

    def _after(self, state: tuple[int, ...], *, started: bool) -> Expr:
        length, *counts = state
        arrays = self._arrays
        found: list[Expr] = []
        enough = all(n >= part.low for n, part in zip(counts, arrays.contains, strict=True))
        if length >= arrays.low and enough:
            found.append(self._rules.closing("]", empty=not started))
        if arrays.high is None or length < arrays.high:
            comma = self._rules.comma if started else Text("")
            ways = (_ways(part, n, length) for part, n in zip(arrays.contains, counts, strict=True))
            for way in product(*ways):
                node = joined(arrays.element(length), *(node for node, _ in way))
                next_state = (min(length + 1, self._length), *(n for _, n in way))
                rest = self._state(next_state, started=True)
                found.append(sequence(comma, self._rules.node(node), rest))
        return alt(found)


def _ways(part: Contains, count: int, at: int) -> Iterator[tuple[Node, int]]:
    """What the next element may be for a `contains`, and the count then."""
    if at < part.start:
        yield ANY, count
        return
    if part.high is None:
        yield ANY, count
        if count < part.low:
            yield part.node, count + 1
        return
    yield from ((other, count) for other in opposite(part.node))
    if count < part.high:
        yield part.node, count + 1


def different(rules: Rules, arrays: Arrays, values: Values) -> Expr:
    """An array of different elements, each out of ``values``.

    Of up to ``MAX_ANY_ORDER`` values all orders are written, of more only one.

    Raises:
        UnsupportedKeyword: the values are not a short list.
    """
    texts = _texts(values)
    if texts is None or arrays.prefix or arrays.contains:
        assert arrays.unique is not None
        reason = f"only elements out of a list of at most {MAX_DIFFERENT} values are compared"
        raise unsupported(arrays.unique, "uniqueItems", reason)

    def end(count: int) -> Expr | None:
        return rules.closing("]", empty=count == 0) if count >= arrays.low else None

    if len(texts) > MAX_ANY_ORDER:
        steps = [Step(text, required=False) for text in texts]
        found = chain(rules, steps, arrays.low, arrays.high, end)
    else:
        found = _in_any_order(rules, texts, arrays.low, arrays.high)
    return sequence(rules.opening("["), alt([]) if found is None else found)


def _in_any_order(rules: Rules, texts: list[Text], low: int, high: int | None) -> Expr:
    """Every list of different texts; a rule for each set of texts that are still to come."""
    most = len(texts) if high is None else min(high, len(texts))
    after: dict[frozenset[int], Expr] = {}
    everything = frozenset(range(len(texts)))
    for left in sorted(_subsets(len(texts)), key=len):
        count = len(texts) - len(left)
        found: list[Expr] = []
        if count >= low:
            found.append(rules.closing("]", empty=count == 0))
        if count < most:
            comma = rules.comma if count else Text("")
            found += [sequence(comma, texts[i], after[left - {i}]) for i in sorted(left)]
        after[left] = rules.define(alt(found)) if count > 0 else alt(found)
    return after[everything]


def _subsets(size: int) -> Iterator[frozenset[int]]:
    for bits in range(1 << size):
        yield frozenset(i for i in range(size) if bits >> i & 1)


def _texts(values: Values) -> list[Text] | None:
    """All values, each in one spelling; None: they are too many, or arrays or objects."""
    if values.arrays or values.objects:
        return None
    found = [Text(name) for name in ("null", "true", "false") if name in values.simple]
    numerals = values.numbers.written.some_words(2 * MAX_DIFFERENT)
    words: list[str] = []
    for strings in values.strings:
        some = None if strings.language is None else strings.language.dfa.some_words(MAX_DIFFERENT)
        if some is None:
            return None
        words += some
    if numerals is None:
        return None
    by_value = {Decimal(text): text for text in sorted(numerals, reverse=True)}
    found += [Text(by_value[value]) for value in sorted(by_value)]
    found += [quoted(word) for word in sorted(set(words))]
    return found if len(found) <= MAX_DIFFERENT else None
