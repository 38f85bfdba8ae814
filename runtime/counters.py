"""What the engine has done since its start; each counter only grows."""

from __future__ import annotations

import dataclasses


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
    num_steps: int = 0
    num_extend_steps: int = 0
    num_decode_steps: int = 0
    num_mixed_steps: int = 0
    peak_running: int = 0
