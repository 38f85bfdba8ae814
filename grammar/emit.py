"""The grammar IR written as the EBNF that xgrammar reads (its release 0.2.9).

What xgrammar makes of that text was compared with the IR, rule form by rule form: classes over
all code points, counted repetitions, left and hidden left recursion, cyclic rules and free text
with triggers are exact. A NUL in a literal is not, so it is written as a class.

Speed decides between forms of the same language. A class of nearly everything is written by what
it leaves out: counted, it compiles in milliseconds instead of seconds. (The UTF-8 forms of
surrogates are then in it; ``Matcher`` keeps them out.) A repetition of something that may be a
single character becomes a rule that calls itself, its alternatives written out: masks in its
middle then take microseconds instead of tens of milliseconds.
"""

from __future__ import annotations

from typing import NamedTuple

from rtlang.grammar.checks import prepared
from rtlang.grammar.ir import Alt, Chars, Dispatch, Expr, Grammar, Ref, Repeat, Seq, Text
from rtlang.grammar.ir_walk import fold
from rtlang.grammar.loops import loop_branches

#: Of nested expressions in one rule; xgrammar reads 1,000 and its passes recurse.
_MAX_DEPTH = 100
#: Names of the rules that nesting makes. The IR has no capital letters.
_INNER = "Inner"
_LOOP = "Loop"
_WRITTEN_OUT = 4


def to_ebnf(grammar: Grammar) -> str:
    """EBNF of exactly this language, root rule ``root``; dead parts are left out.

    Raises:
        GrammarUnsatisfiable: no text at all is in it.
        GrammarTooLarge: it is larger than ``checks.MAX_SIZE``.
    """
    grammar = prepared(grammar)
    lines: list[str] = []
    loops: dict[tuple[Expr, str], str] = {}

    def looped(node: Repeat, end: str) -> str:
        """The rest of a repetition and what ends it; "" where it is written otherwise."""
        branches = loop_branches(node.expr, grammar.rules)
        if branches and (node.expr, end) not in loops:
            loops[node.expr, end] = f"{_LOOP}{len(loops)}"
            lines.append(_loop(loops[node.expr, end], branches, end))
        return loops.get((node.expr, end), "")

    def rounds(node: Repeat) -> str:
        """The rounds that a repetition has at least; up to a few without counting."""
        if node.low > _WRITTEN_OUT:
            return f"({fold(node.expr, _written)}){_count(node.low, node.low)} "
        branches = loop_branches(node.expr, grammar.rules)
        one = " | ".join(fold(branch, _written) for branch in branches)
        return f"({one}) " * node.low

    def written(node: Expr, parts: list[_Piece]) -> _Piece:
        if isinstance(node, Repeat) and node.high is None and (rest := looped(node, '""')):
            return _Piece(f"({rounds(node)}{rest})", 1 + parts[0].depth)
        if isinstance(node, Seq) and (ended := _ended_repeat(node)):
            repeated, end = ended
            if rest := looped(repeated, _text(end.text)):
                depth = 2 + max(part.depth for part in parts)
                before = " ".join(part.text for part in parts[:-2])
                return _Piece(f"({before} {rounds(repeated)}{rest})", depth)
        text = _written(node, [part.text for part in parts])
        depth = 1 + max((part.depth for part in parts), default=0)
        if depth < _MAX_DEPTH:
            return _Piece(text, depth)
        # xgrammar refuses deep nesting: what is inside becomes a rule.
        lines.append(f"{_INNER}{len(lines)} ::= {text}")
        return _Piece(f"{_INNER}{len(lines) - 1}", 0)

    for name, expr in grammar.rules.items():
        assert not name.startswith((_INNER, _LOOP)), name
        text = fold(expr, written).text
        lines.append(f"{name} ::= {text}")
    if grammar.root != "root":
        assert "root" not in grammar.rules, "a rule is called root and is not the root"
        lines.append(f"root ::= {grammar.root}")
    return "\n".join(lines) + "\n"


