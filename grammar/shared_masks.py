"""Masks that sequences of one constraint share: made once for a state, copied from then on.

Beside the engine that matches, which makes every mask the first time, a sequence follows the
states of its grammar (``states``). Where its state's mask is known, the engine is not asked: what
the sequence accepts is handed to it when it is needed again. So texts whose states others have
been in cost a few lookups a token instead of a parser's work.

A text that is not followed (its constraint is used for the first time, is free text with
triggers, is too large, or new states are all that it meets) is the engine's alone.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import threading
from collections.abc import Sequence
from typing import cast
from weakref import WeakKeyDictionary

import numpy as np

from rtlang.grammar.matcher import BATCH_FROM, Compiled, Matcher, Native
from rtlang.grammar.states import LOST, Program, Room, State, States
from rtlang.grammar.vocab import Bitmask, Vocab

logger = logging.getLogger(__name__)

#: Of one table: so many masks, so many bytes.
MAX_MASKS, MAX_BYTES = 4096, 64 << 20
#: After so many masks asked for, at least one in so many must have been known.
WORTH_AFTER, WORTH_SHARE = 2000, 2
#: Tokens that the engine may lag behind.
MAX_LAG = 1024
_NODE_BYTES = 100  # of a ``Program``, about


class MaskTable:
    """Masks of one vocabulary's constraints, each different one once. Thread-safe.

    masks  int32 [room, num_words], of which the first rows are used; its rows never change
    """

    def __init__(self, num_words: int) -> None:
        self._most = max(1, min(MAX_MASKS, MAX_BYTES // (4 * num_words)))
        self.masks: Bitmask = np.zeros((min(64, self._most), num_words), np.int32)
        self._rows: dict[bytes, int] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def full(self) -> bool:
        return len(self._rows) >= self._most

    def add(self, words: Bitmask) -> int:
        """The row of this mask; -1 if it is new and there is no room."""
        key = hashlib.blake2b(words.data, digest_size=16).digest()
        with self._lock:
            row = self._rows.get(key, -1)
            if row < 0 and not self.full:
                row = len(self._rows)
                if row == len(self.masks):
                    more = np.zeros((min(2 * row, self._most), words.size), np.int32)
                    more[:row] = self.masks
                    self.masks = more
                self.masks[row] = words
                self._rows[key] = row
        return row


class _Shelf:
    """What constraints share until there is no room for more; sequences that run keep theirs."""

    def __init__(self, num_words: int) -> None:
        self.table, self.room = MaskTable(num_words), Room()
        self.known: WeakKeyDictionary[SharedCompiled, _Known] = WeakKeyDictionary()


class Sharing:
    """Of one vocabulary's constraints. Thread-safe."""

    def __init__(self, vocab: Vocab) -> None:
        self._vocab = vocab
        self._shelf = _Shelf(vocab.num_words)
        self._lock = threading.Lock()

    def known(self, compiled: SharedCompiled, program: Program) -> _Known:
        """What is known of a constraint, begun anew where there is no room left."""
        with self._lock:
            if self._shelf.table.full or self._shelf.room.full:
                self._shelf = _Shelf(self._vocab.num_words)
            shelf = self._shelf
            known = shelf.known.get(compiled)
            if known is None:
                states = States(program, self._vocab, shelf.room)
                known = shelf.known[compiled] = _Known(states, shelf.table)
            return known


class SharedCompiled:
    """Implements ``Compiled``: another one, whose sequences share masks from the second on."""

    def __init__(self, compiled: Compiled, program: Program, sharing: Sharing) -> None:
        self.size_bytes = compiled.size_bytes + _NODE_BYTES * len(program.nodes)
        self._compiled, self._program, self._sharing = compiled, program, sharing
        self._is_used = False

    def matcher(self) -> Matcher:
        inner = self._compiled.matcher()
        known = self._sharing.known(self, self._program)
        if known.useless:
            known.states = None
        if known.states is None:
            return inner
        start = known.states.start if self._is_used else LOST
        self._is_used = True
        return Matcher(SharedNative(inner.native, known, [start]), inner.vocab)


class _Known:
    """What the sequences of one constraint know together. ``states``: None if it was useless."""

    def __init__(self, states: States, table: MaskTable) -> None:
        self.states: States | None = states
        self.table = table
        self.num_asked = self.num_made = 0  # masks

    @property
    def useless(self) -> bool:
        return self.num_asked > WORTH_AFTER and WORTH_SHARE * self.num_made > self.num_asked

    def after(self, state: State, token_id: int) -> State:
        """``States.after``, while it is of use."""
        states = self.states
        if states is None or state is LOST or self.useless:
            return LOST
        return states.after(state, token_id)


