"""Arrays in the algebra: intersection, and what can be said of them without writing them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from rtlang.grammar.schema.values import ANY, ANY_ARRAYS, Arrays, Contains, Node, joined, least

MAX_PREFIX = 1000


def both_arrays(a: Arrays, b: Arrays) -> Arrays:
    """The intersection, which may be empty."""
    if a is ANY_ARRAYS or b is ANY_ARRAYS:
        return b if a is ANY_ARRAYS else a
    length = max(len(a.prefix), len(b.prefix))
    every = a.evaluated is None or b.evaluated is None
    return Arrays(
        prefix=tuple(joined(a.element(i), b.element(i)) for i in range(length)),
        rest=joined(a.rest, b.rest),
        low=max(a.low, b.low),
        high=least(a.high, b.high),
        contains=tuple(dict.fromkeys(a.contains + b.contains)),
        unique=a.unique or b.unique,
        evaluated=None if every else max(a.evaluated or 0, b.evaluated or 0),
    )


def possible_arrays(arrays: Arrays, is_empty: Callable[[Node], bool]) -> list[Arrays]:
    """The same arrays without what no array of them has; none if there are none."""
    if arrays is ANY_ARRAYS:
        return [arrays]
    low, high = arrays.low, arrays.high
    contains: list[Contains] = []
    for part in arrays.contains:
        if part.node == ANY:  # any element counts: a bound of the length
            low = max(low, part.low + part.start) if part.low else low
            high = least(high, None if part.high is None else part.high + part.start)
        elif part.high is not None and part.low > part.high:
            return []
        elif part.low or part.high is not None:
            contains.append(part)
    for i, node in enumerate(arrays.prefix):
        if (high is None or i < high) and is_empty(node):
            high = i
    if (high is None or high > len(arrays.prefix)) and is_empty(arrays.rest):
        high = len(arrays.prefix)
    if high is not None and low > high:
        return []
    prefix = arrays.prefix[:high]
    found = dataclasses.replace(arrays, prefix=prefix, low=low, high=high, contains=tuple(contains))
    dead = any(part.low and _never_occurs(found, part, is_empty) for part in contains)
    return [] if dead else [found]


def _never_occurs(arrays: Arrays, part: Contains, is_empty: Callable[[Node], bool]) -> bool:
    """Whether no element can be one that the array must contain."""
    if arrays.high is not None and arrays.high < part.start + part.low:
        return True
    places = {arrays.element(i) for i in range(part.start, len(arrays.prefix))}
    if arrays.high is None or arrays.high > len(arrays.prefix):
        places.add(arrays.rest)
    return all(is_empty(joined(node, part.node)) for node in places)


def with_unevaluated(arrays: Arrays, node: Node) -> Arrays:
    """Those whose elements that no schema has evaluated satisfy ``node``; all are evaluated now.

    What `contains` evaluates does not count here, so some arrays may be left out.
    """
    if arrays.evaluated is None:
        return arrays
    length = max(len(arrays.prefix), arrays.evaluated)
    prefix = [
        joined(arrays.element(i), node) if i >= arrays.evaluated else arrays.element(i)
        for i in range(length)
    ]
    rest = joined(arrays.rest, node)
    return dataclasses.replace(arrays, prefix=tuple(prefix), rest=rest, evaluated=None)
