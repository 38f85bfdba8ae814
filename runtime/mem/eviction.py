"""Which unlocked leaf goes first: lru, lfu, slru; each O(log n), none walks the tree.

Heaps hold (key, serial, node) and are lazy: a popped entry whose key is out of date goes back with
the true one, an entry of a node that is no evictable leaf any more is dropped.
"""

from __future__ import annotations

import heapq
import itertools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rtlang.runtime.mem.radix_cache import TreeNode

Key = tuple[int, int]

#: slru: share of the tree's tokens that the protected segment may hold.
PROTECTED_SHARE = 0.8


class Eviction:
    """lru: the least recently used leaf. Base of the other orders: only ``key`` differs."""

    def __init__(self) -> None:
        self._heap: list[tuple[Key, int, TreeNode]] = []
        self._serial = itertools.count()
        self.num_pops = 0  # heap entries looked at, for tests of the cost

    def key(self, node: TreeNode) -> Key:
        return (node.stamp, 0)

    def push(self, node: TreeNode) -> None:
        """``node`` has become an evictable leaf."""
        heapq.heappush(self._heap, (self.key(node), next(self._serial), node))

    def pop(self) -> TreeNode | None:
        """The next victim, which the caller removes from the tree; None if there is none."""
        while self._heap:
            key, _, node = heapq.heappop(self._heap)
            self.num_pops += 1
            if not node.is_evictable_leaf:
                continue
            if key != self.key(node):
                self.push(node)
                continue
            return node
        return None

    def hit(self, node: TreeNode, total_len: int) -> None:
        """A request has matched ``node`` (all of it)."""

    def split(self, upper: TreeNode, lower: TreeNode) -> None:
        """``lower`` was cut; ``upper`` is its new first part."""

    def removed(self, node: TreeNode) -> None:
        """``node`` is out of the tree."""

    def pending(self) -> set[int]:
        """Ids of nodes with an entry, for integrity checks."""
        return {id(node) for _, _, node in self._heap}


class LfuEviction(Eviction):
    """The leaf with the fewest hits, the oldest among equals."""

    def key(self, node: TreeNode) -> Key:
        return (node.hits, node.stamp)


class SlruEviction(Eviction):
    """Two segments: a node is on probation until a second request hits it, then protected.

    Probation goes first. The protected segment is bounded: its oldest nodes are demoted.
    """

    def __init__(self) -> None:
        super().__init__()
        self._protected: list[tuple[int, int, TreeNode]] = []
        self.protected_len = 0

    def key(self, node: TreeNode) -> Key:
        return (int(node.protected), node.stamp)

    def hit(self, node: TreeNode, total_len: int) -> None:
        if node.hits < 1 or not node.num_tokens:
            return
        if not node.protected:
            node.protected = True
            self.protected_len += node.num_tokens
            heapq.heappush(self._protected, (node.stamp, next(self._serial), node))
        while self.protected_len > max(PROTECTED_SHARE * total_len, node.num_tokens):
            self._demote_oldest()

    def split(self, upper: TreeNode, lower: TreeNode) -> None:
        if lower.protected:
            heapq.heappush(self._protected, (upper.stamp, next(self._serial), upper))

    def removed(self, node: TreeNode) -> None:
        if node.protected:
            node.protected = False
            self.protected_len -= node.num_tokens

    def _demote_oldest(self) -> None:
        while self._protected:
            stamp, _, node = heapq.heappop(self._protected)
            if not node.protected:
                continue
            if stamp != node.stamp:
                heapq.heappush(self._protected, (node.stamp, next(self._serial), node))
                continue
            node.protected = False
            self.protected_len -= node.num_tokens
            if node.is_evictable_leaf:
                self.push(node)  # its key fell: the old entry is too late in the heap
            return
        raise AssertionError("protected tokens without a protected node")


def create_eviction(policy: str) -> Eviction:
    return {"lru": Eviction, "lfu": LfuEviction, "slru": SlruEviction}[policy]()
