"""Walking expressions of the grammar IR without recursion: nesting costs no stack."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from rtlang.grammar.ir import Alt, Dispatch, Expr, Grammar, Ref, Repeat, Seq

T = TypeVar("T")


def children(expr: Expr) -> tuple[Expr, ...]:
    if isinstance(expr, Seq | Alt):
        return expr.parts
    if isinstance(expr, Repeat):
        return (expr.expr,)
    return ()


def fold(expr: Expr, combine: Callable[[Expr, list[T]], T]) -> T:
    """The value of ``expr``, where ``combine`` makes a node's value from its children's.

    A node that occurs at several places (the same object) is combined once.
    """
    done: dict[int, T] = {}
    stack = [expr]
    while stack:
        node = stack[-1]
        parts = children(node)
        todo = [part for part in parts if id(part) not in done]
        if todo:
            stack.extend(reversed(todo))
            continue
        stack.pop()
        if id(node) not in done:
            done[id(node)] = combine(node, [done[id(part)] for part in parts])
    return done[id(expr)]


def nodes(expr: Expr) -> Iterator[Expr]:
    """Every node once, in no promised order."""
    seen: set[int] = set()
    stack = [expr]
    while stack:
        node = stack.pop()
        if id(node) not in seen:
            seen.add(id(node))
            yield node
            stack.extend(children(node))


def references(expr: Expr) -> Iterator[str]:
    """Names of the rules that ``expr`` uses, possibly several times."""
    for node in nodes(expr):
        if isinstance(node, Ref):
            yield node.name
        elif isinstance(node, Dispatch):
            yield from (name for _, name in node.tags)


def reachable(grammar: Grammar) -> Grammar:
    """Only the rules that the root can reach, in the order in which they are first met."""
    found = {grammar.root: grammar.rules[grammar.root]}
    queue = [grammar.root]
    for name in queue:
        for used in sorted(set(references(found[name]))):
            assert used in grammar.rules, f"rule {name} uses {used}, which does not exist"
            if used not in found:
                found[used] = grammar.rules[used]
                queue.append(used)
    return Grammar(found, grammar.root)


def derived(rules: dict[str, Expr], holds: Callable[[Expr], bool]) -> tuple[set[int], set[str]]:
    """The nodes (by id) and the rules with a property that comes from their parts.

    A node has it if ``holds`` says so; an Alt if any part has it, a Seq if all parts have it, a
    Repeat if its body has it, a Ref if its rule has it. Takes time linear in the size.
    """
    users: dict[int | str, list[Expr | str]] = {}  # what is to be told when this node, rule has it
    missing: dict[int, int] = {}  # how many more parts have to have it
    ready: list[Expr | str] = []
    for name, rule in rules.items():
        users.setdefault(id(rule), []).append(name)
        for node in nodes(rule):
            if id(node) in missing:
                continue
            missing[id(node)] = len(node.parts) if isinstance(node, Seq) else 1
            needed = [node.name] if isinstance(node, Ref) else [id(p) for p in children(node)]
            for key in needed:
                users.setdefault(key, []).append(node)
            if holds(node) or missing[id(node)] == 0:
                ready.append(node)
    found: set[int | str] = set()
    while ready:
        item = ready.pop()
        key = item if isinstance(item, str) else id(item)
        if key in found:
            continue
        found.add(key)
        for user in users.get(key, ()):
            if isinstance(user, str):
                ready.append(user)
                continue
            missing[id(user)] -= 1
            if missing[id(user)] == 0:
                ready.append(user)
    return {k for k in found if isinstance(k, int)}, {k for k in found if isinstance(k, str)}
