"""A cache with an allocator in debug mode, driven with short texts in place of token ids."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any

import pytest

from rtlang.runtime.mem.radix_cache import Int32s, Match, RadixCache, TreeNode
from rtlang.runtime.mem.slots import SlotAllocator


def to_ids(text: str) -> array[int]:
    return array("i", map(ord, text))


class Tree:
    """``private_len`` counts the slots that the test itself holds."""

    def __init__(
        self, num_slots: int = 64, page_size: int = 1, policy: str = "lru", enabled: bool = True
    ) -> None:
        self.allocator = SlotAllocator(num_slots, page_size, debug=True)
        self.cache = RadixCache(self.allocator, policy=policy, enabled=enabled)
        self.private_len = 0

    def alloc(self, count: int) -> Int32s:
        slots = self.allocator.alloc(count)
        assert slots is not None, "the test's pool is too small"
        self.private_len += count
        return slots

    def free(self, slots: Int32s) -> None:
        self.allocator.free(slots)
        self.private_len -= len(slots)

    def insert(self, text: str, slots: Int32s, namespace: str = "") -> tuple[int, TreeNode]:
        """As the cache's; all of ``slots`` are the test's before."""
        cached_len, node = self.cache.insert(to_ids(text), slots, namespace)
        self.private_len -= len(slots) - cached_len
        self.check()
        return cached_len, node

    def put(self, text: str, namespace: str = "") -> TreeNode:
        """Insert freshly computed KV of ``text``; what the tree had already is freed again."""
        slots = self.alloc(len(text))
        cached_len, node = self.insert(text, slots, namespace)
        self.free(slots[:cached_len])
        self.check()
        return node

    def match(self, text: str, namespace: str = "", limit: int | None = None) -> Match:
        ids = to_ids(text)
        peeked = self.cache.peek_len(ids, namespace, limit=limit)
        match = self.cache.match_prefix(ids, namespace, limit=limit)
        assert match.length == peeked
        self.check()
        return match

    def has(self, text: str, namespace: str = "") -> bool:
        """Without refreshing its age."""
        return self.cache.peek_len(to_ids(text), namespace) == len(text)

    def texts(self) -> list[str]:
        """What each node holds, sorted."""
        return sorted("".join(map(chr, memoryview(n.key).cast("i"))) for n in self.cache.walk())

    def victims(self) -> list[str]:
        """Evict leaf by leaf; the order in which they go."""
        order = []
        while self.cache.total_len:
            before = self.texts()
            if not self.cache.evict(1):
                break
            for text in self.texts():
                before.remove(text)
            order.extend(before)
            self.check()
        return order

    def check(self) -> None:
        """The memory law, and the tree's integrity."""
        self.cache.check_integrity()
        held = self.cache.evictable_len + self.cache.locked_len + self.private_len
        assert self.allocator.free_len + held == self.allocator.total_len


@pytest.fixture
def make_tree() -> Callable[..., Any]:
    return Tree
