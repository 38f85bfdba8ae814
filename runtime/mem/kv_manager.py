"""KVManager: moves slots between their three owners: free list, radix tree, running requests.

A request's row holds, with ``end`` its computed length rounded up to a page:

    [0, tree_len)     the tree's slots, locked through ``req.node``
    [tree_len, end)   private: this request's own slots

``free + evictable + locked + private == total`` holds after every call.
"""

from __future__ import annotations

from array import array

import numpy as np

from rtlang.runtime.batch import NEVER, Int32s
from rtlang.runtime.mem.radix_cache import RadixCache, TreeNode
from rtlang.runtime.mem.rows import ReqToTokenPool
from rtlang.runtime.mem.slots import SlotAllocator
from rtlang.runtime.req import Req


class KVManager:
    """The one place where requests get and give back slots. Plain ints and numpy."""

    def __init__(self, allocator: SlotAllocator, cache: RadixCache, pool: ReqToTokenPool) -> None:
        self.allocator = allocator
        self.cache = cache
        self.pool = pool
        self.page_size = allocator.page_size
        self.private_len = 0
        self.reqs: set[Req] = set()  # who holds a row

    @property
    def available_len(self) -> int:
        """Tokens that an allocation can still get, eviction included."""
        return self.allocator.free_len + self.cache.evictable_len

    def ceil_page(self, length: int) -> int:
        return -(-length // self.page_size) * self.page_size

    def need(self, req: Req, end: int) -> int:
        """Slots to allocate so that ``req`` can compute up to ``end``."""
        return self.ceil_page(end) - self.ceil_page(req.computed_len)

    def hit_limit(self, req: Req) -> int:
        """Longest usable prefix hit. The token whose logits are needed is always recomputed."""
        if req.params.max_new_tokens == 0 and req.logprobs is None:
            return len(req.ids)  # nothing is sampled: only KV is wanted
        limit = len(req.ids) - 1
        if req.logprob_from != NEVER:
            limit = min(limit, max(req.logprob_from - 1, 0))
        return limit

    def attach(self, req: Req) -> None:
        """Give ``req`` a row, the longest cached prefix of its ids, and a lock on it."""
        assert req.row < 0 and req.computed_len == 0
        match = self.cache.match_prefix(req.ids, req.namespace, limit=self.hit_limit(req))
        self.cache.inc_lock_ref(match.node)
        req.row, req.node = self.pool.alloc(), match.node
        req.tree_len = req.computed_len = match.length
        num_ids = len(req.ids)
        row = req.row
        self.pool.slots[row, : match.length] = match.slots
        self.pool.token_ids[row, :num_ids] = req.ids
        self.pool.lens[row] = num_ids
        self.pool.prompt_lens[row] = req.prompt_len
        self.pool.limit_lens[row] = req.limit_len
        self.pool.constrained[row] = req.matcher is not None
        self.pool.dirty_from[row] = 0
        self.reqs.add(req)

    def set_ids(self, req: Req, start: int) -> None:
        """Tokens ``[start, ...)`` became known by themselves."""
        row, length = req.row, len(req.ids)
        self.pool.token_ids[row, start:length] = req.ids[start:]
        self.pool.lens[row] = length
        self._mark_dirty(row, start)

    def catch_up(self, req: Req) -> int:
        """Skip what others have published of ``req``'s remaining prompt; returns tokens skipped.

        Only when all that it computed is in the tree already, so nothing private is lost.
        """
        if req.tree_len != req.computed_len or not self.cache.enabled:
            return 0
        limit = self.hit_limit(req)
        if limit - req.computed_len < self.page_size:
            return 0
        # A look first: a request that matched what it has published itself would count as a hit.
        if self.cache.peek_len(req.ids, req.namespace, limit=limit) <= req.tree_len:
            return 0
        match = self.cache.match_prefix(req.ids, req.namespace, limit=limit)
        skipped = match.length - req.tree_len
        self._relock(req, match.node)
        self.pool.slots[req.row, req.tree_len : match.length] = match.slots[req.tree_len :]
        self._mark_dirty(req.row, req.tree_len)
        req.tree_len = req.computed_len = match.length
        return skipped

    def extend(self, req: Req, end: int) -> bool:
        """Slots for ids ``[computed_len, end)``, evicting if need be; moves ``computed_len``.

        False, with nothing changed, when the pool has not so many.
        """
        start = self.ceil_page(req.computed_len)
        slots = self.alloc(self.ceil_page(end) - start)
        if slots is None:
            return False
        self.pool.slots[req.row, start : start + len(slots)] = slots
        self._mark_dirty(req.row, start)
        self.private_len += len(slots)
        req.computed_len = end
        return True

    def decode_need(self, rows: Int32s) -> int:
        """Slots to allocate so that each row can compute its last token."""
        if self.page_size == 1:
            return len(rows)
        starts = self.pool.lens[rows] - 1
        return int(np.count_nonzero(starts % self.page_size == 0)) * self.page_size

    def extend_decode(self, reqs: list[Req], rows: Int32s) -> None:
        """``extend`` by one token for running requests at once; the caller has made room."""
        slots = self.alloc(self.decode_need(rows))
        assert slots is not None, "no room was made for the decode step"
        self.private_len += len(slots)
        for req in reqs:
            req.computed_len += 1
        starts = self.pool.lens[rows] - 1
        if self.page_size == 1:
            self.pool.slots[rows, starts] = slots
            return
        fresh = starts % self.page_size == 0
        columns = starts[fresh][:, None] + np.arange(self.page_size)
        self.pool.slots[rows[fresh][:, None], columns] = slots.reshape(-1, self.page_size)

    def alloc(self, count: int) -> Int32s | None:
        """``count`` slots (whole pages) from the free list, evicting from the tree if need be."""
        if count > self.allocator.free_len:
            if count > self.available_len:
                return None
            self.cache.evict(count - self.allocator.free_len)
        return self.allocator.alloc(count)

    def publish(self, req: Req) -> None:
        """Put the whole pages that ``req`` has computed into the tree and lock them there.

        For prompt chunks this happens when the step is planned: rows of the same step then share
        them at once (a layer stores all KV before it attends), later steps run after it.
        """
        end = min(req.computed_len, len(req.ids))  # the id of a token in flight is not known
        end -= end % self.page_size
        if end <= req.tree_len or not self.cache.enabled:
            return
        row_slots = self.pool.slots[req.row]
        ids = req.ids[:end]
        cached_len, node = self.cache.insert(ids, row_slots[:end].copy(), req.namespace)
        # [tree_len, cached_len): someone else published it meanwhile; ours is a duplicate.
        if cached_len > req.tree_len:
            duplicates = row_slots[req.tree_len : cached_len].copy()
            match = self.cache.match_prefix(ids, req.namespace)
            row_slots[:end] = match.slots
            self._mark_dirty(req.row, req.tree_len)
            node = match.node
            self.allocator.free(duplicates)
        self.private_len -= end - req.tree_len
        req.tree_len = end
        self._relock(req, node)

    def release(self, req: Req, *, publish: bool = True) -> None:
        """Give back everything that ``req`` holds; safe to call twice.

        ``publish``: its computed KV is good, so the tree may keep it.
        """
        if req.row < 0:
            return
        if publish:
            self.publish(req)
        end = self.ceil_page(req.computed_len)
        if end > req.tree_len:
            self.allocator.free(self.pool.slots[req.row, req.tree_len : end].copy())
            self.private_len -= end - req.tree_len
        assert req.node is not None
        self.cache.dec_lock_ref(req.node)
        if not publish:
            self.cache.drop_path(req.node)
        self.pool.free(req.row)
        self.reqs.remove(req)
        req.row, req.node, req.tree_len, req.computed_len = -1, None, 0, 0

    def shared_len(self, a: array[int], b: array[int]) -> int:
        """Length of the common prefix of two id chains."""
        count = min(len(a), len(b))
        differ = np.frombuffer(a, np.int32, count) != np.frombuffer(b, np.int32, count)
        first = int(differ.argmax()) if count else 0
        return first if count and differ[first] else count

    def check(self) -> None:
        """The memory law; with the tree's own integrity check."""
        self.cache.check_integrity()
        for req in self.reqs:
            req.check()
        private = sum(self.ceil_page(r.computed_len) - r.tree_len for r in self.reqs)
        assert private == self.private_len, (private, self.private_len)
        free, cache = self.allocator.free_len, self.cache
        total = free + cache.evictable_len + cache.locked_len + private
        assert total == self.allocator.total_len, (
            f"free {free} + evictable {cache.evictable_len} + locked {cache.locked_len} "
            f"+ private {private} != total {self.allocator.total_len}"
        )
        self._check_owners()

    def _check_owners(self) -> None:
        """Each slot has exactly one owner."""
        owned = [node.slots for node in self.cache.walk()]
        for req in self.reqs:
            owned.append(self.pool.slots[req.row, req.tree_len : self.ceil_page(req.computed_len)])
        slots = np.concatenate(owned) if owned else np.zeros(0, np.int32)
        assert len(np.unique(slots)) == len(slots), "a slot has two owners"
        assert len(slots) + self.allocator.free_len == self.allocator.total_len, "a slot is lost"

    def _mark_dirty(self, row: int, start: int) -> None:
        if start < self.pool.dirty_from[row]:
            self.pool.dirty_from[row] = start

    def _relock(self, req: Req, node: TreeNode) -> None:
        assert req.node is not None
        self.cache.inc_lock_ref(node)
        self.cache.dec_lock_ref(req.node)
        req.node = node
