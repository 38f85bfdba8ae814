"""TextLogprobs: which tokens' log-probabilities belong to which text of an answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rtlang.runtime.messages import TokenLogprobs


class TextLogprobs:
    """Texts are looked up in what the tokens say, from where the last one ended: a parser leaves
    out markers, and nothing else. A token belongs to the text in which it ends."""

    def __init__(self, token_bytes: Sequence[bytes]) -> None:
        self._table = token_bytes
        self._raw = bytearray()
        self._ends: list[int] = []  # of each token, in ``_raw``
        self._entries: list[TokenLogprobs] = []
        self._at = 0
        self._next = 0  # the first token that ends behind ``_at``

    def add(self, entries: Sequence[TokenLogprobs]) -> None:
        """Of tokens that were generated, before the texts that they make are asked for."""
        for entry in entries:
            self._raw += self._bytes(entry.token_id)
            self._ends.append(len(self._raw))
            self._entries.append(entry)

    def take(self, text: str) -> list[dict[str, Any]]:
        """Of the next text. Texts of no interest have to be taken too."""
        wanted = text.encode()
        start = self._raw.find(wanted, self._at)
        if start < 0:  # the parser has written it in another way
            return []
        self._at = start + len(wanted)
        self._skip(start)
        first = self._next
        self._skip(self._at)
        return [self._shown(entry) for entry in self._entries[first : self._next]]

    def _skip(self, end: int) -> None:
        while self._next < len(self._ends) and self._ends[self._next] <= end:
            self._next += 1

    def _bytes(self, token_id: int) -> bytes:
        return self._table[token_id] if token_id < len(self._table) else b""

    def _shown(self, entry: TokenLogprobs) -> dict[str, Any]:
        top = [self._item(value, token_id) for token_id, value in entry.top]
        return {**self._item(entry.logprob, entry.token_id), "top_logprobs": top}

    def _item(self, logprob: float | None, token_id: int) -> dict[str, Any]:
        raw = self._bytes(token_id)
        return {"token": raw.decode(errors="replace"), "bytes": list(raw), "logprob": logprob}
