"""One sequence under a constraint: which tokens may follow, and whether it may end.

The engines behind it see text only. Stop ids are dealt with here, so that the mask and ``accept``
agree on them whatever the engine does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np

from rtlang.errors import GrammarDesync
from rtlang.grammar.vocab import HALF, STOP, TEXT, Bitmask, Vocab

#: From so many rows on, one call for all of them is faster than a loop.
BATCH_FROM = 4


class Native(Protocol):
    """A sequence in the engine that matches it. It is never handed ids that are no text."""

    def accept(self, token_id: int, /) -> bool:
        """Append it if it may follow; else nothing changes."""
        ...

    def can_end(self) -> bool: ...

    def fill(self, bitmask: Bitmask, row: int) -> None:
        """Write the whole row. Bits of text ids: exactly those that may follow. Of stop ids: iff
        it can end. Of other ids and past the vocabulary: none."""
        ...

    def fill_many(self, natives: Sequence[Native], bitmask: Bitmask, rows: Sequence[int]) -> None:
        """``fill`` for several of this one's engine and vocabulary."""
        ...

    def rollback(self, num_tokens: int) -> None: ...

    def fork(self) -> Native: ...

    def forced_text(self) -> str:
        """Whole characters that every continuation starts with."""
        ...

    def note_jump(self, jumped: bool) -> None:
        """Whether tokens were appended behind the last one because they were forced."""
        ...

    def expects_jump(self) -> bool:
        """Whether they mostly were, in sequences that were here, behind their next token."""
        ...


class Compiled(Protocol):
    """A constraint compiled for a vocabulary. Immutable: sequences and threads share it."""

    @property
    def size_bytes(self) -> int:
        """About how much memory it holds."""
        ...

    def matcher(self) -> Matcher:
        """A new sequence, at its start."""
        ...


class Matcher:
    """One sequence's way through a constraint. Not thread-safe: one owner at a time.

    finished      a stop id was accepted
    is_half       the last token may have begun a surrogate, which engines take for a character
    num_accepted  tokens so far, a stop id counts too
    """

    __slots__ = ("_accept", "_ids", "_kinds", "finished", "is_half", "native", "vocab")

    def __init__(self, native: Native, vocab: Vocab) -> None:
        self.vocab = vocab
        self.finished = self.is_half = False
        self.native = native
        self._accept, self._kinds = native.accept, vocab.kinds
        self._ids: list[int] = []

    @property
    def num_accepted(self) -> int:
        return len(self._ids)

    def accept(self, token_id: int) -> bool:
        """Append the token if it may follow; else nothing changes. After a stop id none may."""
        if self.finished or not 0 <= token_id < len(self._kinds):
            return False
        kind = self._kinds[token_id]
        if self.is_half or kind != TEXT:  # seldom
            return self._accept_other(token_id, kind)
        if not self._accept(token_id):
            return False
        self._ids.append(token_id)
        return True

    def _accept_other(self, token_id: int, kind: int) -> bool:
        if kind == STOP:
            if not self.native.can_end():
                return False
            self.finished = True
        else:
            is_text = kind in (TEXT, HALF)
            surrogate = self.is_half and self.vocab.ends_surrogate(token_id)
            if not is_text or surrogate or not self._accept(token_id):
                return False
        self._ids.append(token_id)
        self.is_half = kind == HALF
        return True

    def replay(self, ids: Iterable[int]) -> None:
        """Append tokens that were accepted before, elsewhere. Raises ``GrammarDesync``."""
        for token_id in ids:
            if not self.accept(token_id):
                raise GrammarDesync(
                    f"token {token_id} at {self.num_accepted} breaks the constraint"
                )

    def rollback(self, num_tokens: int) -> None:
        """Take back the last ``num_tokens`` tokens, a stop id among them."""
        assert 0 <= num_tokens <= self.num_accepted, (num_tokens, self.num_accepted)
        del self._ids[self.num_accepted - num_tokens :]
        if self.finished and num_tokens:
            self.finished = False
            num_tokens -= 1
        if num_tokens:
            self.native.rollback(num_tokens)
        self.is_half = bool(self._ids) and self._kinds[self._ids[-1]] == HALF

    def fork(self) -> Matcher:
        """A second sequence in the same state."""
        other = Matcher(self.native.fork(), self.vocab)
        other.finished, other.is_half, other._ids = self.finished, self.is_half, self._ids.copy()
        return other

    def can_end(self) -> bool:
        """Whether the text so far is whole: a stop id may follow, or did."""
        return self.finished or self.native.can_end()

    def fill(self, bitmask: Bitmask, row: int) -> None:
        """Write the whole row: the bits of exactly the tokens that may follow.

        A row without a bit: no token of the vocabulary continues the text. A finished sequence,
        which takes no token, gets one that allows the stop ids.
        """
        words = self.checked(bitmask)[row]
        if self.finished:
            words[:] = self.vocab.stop_row
            return
        self.native.fill(bitmask, row)
        if self.is_half:
            words &= self.vocab.whole_row

    def only_stops(self) -> bool:
        """Whether a stop id must follow: the rest of the generation is known."""
        if self.finished or not self.native.can_end():
            return False
        bitmask = np.zeros((1, self.vocab.num_words), np.int32)
        self.fill(bitmask, 0)
        return np.array_equal(bitmask[0], self.vocab.stop_row)

    def jump_text(self) -> str:
        """The characters that must follow, "" if there is a choice. Changes nothing."""
        return "" if self.can_end() else self.native.forced_text()

    def checked(self, bitmask: Bitmask) -> Bitmask:
        """The bitmask itself, which has to fit."""
        # Engines write through the pointer: another layout would be overwritten elsewhere.
        assert bitmask.dtype == np.int32 and bitmask.flags.c_contiguous
        assert bitmask.shape[1] == self.vocab.num_words, bitmask.shape
        return bitmask


def fill_batch(matchers: Sequence[Matcher], bitmask: Bitmask, rows: Sequence[int]) -> None:
    """``matchers[i].fill(bitmask, rows[i])`` for all, of one vocabulary."""
    assert len(matchers) == len(rows)
    if len(matchers) < BATCH_FROM:
        for matcher, row in zip(matchers, rows, strict=True):
            matcher.fill(bitmask, row)
        return
    matchers[0].checked(bitmask)
    natives = [matcher.native for matcher in matchers if not matcher.finished]
    if len(natives) == len(matchers) and len(set(map(type, natives))) == 1:
        natives[0].fill_many(natives, bitmask, rows)
    else:
        _fill_by_engine(matchers, bitmask, rows)
    for at in [at for at, matcher in enumerate(matchers) if matcher.is_half]:
        bitmask[rows[at]] &= matchers[at].vocab.whole_row


def _fill_by_engine(matchers: Sequence[Matcher], bitmask: Bitmask, rows: Sequence[int]) -> None:
    by_engine: dict[type[Native], list[int]] = {}
    for at, matcher in enumerate(matchers):
        if matcher.finished:
            matcher.fill(bitmask, rows[at])
        else:
            by_engine.setdefault(type(matcher.native), []).append(at)
    for group in by_engine.values():
        natives = [matchers[at].native for at in group]
        natives[0].fill_many(natives, bitmask, [rows[at] for at in group])


def accepts(compiled: Compiled, data: bytes) -> bool:
    """Whether ``data`` is a whole text of a constraint compiled for ``Vocab.bytes_only()``."""
    matcher = compiled.matcher()
    return all(matcher.accept(byte) for byte in data) and matcher.can_end()
