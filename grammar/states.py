"""The states of a grammar: texts that lead to the same one can be followed by the same texts.

A state is the set of all places where the text may stand in the grammar: within a literal or
before a class of characters, each with a stack of what comes after it. Repetitions are counted in
the stack; what is last in a rule or a round leaves nothing there, so that loops lead back to
states that are known. States are found as texts lead to them and are never taken apart again.

Brzozowski, "Derivatives of regular expressions" (1964), and Antimirov, "Partial derivatives of
regular expressions and finite automaton constructions" (1996), with rules.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from functools import cached_property
from typing import Any, NamedTuple

from rtlang.grammar.ir import Alt, Chars, Dispatch, Expr, Grammar, Ref, Repeat, Seq, Text
from rtlang.grammar.ir_walk import fold
from rtlang.grammar.vocab import Vocab, decoded

#: Of a grammar whose states are followed.
MAX_NODES = 50_000
#: Of one state, and of the search for what follows a character: beyond them a text is lost.
MAX_PLACES, MAX_WORK = 512, 4000
#: Of all states that share a ``Room``, about 100 MiB together: beyond them nothing new is found.
MAX_STATES, MAX_MOVES, MAX_FRAMES, MAX_ALL_PLACES = 16_384, 131_072, 131_072, 262_144

TEXT, CHARS, SEQ, ALT, REPEAT, REF, END = range(7)
#: Its kind, and what the expression of that kind has; other nodes by their number.
Node = tuple[Any, ...]
#: Node (a text or a class), characters of it that are over, frame of what follows.
Place = tuple[int, int, int]
Ranges = tuple[tuple[int, int], ...]

_WHOLE = (-1, 0, 0)  # the place behind a whole text
_NOTHING = 0  # the frame behind which nothing follows
_AFTER = -1  # in place of a node: what follows it
_LAST = 0x110000


class Program(NamedTuple):
    """A grammar as a table: flat, so that it can be sent to another process whatever its depth.
    Equal expressions are one node."""

    nodes: tuple[Node, ...]
    rules: dict[str, int]
    root: str


def flattened(grammar: Grammar) -> Program | None:
    """None for what is not followed: free text with triggers, more than ``MAX_NODES``."""
    numbers: dict[Node, int] = {}

    def number(expr: Expr, parts: list[int]) -> int:
        return numbers.setdefault(_node(expr, parts), len(numbers))

    rules: dict[str, int] = {}
    for name, expr in grammar.rules.items():
        rules[name] = fold(expr, number)
        if len(numbers) > MAX_NODES:
            return None
    if any(node[0] == END for node in numbers):
        return None
    return Program(tuple(numbers), rules, grammar.root)


def _node(expr: Expr, parts: list[int]) -> Node:
    match expr:
        case Text(text):
            return TEXT, text
        case Chars(ranges):
            return CHARS, ranges
        case Seq():
            return SEQ, tuple(parts)
        case Alt():
            return ALT, tuple(parts)
        case Repeat(_, low, high):
            return REPEAT, parts[0], low, high
        case Ref(name):
            return REF, name
        case Dispatch():
            return (END,)


class State:
    """Found by ``States``; compared by identity.

    base      the state before the bytes that have begun a character; itself if there are none
    begun     those bytes
    literals  the places within texts, by the character that each takes; only of a ``base``
    classes   those before a class of characters, by the class
    mask      which row of a ``MaskTable`` says what may follow; -1: not known yet
    forced    the text that every continuation starts with; None: not known yet
    jumps     above 0 if lately tokens mostly were forced behind the next one
    """

    __slots__ = (
        "base", "begun", "can_end", "chars", "classes", "forced", "jumps", "literals", "mask",
        "moves", "places", "tokens",
    )  # fmt: skip

    def __init__(self, places: frozenset[Place], base: State | None = None, begun: bytes = b""):
        self.places = places
        self.base = base or self
        self.begun = begun
        self.can_end = not begun and _WHOLE in places
        self.literals: dict[str, list[Place]] = {}
        self.classes: dict[Ranges, list[Place]] = {}
        self.mask = -1
        self.forced: str | None = None
        self.jumps = 0
        self.tokens: dict[int, State] = {}  # the state after a token that may follow
        self.chars: dict[str, State] = {}
        self.moves: dict[tuple[Place, ...], State] = {}  # by the places where a character fits

    def note_jump(self, jumped: bool) -> None:
        """Of a sequence that went on from here."""
        self.jumps = min(self.jumps + 1, 2) if jumped else max(self.jumps - 1, -2)


class Room:
    """What the states of several grammars take together. Threads may miscount it a little."""

    def __init__(self) -> None:
        self.num_states = self.num_moves = self.num_frames = self.num_places = 0

    @property
    def full(self) -> bool:
        return (
            self.num_states >= MAX_STATES
            or self.num_moves >= MAX_MOVES
            or self.num_frames >= MAX_FRAMES
            or self.num_places >= MAX_ALL_PLACES
        )


#: Where a text is that is not followed any more. It knows of no token.
LOST = State(frozenset())


class States:
    """Of one grammar and vocabulary. Thread-safe."""

    def __init__(self, program: Program, vocab: Vocab, room: Room) -> None:
        self._nodes = program.nodes
        self._rules = program.rules
        self._vocab = vocab
        self._frames: list[tuple[int, int, int]] = [_WHOLE]  # node, parts or rounds over, next
        self._frame_numbers: dict[tuple[int, int, int], int] = {}
        self._states: dict[tuple[frozenset[Place], bytes], State] = {}
        self._room = room
        self._lock = threading.Lock()
        self._root = program.rules[program.root]

    @cached_property
    def start(self) -> State:
        with self._lock:
            return self._state(self._reached([(self._root, _NOTHING)]))

    def after(self, state: State, token_id: int) -> State:
        """The state behind a token that may follow; ``LOST`` if it cannot be told."""
        with self._lock:
            return LOST if self._room.full else self._found(state, token_id)

    def _found(self, state: State, token_id: int) -> State:
        text, begun = self._vocab.texts[token_id]
        if state.begun:
            text, begun = decoded(state.begun + self._vocab.token_bytes[token_id])
        found = state.base
        for char in text:
            found = found.chars.get(char) or self._step(found, char)
        if begun and found is not LOST:
            key = found.places, begun
            found = self._states.get(key) or self._new(key, found)
        self._room.num_moves += 1
        state.tokens[token_id] = found
        return found

    def _step(self, state: State, char: str) -> State:
        if state is LOST:
            return LOST
        fits = state.literals.get(char, [])
        code = ord(char)
        for ranges, places in state.classes.items():
            at = bisect_right(ranges, (code, _LAST)) - 1
            if at >= 0 and code <= ranges[at][1]:
                fits = fits + places
        key = tuple(fits)
        found = state.moves.get(key)
        if found is None:
            found = state.moves[key] = self._state(self._behind(key))
        self._room.num_moves += 1
        state.chars[char] = found
        return found

    def _behind(self, places: tuple[Place, ...]) -> frozenset[Place] | None:
        """Where one arrives by a character that fits at all of them."""
        direct: set[Place] = set()
        todo: list[tuple[int, int]] = []
        for at, over, frame in places:
            node = self._nodes[at]
            if node[0] == TEXT and over + 1 < len(node[1]):
                direct.add((at, over + 1, frame))
            else:
                todo.append((_AFTER, frame))
        reached = self._reached(todo)
        return None if reached is None else reached | direct

    def _state(self, places: frozenset[Place] | None) -> State:
        if not places or len(places) > MAX_PLACES:
            return LOST
        key = places, b""
        return self._states.get(key) or self._new(key, None)

    def _new(self, key: tuple[frozenset[Place], bytes], base: State | None) -> State:
        self._states[key] = state = State(key[0], base, key[1])
        self._room.num_states += 1
        self._room.num_places += len(key[0])
        if base is None:
            for place in key[0] - {_WHOLE}:
                kind, what = self._nodes[place[0]]
                if kind == TEXT:
                    state.literals.setdefault(what[place[1]], []).append(place)
                else:
                    state.classes.setdefault(what, []).append(place)
        return state

    def _reached(self, todo: list[tuple[int, int]]) -> frozenset[Place] | None:
        """The places before the next character, from (node, frame) pairs; None if it takes too
        long, as it does where a rule calls itself before anything else."""
        seen = set(todo)
        found: set[Place] = set()
        for at, frame in todo:  # grows while it is walked
            behind = at == _AFTER
            for item in self._returned(frame, found) if behind else self._entered(at, frame, found):
                if item not in seen:
                    seen.add(item)
                    todo.append(item)
            if len(todo) > MAX_WORK:
                return None
        return frozenset(found)

    def _entered(self, at: int, frame: int, found: set[Place]) -> list[tuple[int, int]]:
        """What stands at the beginning of a node: a place, or others."""
        node = self._nodes[at]
        kind = node[0]
        if kind == CHARS or (kind == TEXT and node[1]):
            found.add((at, 0, frame))
            return []
        if kind == TEXT:
            return [(_AFTER, frame)]
        if kind == REF:
            return [(self._rules[node[1]], frame)]
        if kind == ALT:
            return [(part, frame) for part in node[1]]
        if kind == SEQ:
            return [self._part(at, 0, frame)]
        return self._round(at, 0, frame)

    def _returned(self, frame: int, found: set[Place]) -> list[tuple[int, int]]:
        """What comes behind a frame's part or round."""
        if frame == _NOTHING:
            found.add(_WHOLE)
            return []
        at, over, above = self._frames[frame]
        if self._nodes[at][0] == SEQ:
            return [self._part(at, over, above)]
        return self._round(at, over, above)

    def _part(self, at: int, over: int, above: int) -> tuple[int, int]:
        parts = self._nodes[at][1]
        if over == len(parts):
            return _AFTER, above
        last = over + 1 == len(parts)
        return parts[over], above if last else self._frame(at, over + 1, above)

    def _round(self, at: int, over: int, above: int) -> list[tuple[int, int]]:
        """Another round after ``over`` of them (of no matter how many: the fewest), or the end."""
        _, body, low, high = self._nodes[at]
        ways = [(_AFTER, above)] if over >= low else []
        if high is None:
            ways.append((body, self._frame(at, min(over + 1, low), above)))
        elif over < high:
            last = over + 1 == high
            ways.append((body, above if last else self._frame(at, over + 1, above)))
        return ways

    def _frame(self, at: int, over: int, above: int) -> int:
        key = at, over, above
        number = self._frame_numbers.setdefault(key, len(self._frames))
        if number == len(self._frames):
            self._frames.append(key)
            self._room.num_frames += 1
        return number
