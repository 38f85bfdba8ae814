"""Which unlocked leaf goes first: lru, lfu, slru. O(log n) a victim, none walks the tree."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING

from rtlang.errors import ConfigError

if TYPE_CHECKING:
    from rtlang.runtime.mem.radix_cache import TreeNode

Key = tuple[int, int]
Entry = tuple[Key, int, "TreeNode"]

#: slru: share of the tree's tokens that the protected segment may hold.
PROTECTED_SHARE = 0.8
#: A heap may hold this many dead entries beyond as many as it has live ones.
SLACK = 64


class LazyHeap:
    """Nodes by key, smallest first, each node once.

    A key may grow without notice: ``pop`` puts the node back under its true key. After a key has
    fallen the node must be added again. The work of putting back is paid by the hits that made it
    necessary, so n operations cost O(n log n).
    """

    def __init__(self, key: Callable[[TreeNode], Key], keeps: Callable[[TreeNode], bool]) -> None:
        """``keeps``: nodes for which it is false are dropped when they come up."""
        self._key = key
        self._keeps = keeps
        self._heap: list[Entry] = []
        self._live: dict[TreeNode, Entry] = {}  # the one entry of a node that counts
        self._serial = itertools.count()  # so that comparing entries never compares nodes
        self.num_pops = 0  # entries looked at; tests bound the cost with it

    @property
    def num_entries(self) -> int:
        return len(self._heap)

    def add(self, node: TreeNode) -> None:
        """No effect if the node has an entry that is early enough."""
        key = self._key(node)
        live = self._live.get(node)
        if live is not None and live[0] <= key:
            return
        entry = (key, next(self._serial), node)
        self._live[node] = entry
        heapq.heappush(self._heap, entry)
        if len(self._heap) > 2 * len(self._live) + SLACK:
            self._heap = list(self._live.values())
            heapq.heapify(self._heap)

    def discard(self, node: TreeNode) -> None:
        self._live.pop(node, None)

    def pop(self) -> TreeNode | None:
        """Take out the node with the smallest key; None when there is none."""
        while self._heap:
            entry = heapq.heappop(self._heap)
            self.num_pops += 1
            key, _, node = entry
            if self._live.get(node) is not entry:
                continue
            del self._live[node]
            if not self._keeps(node):
                continue
            if self._key(node) == key:
                return node
            self.add(node)
        return None

    def check(self, nodes: list[TreeNode]) -> None:
        """``nodes``: all of the tree. Each that must be here has an entry, and no stranger."""
        assert self._live.keys() <= set(nodes), "a removed node is kept"
        for node in filter(self._keeps, nodes):
            live = self._live.get(node)
            assert live is not None, f"{node} is lost"
            assert live[0] <= self._key(node), f"{node} would come too late"


class Eviction:
    """lru: the least recently used leaf. Base of the other orders."""

    def __init__(self) -> None:
        self._leaves = LazyHeap(self.key, lambda node: node.is_evictable_leaf)

    @property
    def num_pops(self) -> int:
        return self._leaves.num_pops

    def key(self, node: TreeNode) -> Key:
        """The leaf with the smallest key goes first."""
        return (node.stamp, 0)

    def push(self, node: TreeNode) -> None:
        """``node`` has become an evictable leaf."""
        self._leaves.add(node)

    def pop(self) -> TreeNode | None:
        """The next victim, which the caller must remove from the tree; None if there is none."""
        return self._leaves.pop()

    def hit(self, node: TreeNode, total_len: int) -> None:
        """A request has matched all of ``node``; ``total_len`` tokens are in the tree."""

    def split(self, upper: TreeNode, lower: TreeNode) -> None:
        """``lower`` was cut; ``upper`` is a new node with its first part and its history."""

    def removed(self, node: TreeNode) -> None:
        """``node`` is out of the tree."""
        self._leaves.discard(node)

    def check(self, nodes: list[TreeNode]) -> None:
        """Assert that no evictable leaf of the tree's ``nodes`` can be missed."""
        self._leaves.check(nodes)


class LfuEviction(Eviction):
    """The leaf with the fewest hits, the oldest among equals."""

    def key(self, node: TreeNode) -> Key:
        return (node.hits, node.stamp)


class SlruEviction(Eviction):
    """A node is on probation until a request hits it, then protected. Probation goes first.

    The protected segment holds at most ``PROTECTED_SHARE`` of the tree (one larger node excepted),
    enforced at each hit: its oldest nodes go back to probation.
    Source: Karedla, Love, Wherry, "Caching strategies to improve disk system performance" (1994).
    """

    def __init__(self) -> None:
        super().__init__()
        self._protected = LazyHeap(lambda node: (node.stamp, 0), lambda node: node.protected)
        self.protected_len = 0

    def key(self, node: TreeNode) -> Key:
        return (int(node.protected), node.stamp)

    def hit(self, node: TreeNode, total_len: int) -> None:
        if not node.protected:
            node.protected = True
            self.protected_len += node.num_tokens
            self._protected.add(node)
        while self.protected_len > max(PROTECTED_SHARE * total_len, node.num_tokens):
            self._demote_oldest()

    def split(self, upper: TreeNode, lower: TreeNode) -> None:
        if upper.protected:
            self._protected.add(upper)

    def removed(self, node: TreeNode) -> None:
        super().removed(node)
        if node.protected:
            node.protected = False
            self.protected_len -= node.num_tokens
            self._protected.discard(node)

    def check(self, nodes: list[TreeNode]) -> None:
        super().check(nodes)
        self._protected.check(nodes)
        assert self.protected_len == sum(node.num_tokens for node in nodes if node.protected)

    def _demote_oldest(self) -> None:
        node = self._protected.pop()
        assert node is not None, f"{self.protected_len} protected tokens without a node"
        node.protected = False
        self.protected_len -= node.num_tokens
        if node.is_evictable_leaf:
            self.push(node)  # its key fell


def create_eviction(policy: str) -> Eviction:
    """Raises ``ConfigError`` for an unknown ``policy``."""
    policies = {"lru": Eviction, "lfu": LfuEviction, "slru": SlruEviction}
    if policy not in policies:
        raise ConfigError(f"unknown eviction policy {policy!r}; it may be {', '.join(policies)}")
    return policies[policy]()
