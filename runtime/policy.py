"""Orders of the waiting queue. Whatever the policy, a larger priority goes first.

fcfs      order of arrival
lpm       longest cached prefix first, with ageing: each step in the queue counts as so many tokens
          of prefix, so a request without a hit is overtaken for a bounded time only
priority  fcfs; and a waiting request may retract a running one of lower priority
"""

from __future__ import annotations

from collections.abc import Callable

from rtlang.runtime.req import Req, ReqState

#: Tokens of prefix hit that one step of waiting is worth.
AGEING_TOKENS_PER_STEP = 32
#: Prefix look-ups per ordering; requests beyond keep their last known hit.
MAX_LOOKUPS = 128

PeekHit = Callable[[Req], int]


def order_waiting(
    waiting: list[Req], policy: str, step: int, version: int, peek: PeekHit
) -> list[Req]:
    """The queue in the order in which it should be admitted. Refreshes hits (lpm only).

    ``version`` is the cache's: a hit learned at it is still true.
    """
    if policy == "lpm":
        _refresh_hits(waiting, version, peek)
        return sorted(waiting, key=lambda req: _lpm_key(req, step))
    return sorted(waiting, key=_fcfs_key)


def _fcfs_key(req: Req) -> tuple[int, bool, bool, int]:
    # Retracted requests have paid already; announcements are what others wait for.
    return (-req.priority, req.state is not ReqState.RETRACTED, not req.announce, req.arrival)


def _lpm_key(req: Req, step: int) -> tuple[int, bool, bool, int, int]:
    score = req.hit_len + AGEING_TOKENS_PER_STEP * (step - req.arrival_step)
    return (*_fcfs_key(req)[:3], -score, req.arrival)


def _refresh_hits(waiting: list[Req], version: int, peek: PeekHit) -> None:
    stale = [req for req in waiting if req.hit_version != version]
    stale.sort(key=lambda req: req.hit_version)  # longest unseen first: a round robin
    for req in stale[:MAX_LOOKUPS]:
        req.hit_len = peek(req)
        req.hit_version = version
