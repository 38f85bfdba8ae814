"""Token counts of an answer in OpenAI's shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rtlang.runtime.messages import Usage


class Counts:
    """Of one call: each prompt counts once, however many choices it has. What of a prompt is
    ``cached`` is so for every choice: siblings find the prompt that the first one computed."""

    def __init__(self, prompt_lens: Sequence[int]) -> None:
        self._prompt_tokens = sum(prompt_lens)
        self._cached: dict[int, int] = {}
        self._completion_tokens = 0
        self._reasoning_tokens = 0

    def add_tokens(self, count: int) -> None:
        """So many more were generated."""
        self._completion_tokens += count

    def ended(self, index: int, usage: Usage, reasoning_tokens: int = 0) -> None:
        """A choice of the ``index``-th prompt has ended; its tokens were added before."""
        cached = usage.cached_tokens
        self._cached[index] = min(cached, self._cached.get(index, cached))
        self._reasoning_tokens += reasoning_tokens

    def payload(self) -> dict[str, Any]:
        """``cached_tokens`` is null until a choice has ended."""
        cached = sum(self._cached.values()) if self._cached else None
        return {
            "prompt_tokens": self._prompt_tokens,
            "completion_tokens": self._completion_tokens,
            "total_tokens": self._prompt_tokens + self._completion_tokens,
            "prompt_tokens_details": {"cached_tokens": cached},
            "completion_tokens_details": {"reasoning_tokens": self._reasoning_tokens},
        }
