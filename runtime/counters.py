"""What the engine has done since its start; each counter only grows."""

from __future__ import annotations

import dataclasses

from rtlang.runtime.batch import ForwardMode
from rtlang.runtime.messages import Usage


@dataclasses.dataclass(slots=True)
class Counters:
    """Sums over all requests, announcements of forks included; they equal the sum of all usages.

    cached + computed == prompt tokens of all requests that were admitted.
    """

    num_requests: int = 0
    num_finished: int = 0
    num_aborted: int = 0
    num_failed: int = 0
    num_announced: int = 0
    num_retractions: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    computed_tokens: int = 0
    recomputed_tokens: int = 0
    completion_tokens: int = 0
    forced_tokens: int = 0
    output_tokens: int = 0  # so far, of running requests too
    num_steps: int = 0
    num_extend_steps: int = 0
    num_decode_steps: int = 0
    num_mixed_steps: int = 0
    peak_running: int = 0

    def count_step(self, mode: ForwardMode, num_running: int) -> None:
        self.num_steps += 1
        self.num_extend_steps += mode is ForwardMode.EXTEND
        self.num_decode_steps += mode is ForwardMode.DECODE
        self.num_mixed_steps += mode is ForwardMode.MIXED
        self.peak_running = max(self.peak_running, num_running)

    def count_end(self, usage: Usage, *, failed: bool) -> None:
        self.num_finished += not failed
        self.num_failed += failed
        self.prompt_tokens += usage.cached_tokens + usage.computed_tokens
        self.cached_tokens += usage.cached_tokens
        self.computed_tokens += usage.computed_tokens
        self.recomputed_tokens += usage.recomputed_tokens
        self.completion_tokens += usage.completion_tokens
        self.forced_tokens += usage.forced_tokens
