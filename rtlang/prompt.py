"""RawPrompt: the token ids of a program without roles, and the text that is not tokenized yet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from rtlang.runtime.tokenizer import Tokenizer
from rtlang.where import Where


class Prompt(Protocol):
    """The token-native content of a program's state: ids, and text that waits to become ids.

    Generated ids stay as they are. Text waits until ``sync``, so that neighbouring pieces are
    tokenized together, once.
    """

    ids: list[int]
    #: The pieces of text in order, the program's and the model's, without a template's markers.
    flow: list[str]

    def add_text(self, text: str, *, control: bool) -> None: ...

    def add_generated(self, ids: Sequence[int], text: str, kept_text: str) -> None:
        """After ``sync``: append what a model said. ``ids`` cover ``text`` up to ``kept_text``,
        its end, which stays text (a stop had cut the token)."""
        ...

    def sync(self, where: Where) -> list[int]:
        """Tokenize what waits; the ids of everything so far."""
        ...

    def freeze(self, where: Where) -> list[int]:
        """``sync`` as far as it is sure that later text does not change the ids."""
        ...

    def text(self) -> str:
        """Everything so far, with the template's markers."""
        ...

    def messages(self) -> list[dict[str, str]]: ...

    def copy(self) -> Prompt: ...


class RawPrompt:
    """Implements ``Prompt`` for plain text. Control tokens count only in ``control`` text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.ids: list[int] = []
        self.flow: list[str] = []
        self._pending: list[tuple[str, bool]] = []  # (text, control)
        self._started = False  # whether the start of the prompt (its BOS) is in ``ids``

    @property
    def empty(self) -> bool:
        return not self._started and not self._pending

    def add_text(self, text: str, *, control: bool) -> None:
        self.flow.append(text)
        self._wait(text, control)

    def add_generated(self, ids: Sequence[int], text: str, kept_text: str) -> None:
        assert self._started and not self._pending and text.endswith(kept_text)
        self.ids += ids
        self.flow.append(text)
        self._wait(kept_text, False)

    def sync(self, where: Where) -> list[int]:
        # Text and control text do not merge: a control token separates them anyway.
        pending, self._pending = self._pending, []
        if not self._started:
            text, control = pending.pop(0) if pending else ("", False)
            self.ids += self._tokenizer.encode(text, control=control)
            self._started = True
        for text, control in pending:
            self.ids += self._tokenizer.encode(text, add_bos=False, control=control)
        return list(self.ids)

    def freeze(self, where: Where) -> list[int]:
        return self.sync(where) if self._pending else list(self.ids)

    def text(self) -> str:
        return "".join(self.flow)

    def messages(self) -> list[dict[str, str]]:
        return []

    def copy(self) -> RawPrompt:
        twin = RawPrompt(self._tokenizer)
        twin.ids, twin.flow = list(self.ids), list(self.flow)
        twin._pending, twin._started = list(self._pending), self._started
        return twin

    def _wait(self, text: str, control: bool) -> None:
        if not text:
            return
        if self._pending and self._pending[-1][1] == control:
            text = self._pending.pop()[0] + text
        self._pending.append((text, control))
