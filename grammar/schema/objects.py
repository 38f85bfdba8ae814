"""Objects in the algebra: intersection, and what can be said of them without writing them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

from rtlang.errors import GrammarTooLarge
from rtlang.grammar.dfa import Dfa
from rtlang.grammar.schema.values import (
    ANY,
    ANY_OBJECTS,
    EVERYTHING,
    NEVER,
    Keys,
    Member,
    Node,
    Objects,
    joined,
    least,
)

MAX_CELLS = 64  # disjoint sets of keys that are not declared
MAX_NAMED = 16  # keys of a finite set that are told apart


def both_objects(a: Objects, b: Objects) -> Objects:
    """The intersection, which may be empty; first come the properties of ``a``."""
    if a is ANY_OBJECTS or b is ANY_OBJECTS:
        return b if a is ANY_OBJECTS else a
    declared = [
        *(name for name in a.by_name if name not in a.mentioned),
        *(name for name in b.by_name if name not in b.mentioned),
    ]
    names = dict.fromkeys([*declared, *a.by_name, *b.by_name])
    return Objects(
        properties=tuple((name, joined(a.value(name), b.value(name))) for name in names),
        rest=_common_rest(a.rest, b.rest),
        required=tuple(dict.fromkeys(a.required + b.required)),
        mentioned=(a.mentioned | b.mentioned).difference(declared),
        low=max(a.low, b.low),
        high=least(a.high, b.high),
        some=tuple(dict.fromkeys(a.some + b.some)),
        implied=a.implied and b.implied,
        evaluated=a.evaluated | b.evaluated,
        counted=a.counted or b.counted,
    )


def _common_rest(
    a: tuple[tuple[Dfa, Node], ...], b: tuple[tuple[Dfa, Node], ...]
) -> tuple[tuple[Dfa, Node], ...]:
    found: list[tuple[Dfa, Node]] = []
    for keys_a, node_a in a:
        for keys_b, node_b in b:
            node = joined(node_a, node_b)
            if node == NEVER:
                continue
            if EVERYTHING in (keys_a, keys_b):
                keys = keys_a if keys_b == EVERYTHING else keys_b
            else:
                keys = keys_a & keys_b
            if not keys.is_empty:
                found.append((keys, node))
    if len(found) > MAX_CELLS:
        message = f"more than {MAX_CELLS} sets of keys with schemas of their own"
        raise GrammarTooLarge(message, limit="alternatives")
    return tuple(found)


def possible_objects(objects: Objects, is_empty: Callable[[Node], bool]) -> list[Objects]:
    """The same objects without what no object of them has, as alternatives.

    Afterwards every required key is declared, and a member that must occur is not a declared one.
    """
    if objects is ANY_OBJECTS:
        return [objects]
    missing = [name for name in objects.required if name not in objects.by_name]
    properties = objects.properties + tuple((name, objects.value(name)) for name in missing)
    if any(name in objects.required and is_empty(node) for name, node in properties):
        return []
    rest = tuple((keys, node) for keys, node in objects.rest if not is_empty(node))
    low, high = objects.low, objects.high
    if len(objects.required) >= low:
        low = 0
    most = None if rest else sum(node != NEVER for _, node in properties)
    if most is not None and high is not None and most <= high:
        high = None
    limit = least(high, most)
    if limit is not None and max(low, len(objects.required)) > limit:
        return []
    found = dataclasses.replace(
        objects,
        properties=properties,
        rest=rest,
        mentioned=objects.mentioned | set(missing),
        low=low,
        high=high,
    )
    return _with_members(found, is_empty) if objects.some else [found]


def _with_members(objects: Objects, is_empty: Callable[[Node], bool]) -> list[Objects]:
    """One alternative for each way in which the first member that must occur may do so."""
    for member in objects.some:
        if member.node == ANY and any(map(member.keys.accepts, objects.required)):
            some = tuple(m for m in objects.some if m is not member)
            return possible_objects(dataclasses.replace(objects, some=some), is_empty)
    for i, member in enumerate(objects.some):
        others = objects.some[:i] + objects.some[i + 1 :]
        named = list(_names(objects, member))
        open_keys = _open_keys(objects, member, is_empty)
        if not named and open_keys is not None and open_keys == member.keys:
            continue
        found: list[Objects] = []
        for name in named:
            given = dataclasses.replace(objects, some=others)
            found += possible_objects(_requiring(given, name, member.node), is_empty)
        if open_keys is not None:
            some = (
                *objects.some[:i],
                dataclasses.replace(member, keys=open_keys),
                *objects.some[i + 1 :],
            )
            found += _with_members(dataclasses.replace(objects, some=some), is_empty)
        return list(dict.fromkeys(found))
    return [objects]


def _names(objects: Objects, member: Member) -> Iterator[str]:
    """Keys that the member may have, so far as they are declared or few."""
    for name, node in objects.properties:
        if member.keys.accepts(name) and node != NEVER:
            yield name
    for name in member.keys.some_words(MAX_NAMED) or []:
        if name not in objects.by_name:
            yield name


def _open_keys(objects: Objects, member: Member, is_empty: Callable[[Node], bool]) -> Dfa | None:
    """The keys beyond those of ``_names`` that the member may have; None: no others."""
    if member.keys.some_words(MAX_NAMED) is not None:
        return None
    declared = [name for name in objects.by_name if member.keys.accepts(name)]
    keys = member.keys - Dfa.words(declared) if declared else member.keys
    possible = any(
        not (keys & cell).is_empty and not is_empty(joined(node, member.node))
        for cell, node in objects.rest
    )
    return keys if possible else None


def _requiring(objects: Objects, name: str, node: Node) -> Objects:
    properties = dict(objects.properties)
    properties[name] = joined(objects.value(name), node)
    required = tuple(dict.fromkeys((*objects.required, name)))
    return dataclasses.replace(
        objects,
        properties=tuple(properties.items()),
        required=required,
        mentioned=objects.mentioned | ({name} - objects.by_name.keys()),
    )


def with_unevaluated(objects: Objects, node: Node) -> Objects:
    """Those in which values of keys that no schema has evaluated satisfy ``node``; all keys are
    evaluated now."""
    evaluated = objects.evaluated.dfa
    properties = tuple(
        (name, value if evaluated.accepts(name) else joined(value, node))
        for name, value in objects.properties
    )
    rest: list[tuple[Dfa, Node]] = []
    for keys, value in objects.rest:
        rest += [(keys & evaluated, value), (keys - evaluated, joined(value, node))]
    return dataclasses.replace(
        objects,
        properties=properties,
        rest=tuple((k, v) for k, v in rest if not k.is_empty and v != NEVER),
        implied=False,
        evaluated=Keys(patterns=(EVERYTHING,)),
    )
