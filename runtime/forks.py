"""Announced forks: a prefix computed once stays locked until its branches have come.

The lock is bounded three ways: by the number of branches, by time, and by a share of the pool.
"""

from __future__ import annotations

import dataclasses

from rtlang.runtime.mem.radix_cache import RadixCache, TreeNode
from rtlang.runtime.req import Req


@dataclasses.dataclass(slots=True)
class Hold:
    """One announced fork. ``node`` is locked once the announcement has been computed."""

    client: bytes  # whose announcement it was; branches may come from others that know its id
    announcement: Req | None  # while it is being computed
    remaining: int  # branches neither admitted nor closed
    node: TreeNode | None = None
    held_len: int = 0
    expires: float = 0.0


class ForkHolds:
    """All announced forks of a scheduler, by fork id, which is drawn at random."""

    def __init__(self, cache: RadixCache, *, max_held_len: int, hold_s: float) -> None:
        self._cache = cache
        self._max_held_len = max_held_len
        self._hold_s = hold_s
        self._holds: dict[str, Hold] = {}
        self.held_len = 0  # sum over holds; what two of them share counts twice

    def __len__(self) -> int:
        return len(self._holds)

    def announce(self, req: Req) -> None:
        if req.fork_id in self._holds:  # an id that is used again: the fork before it is over
            self._drop(req.fork_id)
        self._holds[req.fork_id] = Hold(req.client, req, req.announce)

    def is_pending(self, req: Req) -> bool:
        """Whether the prefix that ``req`` branches from is announced and not planned yet."""
        hold = self._holds.get(req.fork_id)
        if hold is None or hold.announcement is None or hold.announcement is req:
            return False
        return hold.announcement.computed_len < len(hold.announcement.ids)

    def computed(self, req: Req, now: float) -> None:
        """The announcement ``req`` is done and still holds its lock: take over."""
        hold = self._holds.get(req.fork_id)
        if hold is None or hold.announcement is not req:
            return
        hold.announcement = None
        length = req.tree_len
        if req.node is None or length == 0 or self.held_len + length > self._max_held_len:
            self._drop(req.fork_id)  # cached all the same, only not locked
            return
        self._cache.inc_lock_ref(req.node)
        hold.node, hold.held_len, hold.expires = req.node, length, now + self._hold_s
        self.held_len += length

    def closed(self, fork_id: str, count: int = 1) -> None:
        """``count`` branches were admitted, or will never come."""
        hold = self._holds.get(fork_id)
        if hold is not None:
            hold.remaining -= count
            if hold.remaining <= 0:
                self._drop(fork_id)

    def lost(self, req: Req) -> None:
        """The announcement ``req`` failed or was aborted: its branches stand alone."""
        hold = self._holds.get(req.fork_id)
        if hold is not None and hold.announcement is req:
            self._drop(req.fork_id)

    def drop_client(self, client: bytes) -> None:
        for key in [k for k, h in self._holds.items() if h.client == client]:
            self._drop(key)

    def expire(self, now: float) -> None:
        for key in [k for k, h in self._holds.items() if h.node is not None and h.expires <= now]:
            self._drop(key)

    def drop_oldest(self) -> bool:
        """Give up one lock because running requests need the room; False if there is none."""
        for key, hold in self._holds.items():
            if hold.node is not None:
                self._drop(key)
                return True
        return False

    def next_expiry(self) -> float | None:
        times = [h.expires for h in self._holds.values() if h.node is not None]
        return min(times, default=None)

    def _drop(self, key: str) -> None:
        hold = self._holds.pop(key)
        if hold.node is not None:
            self._cache.dec_lock_ref(hold.node)
            self.held_len -= hold.held_len
