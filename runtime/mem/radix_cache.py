"""RadixCache: the tree of token chains whose KV is kept, and who may not be evicted.

Each namespace has a root of its own, kept while tokens hang from it. A node holds the part of a
chain in which nobody diverges. Chains compare as bytes of int32 (one memcmp a node); a node's
children are found by the bytes of their first page.
Source of the idea: RadixAttention, arXiv 2312.07104, section 3.
"""

from __future__ import annotations

import dataclasses
from array import array
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from rtlang.runtime.mem.eviction import create_eviction
from rtlang.runtime.mem.slots import SlotAllocator

Int32s = npt.NDArray[np.int32]
ITEM = 4  # bytes of a token id
NO_SLOTS: Int32s = np.zeros(0, np.int32)


class TreeNode:
    """One run of tokens below its parent's; a root holds none. Only ``RadixCache`` writes it.

    key       int32 bytes of the token ids, ``ITEM`` bytes a token
    slots     [num_tokens] int32, owned by the tree
    lock_ref  locks on this node or below it
    hits      how many matches covered this node
    stamp     logical time of the last match or insert through it, never older than a child's
    """

    __slots__ = (
        "children", "hits", "key", "lock_ref", "namespace", "parent", "protected", "slots", "stamp",
    )  # fmt: skip

    def __init__(self, parent: TreeNode | None, key: bytes, slots: Int32s, stamp: int) -> None:
        self.parent = parent
        self.key = key
        self.slots = slots
        self.children: dict[bytes, TreeNode] = {}
        self.lock_ref = 0
        self.hits = 0
        self.stamp = stamp
        self.protected = False
        self.namespace: str = parent.namespace if parent is not None else ""

    @property
    def num_tokens(self) -> int:
        return len(self.slots)

    @property
    def is_evictable_leaf(self) -> bool:
        return not self.children and self.lock_ref == 0 and self.parent is not None

    def __repr__(self) -> str:
        ids = array("i")
        ids.frombytes(self.key)
        shown = f"{ids[:8].tolist()}{'…' if len(ids) > 8 else ''}"
        return f"<TreeNode {len(ids)} tokens {shown} locks={self.lock_ref} hits={self.hits}>"


@dataclasses.dataclass(frozen=True, slots=True)
class Match:
    """A cached prefix. Its slots are valid until the next eviction, unless ``node`` is locked."""

    slots: Int32s
    node: TreeNode

    @property
    def length(self) -> int:
        return len(self.slots)