def _loop(name: str, branches: list[Expr], end: str) -> str:
    texts = [fold(branch, _written) for branch in branches]
    return f"{name} ::= {end} | " + " | ".join(f"{text} {name}" for text in texts)


def _ended_repeat(node: Seq) -> tuple[Repeat, Text] | None:
    """A repetition at the end of a sequence, but for a text: masks are fast where the rule that
    repeats knows its end."""
    *_, repeated, end = (Text(""), *node.parts)
    if isinstance(repeated, Repeat) and repeated.high is None and isinstance(end, Text):
        return repeated, end
    return None


class _Piece(NamedTuple):
    text: str
    depth: int  # of nested expressions


def _written(node: Expr, parts: list[str]) -> str:
    """One expression; whatever has several parts stands in parentheses."""
    if isinstance(node, Text):
        return _text(node.text)
    if isinstance(node, Chars):
        return _class(node.ranges)
    if isinstance(node, Ref):
        return node.name
    if isinstance(node, Dispatch):
        return _dispatch(node)
    if isinstance(node, Repeat):
        # A class in parentheses would become a rule that is called for each character.
        body = parts[0] if isinstance(node.expr, Chars) else f"({parts[0]})"
        return body + _count(node.low, node.high)
    assert parts, "an empty choice has to be pruned before, an empty sequence written as text"
    return "(" + (" | " if isinstance(node, Alt) else " ").join(parts) + ")"


def _count(low: int, high: int | None) -> str:
    if high is None:
        return {0: "*", 1: "+"}.get(low, f"{{{low},}}")
    if low == high:
        return f"{{{low}}}"
    return "?" if (low, high) == (0, 1) else f"{{{low},{high}}}"


def _class(ranges: tuple[tuple[int, int], ...]) -> str:
    outside, start = [], 0
    for low, high in ranges[:-1]:
        if start < low:
            outside.append((start, low - 1))
        start = high + 1
    # The surrogates lie within the one gap that is left then; they are no characters.
    nearly_all = ranges[-1] == (0xE000, 0x10FFFF) and start == 0xD800 and outside
    sign, written = ("^", outside) if nearly_all else ("", ranges)
    return f"[{sign}{''.join(_range(low, high) for low, high in written)}]"


def _text(text: str) -> str:
    if "\0" not in text:
        return _literal(text)
    pieces = [_literal(piece) for piece in text.split("\0")]
    return "(" + r" [\u0000] ".join(pieces) + ")"


def _literal(text: str) -> str:
    return '"' + "".join(_in_literal(char) for char in text) + '"'


def _in_literal(char: str) -> str:
    return char if " " <= char <= "~" and char not in '"\\' else _escaped(ord(char))


def _range(low: int, high: int) -> str:
    return _in_class(low) if low == high else f"{_in_class(low)}-{_in_class(high)}"


def _in_class(point: int) -> str:
    return chr(point) if point < 128 and chr(point).isalnum() else _escaped(point)


def _escaped(point: int) -> str:
    assert not 0xD800 <= point <= 0xDFFF, "a surrogate is no character"
    return f"\\u{point:04X}" if point <= 0xFFFF else f"\\U{point:08X}"


def _dispatch(node: Dispatch) -> str:
    triggers = [trigger for trigger, _ in node.tags]
    assert all(node.excludes) and all(triggers), "an empty trigger or exclusion"
    # xgrammar reads from left to right and takes the trigger that ends first.
    assert not any(a != b and a in b for a in triggers for b in [*triggers, *node.excludes])
    assert not any(a in b for a in node.excludes for b in triggers), "a trigger never comes"
    tags = "".join(f"({_literal(trigger)}, {name}), " for trigger, name in node.tags)
    excludes = ", ".join(map(_literal, node.excludes))
    return f"TagDispatch({tags}loop_after_dispatch=true, excludes=({excludes}))"