class SharedNative:
    """Implements ``Native``. The inner one lags behind by the tokens in ``_due``."""

    __slots__ = ("_due", "_way", "inner", "known", "state")

    def __init__(self, inner: Native, known: _Known, way: list[State]) -> None:
        """``way``: the state before each token, and the one now."""
        self.inner, self.known = inner, known
        self._way, self.state = way, way[-1]
        self._due: list[int] = []

    def accept(self, token_id: int) -> bool:
        state = self.state.tokens.get(token_id)
        if state is None:
            return self._accept_new(token_id)
        self.state = state
        self._way.append(state)
        self._due.append(token_id)
        return len(self._due) < MAX_LAG or self._caught_up()

    def _accept_new(self, token_id: int) -> bool:
        """A token that no sequence has gone on with from here."""
        state, known = self.state, self.known
        if state.mask >= 0:
            word = int(known.table.masks[state.mask, token_id // 32])
            if not word >> token_id % 32 & 1:
                return False
            self._due.append(token_id)
        elif not (self._caught_up() and self.inner.accept(token_id)):
            return False
        self.state = known.after(state, token_id)
        self._way.append(self.state)
        return True

    def _caught_up(self) -> bool:
        """Hand the inner one what it has not seen. False: it does not take it."""
        due = self._due
        taken = 0
        while taken < len(due) and self.inner.accept(due[taken]):
            taken += 1
        del due[:taken]
        if due:
            logger.error("token %d: a constraint's states and its engine disagree", due[0])
        return not due

    def can_end(self) -> bool:
        if self.state is not LOST:
            return self.state.can_end
        return self._caught_up() and self.inner.can_end()

    def fill(self, bitmask: Bitmask, row: int) -> None:
        self.fill_many([self], bitmask, [row])

    def fill_many(self, natives: Sequence[Native], bitmask: Bitmask, rows: Sequence[int]) -> None:
        known, num_asked = self.known, 0
        known_at: list[int] = []
        known_rows: list[int] = []
        others: list[tuple[SharedNative, int]] = []
        for native, row in zip(cast("Sequence[SharedNative]", natives), rows, strict=True):
            at = native.state.mask
            if native.known is known:
                num_asked += 1
            else:
                native.known.num_asked += 1
                if native.known.table is not known.table:
                    at = -1
            if at >= 0:
                known_at.append(at)
                known_rows.append(row)
            else:
                others.append((native, row))
        known.num_asked += num_asked
        if known_at:
            _copy(known.table.masks, known_at, bitmask, known_rows)
        if others:
            _make(others, bitmask)

    def rollback(self, num_tokens: int) -> None:
        due = min(num_tokens, len(self._due))
        if num_tokens:
            del self._way[-num_tokens:]
            self.state = self._way[-1]
        if due:
            del self._due[-due:]
        if num_tokens > due:
            self.inner.rollback(num_tokens - due)

    def fork(self) -> SharedNative:
        other = SharedNative(self.inner.fork(), self.known, self._way.copy())
        other._due = self._due.copy()
        return other

    def forced_text(self) -> str:
        state = self.state
        forced = state.forced
        if forced is None:
            if not self._caught_up():
                return ""
            forced = self.inner.forced_text()
            if state is not LOST:
                state.forced = forced
        return forced

    def note_jump(self, jumped: bool) -> None:
        if len(self._way) > 1 and (before := self._way[-2]) is not LOST:
            before.note_jump(jumped)

    def expects_jump(self) -> bool:
        return self.state.jumps > 0


def _copy(masks: Bitmask, at: list[int], bitmask: Bitmask, rows: list[int]) -> None:
    first, last = rows[0], rows[-1]
    if last - first + 1 == len(rows) and all(a < b for a, b in itertools.pairwise(rows)):
        np.take(masks, at, axis=0, out=bitmask[first : last + 1], mode="clip")
    else:
        bitmask[rows] = masks[at]


def _make(natives: list[tuple[SharedNative, int]], bitmask: Bitmask) -> None:
    """Masks that are not known, or in another table: for one sequence of each state."""
    todo: dict[object, tuple[SharedNative, int]] = {}
    alike: list[tuple[int, int]] = []  # a row, and the one that it is copied from
    for native, row in natives:
        state = native.state
        if state.mask >= 0:
            bitmask[row] = native.known.table.masks[state.mask]
            continue
        if state is LOST:
            native.known.num_asked -= 1  # it tells nothing of the others
        key = native if state is LOST else state
        if key in todo:
            alike.append((row, todo[key][1]))
        elif native._caught_up():
            todo[key] = native, row
        else:
            bitmask[row] = 0  # a dead end, for this sequence alone
    made = list(todo.values())
    if len(made) < BATCH_FROM:
        for native, row in made:
            native.inner.fill(bitmask, row)
    else:
        inner = [native.inner for native, _ in made]
        inner[0].fill_many(inner, bitmask, [row for _, row in made])
    for native, row in made:
        state, known = native.state, native.known
        if state is not LOST:
            known.num_made += 1
            state.mask = known.table.add(bitmask[row])
    for row, source in alike:
        bitmask[row] = bitmask[source]