class RadixCache:
    """Owns the slots of its nodes. ``evictable_len + locked_len`` tokens are in the tree."""

    def __init__(
        self, allocator: SlotAllocator, *, policy: str = "lru", enabled: bool = True
    ) -> None:
        """``policy``: lru | lfu | slru. A disabled cache matches nothing and takes nothing."""
        self.allocator = allocator
        self.page_size = allocator.page_size
        self.enabled = enabled
        self.version = 0  # changes whenever a match could answer differently
        self.evictable_len = 0
        self.locked_len = 0
        self.evicted_tokens = 0
        self._eviction = create_eviction(policy)
        self._policy = policy
        self._roots: dict[str, TreeNode] = {}
        self._clock = 0

    @property
    def total_len(self) -> int:
        return self.evictable_len + self.locked_len

    def match_prefix(
        self, ids: array[int], namespace: str = "", *, limit: int | None = None
    ) -> Match:
        """Longest cached whole-page prefix of ``ids[:limit]``. Does not lock.

        May split a node; refreshes age and hits of the path; never adds or drops a token.
        """
        data = self._key(ids, limit)
        node, pos = self._walk_path(data, namespace)
        if pos < len(data):
            node, pos = self._enter_partly(node, data, pos)
        return Match(self._touch_path(node), node)

    def peek_len(self, ids: array[int], namespace: str = "", *, limit: int | None = None) -> int:
        """Length that ``match_prefix`` would give; changes nothing."""
        data = self._key(ids, limit)
        node, pos = self._walk_path(data, namespace)
        child = node.children.get(data[pos : pos + self.page_size * ITEM])
        if child is not None:
            pos += self._common_len(child.key, data, pos) * ITEM
        return pos // ITEM

    def insert(self, ids: array[int], slots: Int32s, namespace: str = "") -> tuple[int, TreeNode]:
        """Add a chain of whole pages; returns (tokens that were there, node that ends it).

        ``slots[cached_len:]`` belong to the tree from now on. ``slots[:cached_len]`` stay the
        caller's where they differ from the tree's.
        """
        assert len(ids) == len(slots) and len(ids) % self.page_size == 0, (len(ids), len(slots))
        assert slots.dtype == np.int32 and ids.itemsize == ITEM, (slots.dtype, ids.typecode)
        if not self.enabled or not ids:
            return 0, self._roots.get(namespace) or self._new_root(namespace)
        data = ids.tobytes()
        node, pos = self._walk_path(data, namespace)
        if pos < len(data):
            node, pos = self._enter_partly(node, data, pos)
        cached_len = pos // ITEM
        self._clock += 1
        at = node
        while at.parent is not None:
            at.stamp = self._clock
            at = at.parent
        if cached_len < len(ids):
            if node.parent is None:
                self._roots[namespace] = node
            leaf = TreeNode(node, data[pos:], slots[cached_len:].copy(), self._clock)
            node.children[self._first_page(leaf.key)] = leaf
            self.evictable_len += leaf.num_tokens
            self._eviction.push(leaf)
            self.version += 1
            node = leaf
        return cached_len, node

    def inc_lock_ref(self, node: TreeNode) -> None:
        """Keep ``node`` and all its ancestors from eviction. May be repeated."""
        assert node.parent is not None or not node.num_tokens, f"not in the tree: {node}"
        at: TreeNode | None = node
        while at is not None:
            if at.lock_ref == 0:
                self.evictable_len -= at.num_tokens
                self.locked_len += at.num_tokens
            at.lock_ref += 1
            at = at.parent

    def dec_lock_ref(self, node: TreeNode) -> None:
        """Take one ``inc_lock_ref`` of the same node back."""
        at: TreeNode | None = node
        while at is not None:
            assert at.lock_ref > 0, f"unlocked twice: {at}"
            at.lock_ref -= 1
            if at.lock_ref == 0:
                self.evictable_len += at.num_tokens
                self.locked_len -= at.num_tokens
                if at.is_evictable_leaf:
                    self._eviction.push(at)
            at = at.parent

    def evict(self, num_tokens: int) -> int:
        """Free at least so many tokens to the allocator, as far as there are; returns how many.

        Whole leaves go, in the policy's order; a locked node stays.
        """
        freed = 0
        while freed < num_tokens:
            node = self._eviction.pop()
            if node is None:
                break
            freed += node.num_tokens
            self._remove(node)
        self.evicted_tokens += freed
        return freed

    def drop_path(self, node: TreeNode) -> int:
        """Drop ``node``, then each ancestor that is left without child and lock (bad KV).

        Returns the tokens freed: 0 if ``node`` is locked, has children or is gone already.
        """
        dropped = 0
        while node.is_evictable_leaf:
            parent = node.parent
            assert parent is not None
            dropped += node.num_tokens
            self._remove(node)
            node = parent
        return dropped

    def reset(self) -> None:
        """Drop everything. Nothing may be locked."""
        assert self.locked_len == 0, f"{self.locked_len} tokens are locked"
        for node in list(self.walk()):
            self.allocator.free(node.slots)
            node.parent = None  # a handle that somebody kept can be told from a live one
        self._roots = {}
        self._eviction = create_eviction(self._policy)
        self.evictable_len = 0
        self.version += 1

    def walk(self) -> Iterator[TreeNode]:
        """All nodes that hold tokens, parents first."""
        stack = list(self._roots.values())
        while stack:
            node = stack.pop()
            if node.num_tokens:
                yield node
            stack.extend(node.children.values())

    # -- inside -----------------------------------------------------------------------------

    def _key(self, ids: array[int], limit: int | None) -> bytes:
        assert ids.itemsize == ITEM and (limit is None or limit >= 0), (ids.typecode, limit)
        # A last page that is not whole needs no cutting off: it equals no node's page.
        return ids.tobytes() if limit is None or limit >= len(ids) else ids[:limit].tobytes()

    def _first_page(self, key: bytes) -> bytes:
        return key[: self.page_size * ITEM]

    def _new_root(self, namespace: str) -> TreeNode:
        root = TreeNode(None, b"", NO_SLOTS, 0)
        root.namespace = namespace
        return root

    def _walk_path(self, data: bytes, namespace: str) -> tuple[TreeNode, int]:
        """Deepest node that matches in full, and the byte position where it ends."""
        node = self._roots.get(namespace) or self._new_root(namespace)
        page, pos = self.page_size * ITEM, 0
        while pos < len(data):
            child = node.children.get(data[pos : pos + page])
            if child is None or not data.startswith(child.key, pos):
                break
            pos += len(child.key)
            node = child
        return node, pos

    def _enter_partly(self, node: TreeNode, data: bytes, pos: int) -> tuple[TreeNode, int]:
        """Split the child that matches partly at ``pos``, if there is one; its upper half."""
        child = node.children.get(data[pos : pos + self.page_size * ITEM])
        if child is None:
            return node, pos
        common = self._common_len(child.key, data, pos)
        return self._split(child, common), pos + common * ITEM

    def _common_len(self, key: bytes, data: bytes, pos: int) -> int:
        """Tokens, in whole pages, that ``key`` shares with ``data`` from ``pos`` on."""
        count = min(len(key), len(data) - pos) // ITEM
        a = np.frombuffer(key, np.int32, count)
        b = np.frombuffer(data, np.int32, count, pos)
        differ = a != b
        first = int(differ.argmax()) if count else 0
        common = first if count and differ[first] else count
        return common - common % self.page_size

    def _split(self, node: TreeNode, length: int) -> TreeNode:
        """Cut ``node`` after ``length`` tokens; returns the new node, which is the upper part:
        whoever holds ``node`` still holds the end of its chain."""
        assert node.parent is not None and 0 < length < node.num_tokens
        # Copies: a view would keep the whole array alive after its other half is evicted.
        head, tail = node.slots[:length].copy(), node.slots[length:].copy()
        upper = TreeNode(node.parent, node.key[: length * ITEM], head, node.stamp)
        upper.lock_ref, upper.hits, upper.protected = node.lock_ref, node.hits, node.protected
        node.parent.children[self._first_page(upper.key)] = upper
        node.parent, node.key, node.slots = upper, node.key[length * ITEM :], tail
        upper.children[self._first_page(node.key)] = node
        self._eviction.split(upper, node)
        return upper

    def _touch_path(self, node: TreeNode) -> Int32s:
        """Refresh age and hits up to the root; returns the path's slots."""
        self._clock += 1
        parts = []
        at: TreeNode | None = node
        while at is not None and at.parent is not None:
            at.stamp = self._clock
            at.hits += 1
            self._eviction.hit(at, self.total_len)
            parts.append(at.slots)
            at = at.parent
        return np.concatenate(parts[::-1]) if parts else NO_SLOTS

    def _remove(self, node: TreeNode) -> None:
        parent = node.parent
        assert parent is not None
        del parent.children[self._first_page(node.key)]
        self._eviction.removed(node)
        node.parent = None
        self.allocator.free(node.slots)
        self.evictable_len -= node.num_tokens
        self.version += 1
        if parent.is_evictable_leaf:
            self._eviction.push(parent)
        elif parent.parent is None and not parent.children:
            self._roots.pop(node.namespace, None)

    def check_integrity(self) -> None:
        """Assert every invariant of the tree. Walks all of it: for tests and debug."""
        nodes = list(self.walk())
        for node in nodes:
            self._check_node(node)
        locked = sum(node.num_tokens for node in nodes if node.lock_ref)
        evictable = sum(node.num_tokens for node in nodes if not node.lock_ref)
        counted = (self.evictable_len, self.locked_len)
        assert (evictable, locked) == counted, (evictable, locked, counted)
        slots = np.concatenate([node.slots for node in nodes]) if nodes else NO_SLOTS
        assert len(np.unique(slots)) == len(slots), "a slot is in two nodes"
        first = slots.reshape(-1, self.page_size)[:, :1]
        run = first + np.arange(self.page_size)
        assert (first % self.page_size == 0).all() and np.array_equal(run.reshape(-1), slots), (
            "a node holds parts of pages"
        )
        self._eviction.check(nodes)
        for namespace, root in self._roots.items():
            assert root.children, f"the empty namespace {namespace!r} is kept"
            assert root.parent is None and root.namespace == namespace and not root.num_tokens
            assert root.lock_ref >= sum(c.lock_ref for c in root.children.values()), namespace

    def _check_node(self, node: TreeNode) -> None:
        assert node.parent is not None
        assert node.parent.children[self._first_page(node.key)] is node, node
        assert node.namespace == node.parent.namespace, node
        assert len(node.key) == node.num_tokens * ITEM, node
        assert node.num_tokens % self.page_size == 0 and node.num_tokens > 0, node
        assert node.lock_ref >= sum(c.lock_ref for c in node.children.values()), node
        if node.parent.parent is not None:
            assert node.parent.stamp >= node.stamp and node.parent.hits >= node.hits, node
        assert node.slots.base is None, f"{node} keeps a foreign array alive"
