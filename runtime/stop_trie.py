"""StopTrie: several stop strings searched at once, character by character (Aho, Corasick 1975)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable


class StopTrie:
    """Immutable once built. A state stands for the longest end of the text that begins a string.

    ``step`` is O(1) amortised over a text that is fed in order.
    """

    ROOT = 0

    def __init__(self, strings: Iterable[str]) -> None:
        """``strings`` are not empty. Building costs O(sum of their lengths)."""
        self._next: list[dict[str, int]] = [{}]
        self._fail = [0]  # the state of the next shorter end that begins a string
        self._depth = [0]  # characters of the end
        self._stop: list[str | None] = [None]
        for string in strings:
            assert string, "an empty stop string"
            self._add(string)
        self._link()

    def step(self, state: int, char: str) -> int:
        """The state after one more character."""
        while state and char not in self._next[state]:
            state = self._fail[state]
        return self._next[state].get(char, self.ROOT)

    def depth(self, state: int) -> int:
        """How many last characters of the text are a prefix of some string."""
        return self._depth[state]

    def stop(self, state: int) -> str | None:
        """The longest string that ends here."""
        return self._stop[state]

    def _add(self, string: str) -> None:
        state = self.ROOT
        for char in string:
            following = self._next[state].get(char)
            if following is None:
                following = len(self._next)
                self._next[state][char] = following
                self._next.append({})
                self._fail.append(self.ROOT)
                self._depth.append(self._depth[state] + 1)
                self._stop.append(None)
            state = following
        self._stop[state] = string

    def _link(self) -> None:
        """Breadth first: a state's shorter end is linked before the state needs it."""
        queue = deque(self._next[self.ROOT].values())
        while queue:
            state = queue.popleft()
            if self._stop[state] is None:
                self._stop[state] = self._stop[self._fail[state]]
            for char, child in self._next[state].items():
                self._fail[child] = self.step(self._fail[state], char)
                queue.append(child)
