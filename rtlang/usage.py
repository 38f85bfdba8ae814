"""What a program's calls cost, in tokens; the counts add up to the engine's own counters."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from rtlang.runtime.messages import Usage


@dataclasses.dataclass(slots=True)
class CallUsage:
    """One request of a program. ``kind``: "gen", "select" (one of its scoring requests), or
    "fork" (the announcement of a shared prefix). ``tokens`` is None until the request has ended,
    and after that if nobody told what it has cost."""

    kind: str
    name: str
    choice: int = 0  # which of n siblings
    tokens: Usage | None = None

    @property
    def prompt_tokens(self) -> int:
        return self.tokens.prompt_tokens if self.tokens else 0

    @property
    def cached_tokens(self) -> int:
        return self.tokens.cached_tokens if self.tokens else 0

    @property
    def computed_tokens(self) -> int:
        return self.tokens.computed_tokens if self.tokens else 0

    @property
    def completion_tokens(self) -> int:
        return self.tokens.completion_tokens if self.tokens else 0

    @property
    def forced_tokens(self) -> int:
        """Completion tokens that a constraint left no choice about, so that none was sampled."""
        return self.tokens.forced_tokens if self.tokens else 0


class ProgramUsage:
    """The sum over ``calls``, which are in the order in which the requests were sent.

    ``num_unknown``: how many of them are in no sum, because they have not ended, or because
    nobody told what they have cost: some servers never do, and one that is lost cannot.
    """

    def __init__(self, calls: Sequence[CallUsage]) -> None:
        self.calls = list(calls)
        self.num_unknown = sum(c.tokens is None for c in self.calls)
        total = sum((c.tokens for c in self.calls if c.tokens is not None), Usage())
        self.prompt_tokens = total.prompt_tokens
        self.cached_tokens = total.cached_tokens
        self.computed_tokens = total.computed_tokens
        self.completion_tokens = total.completion_tokens
        self.forced_tokens = total.forced_tokens

    def of_kind(self, kind: str) -> list[CallUsage]:
        return [call for call in self.calls if call.kind == kind]

    def __repr__(self) -> str:
        unknown = f", num_unknown={self.num_unknown}" if self.num_unknown else ""
        return (
            f"ProgramUsage(calls={len(self.calls)}, prompt_tokens={self.prompt_tokens}, "
            f"cached_tokens={self.cached_tokens}, computed_tokens={self.computed_tokens}, "
            f"completion_tokens={self.completion_tokens}, forced_tokens={self.forced_tokens}"
            f"{unknown})"
        )
