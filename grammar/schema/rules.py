"""The rules of a grammar that is being written, and the tokens that all of its parts use."""

from __future__ import annotations

from collections import deque

from rtlang.grammar.charset import CharSet
from rtlang.grammar.ir import Alt, Chars, Expr, Grammar, Ref, Repeat, Seq, Text
from rtlang.grammar.schema.values import Node


class Rules:
    """Rules made as they are asked for.

    whitespace  most white space in a row between two tokens: a space, or a line break and then
                spaces or tabs
    closed      objects hold only declared properties where no schema says anything of others
    """

    def __init__(self, whitespace: int, *, closed: bool) -> None:
        self.closed = closed
        self._rules: dict[str, Expr] = {}
        self._names: dict[Expr, str] = {}
        self._nodes: dict[Node, str] = {}
        self._ended: dict[str, str] = {}
        self._to_end: deque[str] = deque()
        self._pending: deque[Node] = deque()
        space: Expr = Text("")
        if whitespace:
            # Written out wherever it is, and with one branch that counts: as a rule of its own, or
            # counted from its first character, it makes every mask around it five times as slow.
            indent = Repeat(Chars(CharSet.of(" \t").ranges), 0, whitespace - 1)
            space = Repeat(Alt((Text(" "), sequence(Text("\n"), indent))), 0, 1)
        self.comma = sequence(space, Text(","), space)
        self.colon = sequence(space, Text(":"), space)
        self._space = space

    def opening(self, bracket: str) -> Expr:
        return sequence(Text(bracket), self._space)

    def closing(self, bracket: str, *, empty: bool) -> Expr:
        """The end of an array or object; the space in an empty one belongs to its opening."""
        return Text(bracket) if empty else sequence(self._space, Text(bracket))

    def node(self, node: Node) -> Ref:
        """The rule of a node; the first one asked for is the root."""
        if node not in self._nodes:
            self._nodes[node] = f"v{len(self._nodes)}" if self._nodes else "root"
            self._pending.append(node)
        return Ref(self._nodes[node])

    def next_node(self) -> tuple[Node, str] | None:
        """A node whose rule is still to be written, and the rule's name."""
        if not self._pending:
            return None
        node = self._pending.popleft()
        return node, self._nodes[node]

    def define(self, expr: Expr, name: str = "") -> Ref:
        """A rule of its own for an expression; equal expressions share it."""
        if expr not in self._names:
            self._names[expr] = name or self.fresh()
            self.put(self._names[expr], expr)
        return Ref(self._names[expr])

    def ended(self, name: str) -> Ref:
        """A second form of the rule of this name, with an ending: ``next_to_end`` asks for it."""
        if name not in self._ended:
            self._ended[name] = self.fresh()
            self._to_end.append(name)
        return Ref(self._ended[name])

    def next_to_end(self) -> tuple[str, Expr] | None:
        """The name that ``ended`` gave to a form still to be put, and the rule without ending."""
        if not self._to_end:
            return None
        name = self._to_end.popleft()
        return self._ended[name], self._rules[name]

    def fresh(self) -> str:
        """A name for a rule that is written later."""
        name = f"r{len(self._rules)}"
        self._rules[name] = Text("")
        return name

    def put(self, name: str, expr: Expr) -> None:
        self._rules[name] = expr

    def grammar(self) -> Grammar:
        return Grammar(self._rules)


def sequence(*parts: Expr) -> Expr:
    """One after the other, without sequences in sequences and empty texts."""
    flat: list[Expr] = []
    for part in parts:
        flat += part.parts if isinstance(part, Seq) else [part]
    flat = [part for part in flat if part != Text("")]
    return flat[0] if len(flat) == 1 else Seq(tuple(flat)) if flat else Text("")
