"""Random lives of requests on a RadixCache, against a model that knows no tree.

The model is a dict of page paths. A page is a symbol, so that page sizes share one model, and two
pages of one size differ in a single token.
"""

from __future__ import annotations

import dataclasses
from array import array

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from rtlang.runtime.mem.eviction import PROTECTED_SHARE, SlruEviction
from rtlang.runtime.mem.radix_cache import Int32s, Match, RadixCache, TreeNode
from rtlang.runtime.mem.slots import SlotAllocator

NUM_PAGES = 22
SYMBOLS = 2

Path = tuple[str, tuple[int, ...]]  # namespace, page symbols

CHAINS = st.lists(st.integers(0, SYMBOLS - 1), min_size=2, max_size=7).map(tuple)
SHORT_CHAINS = st.lists(st.integers(0, SYMBOLS - 1), max_size=2).map(tuple)
NAMESPACES = st.sampled_from(["", "", "", "salt=a"])
PICKS = st.integers(0, 10_000)


@dataclasses.dataclass
class Page:
    slots: list[int]
    stamp: int
    hits: int = 0


@dataclasses.dataclass(eq=False)
class Running:
    """A request: ``chain[:num_locked]`` is locked through ``node``, ``own`` is private."""

    namespace: str
    chain: tuple[int, ...]
    num_locked: int
    node: TreeNode
    shared: Int32s  # slots of the locked part
    own: Int32s


def prefixes(namespace: str, chain: tuple[int, ...]) -> list[Path]:
    return [(namespace, chain[:n]) for n in range(1, len(chain) + 1)]


class RadixMachine(RuleBasedStateMachine):
    page_size = 1
    policy = "lru"

    def __init__(self) -> None:
        super().__init__()
        num_slots = NUM_PAGES * self.page_size
        self.allocator = SlotAllocator(num_slots, self.page_size, debug=True)
        self.cache = RadixCache(self.allocator, policy=self.policy)
        self.pages: dict[Path, Page] = {}
        self.running: list[Running] = []
        self.clock = 0
        self.num_evicted = 0
        self.seen = (self.cache.version, set(self.pages))

    # -- the model ------------------------------------------------------------------------------

    def page_of(self, symbol: int) -> list[int]:
        tokens = [7] * self.page_size
        tokens[(symbol * 5 + 2) % self.page_size] = 100 + symbol
        return tokens

    def ids_of(self, chain: tuple[int, ...], tail: int = 0) -> array[int]:
        """``tail``: further tokens of a page that is not whole."""
        tokens = [token for symbol in chain for token in self.page_of(symbol)]
        return array("i", tokens + self.page_of(0)[: tail % self.page_size])

    def cached(self, namespace: str, chain: tuple[int, ...]) -> list[Path]:
        """Paths of the longest cached prefix."""
        found = []
        for path in prefixes(namespace, chain):
            if path not in self.pages:
                break
            found.append(path)
        return found

    def touch(self, paths: list[Path], *, hit: bool) -> None:
        self.clock += 1
        for path in paths:
            self.pages[path].stamp = self.clock
            self.pages[path].hits += hit

    def slots_of(self, paths: list[Path]) -> list[int]:
        return [slot for path in paths for slot in self.pages[path].slots]

    def is_locked(self, path: Path) -> bool:
        return any(
            path in prefixes(req.namespace, req.chain[: req.num_locked]) for req in self.running
        )

    def is_leaf(self, path: Path) -> bool:
        namespace, chain = path
        return not any((namespace, (*chain, s)) in self.pages for s in range(SYMBOLS))

    def key(self, path: Path, node: TreeNode) -> tuple[int, int]:
        page = self.pages[path]
        first = {"lru": 0, "lfu": page.hits, "slru": int(node.protected)}[self.policy]
        return (first, page.stamp)

    # -- what the tree really holds -------------------------------------------------------------

    def path_of(self, node: TreeNode) -> Path:
        """The path that ends with ``node``."""
        symbols = {array("i", self.page_of(s)).tobytes(): s for s in range(SYMBOLS)}
        size = 4 * self.page_size
        chain: list[int] = []
        at: TreeNode | None = node
        while at is not None:
            parts = [at.key[i : i + size] for i in range(0, len(at.key), size)]
            chain = [symbols[part] for part in parts] + chain
            at = at.parent
        return node.namespace, tuple(chain)

    def extents(self) -> dict[Path, TreeNode]:
        return {self.path_of(node): node for node in self.cache.walk()}

    def remove(self, path: Path, num_pages: int) -> Path:
        """Take a node's pages out of the model; where its parent ends."""
        namespace, chain = path
        for _ in range(num_pages):
            assert self.is_leaf((namespace, chain)) and not self.is_locked((namespace, chain))
            del self.pages[namespace, chain]
            chain = chain[:-1]
        return namespace, chain

    def evict(self, num_tokens: int) -> None:
        """Evict, and say beforehand what must go: the plain twin scans all leaves each time."""
        extents = self.extents()
        expected = 0
        while expected < num_tokens:
            victims = [p for p in extents if self.is_leaf(p) and not self.is_locked(p)]
            if not victims:
                break
            victim = min(victims, key=lambda path: self.key(path, extents[path]))
            num_pages = extents.pop(victim).num_tokens // self.page_size
            self.remove(victim, num_pages)
            expected += num_pages * self.page_size
        assert self.cache.evict(num_tokens) == expected
        self.num_evicted += expected

    def alloc(self, count: int) -> Int32s | None:
        short = count - self.allocator.free_len
        if short > self.cache.evictable_len:
            return None
        if short > 0:
            self.evict(short)
        slots = self.allocator.alloc(count)
        assert slots is not None, "eviction freed less than it said"
        return slots

    def pick(self, number: int) -> Running:
        return self.running[number % len(self.running)]

    def leave(self, req: Running) -> None:
        self.running.remove(req)
        self.allocator.free(req.own)
        self.cache.dec_lock_ref(req.node)

    def has_grown(self) -> bool:
        """Rules that shrink the tree wait for it, or it would be empty most of the time."""
        return len(self.pages) >= NUM_PAGES // 2

    # -- rules ----------------------------------------------------------------------------------

    def lookup(self, chain: tuple[int, ...], namespace: str, tail: int, cut: int) -> Match:
        """Peek and match; ``cut`` tokens short of the end."""
        ids = self.ids_of(chain, tail)
        limit = max(len(ids) - cut, 0)
        expected = self.cached(namespace, chain[: limit // self.page_size])
        keys = [node.key for node in self.cache.walk()]
        assert self.cache.peek_len(ids, namespace, limit=limit) == len(expected) * self.page_size
        assert [node.key for node in self.cache.walk()] == keys
        match = self.cache.match_prefix(ids, namespace, limit=limit)
        assert match.slots.tolist() == self.slots_of(expected)
        assert self.path_of(match.node) == (namespace, chain[: len(expected)])
        self.touch(expected, hit=True)
        eviction = self.cache._eviction
        if isinstance(eviction, SlruEviction):
            largest = max((node.num_tokens for node in self.cache.walk()), default=0)
            share = PROTECTED_SHARE * self.cache.total_len
            assert eviction.protected_len <= max(share, largest) or not expected
        return match

    @rule(chain=CHAINS | SHORT_CHAINS, namespace=NAMESPACES, tail=PICKS, cut=st.integers(0, 20))
    def look(self, chain: tuple[int, ...], namespace: str, tail: int, cut: int) -> None:
        self.lookup(chain, namespace, tail, cut)

    @initialize(chains=st.lists(CHAINS, min_size=3, max_size=6))
    def fill(self, chains: list[tuple[int, ...]]) -> None:
        for chain in chains:
            self.serve(chain, "")

    @rule(chain=CHAINS, namespace=NAMESPACES)
    def serve(self, chain: tuple[int, ...], namespace: str) -> None:
        """A whole life at once."""
        num_before = len(self.running)
        self.start(chain, namespace, tail=1)
        if len(self.running) > num_before:
            self.publish(num_before)
            self.abort(num_before)

    @rule(chain=CHAINS | SHORT_CHAINS, namespace=NAMESPACES, tail=PICKS)
    def start(self, chain: tuple[int, ...], namespace: str, tail: int) -> None:
        """Match, lock, allocate what is missing, evicting if need be; give up if that fails."""
        match = self.lookup(chain, namespace, tail, cut=1)
        num_locked = match.length // self.page_size
        self.cache.inc_lock_ref(match.node)
        req = Running(namespace, chain, num_locked, match.node, match.slots, match.slots[:0])
        self.running.append(req)
        own = self.alloc((len(chain) - num_locked) * self.page_size)
        if own is None:
            self.leave(req)
        else:
            req.own = own

    @precondition(lambda self: self.running)
    @rule(number=PICKS)
    def publish(self, number: int) -> None:
        """All that it computed enters the tree; duplicates are freed; it stays locked."""
        req = self.pick(number)
        known = self.cached(req.namespace, req.chain)
        slots = np.concatenate([req.shared, req.own])
        cached_len, node = self.cache.insert(self.ids_of(req.chain), slots, req.namespace)
        assert cached_len == len(known) * self.page_size >= len(req.shared)
        self.touch(known, hit=False)
        for path in prefixes(req.namespace, req.chain)[len(known) :]:
            start = (len(path[1]) - 1) * self.page_size
            run = slots[start : start + self.page_size].tolist()
            self.pages[path] = Page(run, self.clock)
        self.allocator.free(slots[len(req.shared) : cached_len])
        assert self.path_of(node) == (req.namespace, req.chain)
        self.cache.inc_lock_ref(node)
        self.cache.dec_lock_ref(req.node)
        paths = self.cached(req.namespace, req.chain)
        req.node, req.num_locked = node, len(req.chain)
        req.shared, req.own = np.array(self.slots_of(paths), np.int32), slots[:0]

    @precondition(lambda self: self.running)
    @rule(number=PICKS)
    def abort(self, number: int) -> None:
        """What it had published stays; what it had not goes back."""
        self.leave(self.pick(number))

    @precondition(lambda self: self.running and len(self.pages) >= NUM_PAGES // 4)
    @rule(number=PICKS)
    def poison(self, number: int) -> None:
        """Its KV is bad: the path goes too, as far as nobody else uses it."""
        req = self.pick(number)
        self.leave(req)
        extents = self.extents()
        path, expected = (req.namespace, req.chain[: req.num_locked]), 0
        while path[1] and self.is_leaf(path) and not self.is_locked(path):
            num_pages = extents[path].num_tokens // self.page_size
            path = self.remove(path, num_pages)
            expected += num_pages * self.page_size
        assert self.cache.drop_path(req.node) == expected
        assert self.cache.drop_path(req.node) == 0

    @precondition(has_grown)
    @rule(num_pages=st.sampled_from([0, 1, 1, 1, 2, 3, NUM_PAGES]), more=st.integers(0, 1))
    def evict_some(self, num_pages: int, more: int) -> None:
        self.evict(num_pages * self.page_size + more)

    @precondition(lambda self: not self.running and self.has_grown())
    @rule()
    def reset(self) -> None:
        self.cache.reset()
        self.pages.clear()
        assert self.allocator.free_len == self.allocator.total_len

    # -- after each step ------------------------------------------------------------------------

    @invariant()
    def memory_law(self) -> None:
        self.cache.check_integrity()
        free, cache = self.allocator.free_len, self.cache
        private = sum(len(req.own) for req in self.running)
        assert free + cache.evictable_len + cache.locked_len + private == self.allocator.total_len
        num_locked = sum(self.is_locked(path) for path in self.pages)
        assert cache.locked_len == num_locked * self.page_size
        assert cache.total_len == len(self.pages) * self.page_size
        assert cache.evicted_tokens == self.num_evicted

    @invariant()
    def the_tree_holds_what_the_model_holds(self) -> None:
        held: dict[Path, list[int]] = {}
        for (namespace, chain), node in self.extents().items():
            num_pages = node.num_tokens // self.page_size
            for i, run in enumerate(node.slots.reshape(num_pages, self.page_size).tolist()):
                held[namespace, chain[: len(chain) - num_pages + i + 1]] = run
        assert held == {path: page.slots for path, page in self.pages.items()}

    @invariant()
    def a_slot_has_one_owner(self) -> None:
        owned = [slot for page in self.pages.values() for slot in page.slots]
        owned += [slot for req in self.running for slot in req.own.tolist()]
        assert len(set(owned)) == len(owned)
        assert not owned or min(owned) >= self.page_size, "the padding page is in use"

    @invariant()
    def locked_slots_stay(self) -> None:
        for req in self.running:
            paths = prefixes(req.namespace, req.chain[: req.num_locked])
            assert req.shared.tolist() == self.slots_of(paths)
            assert self.path_of(req.node) == (req.namespace, req.chain[: req.num_locked])

    @invariant()
    def a_new_version_tells_of_new_answers(self) -> None:
        version, paths = self.seen
        self.seen = (self.cache.version, set(self.pages))
        assert paths == set(self.pages) or version != self.cache.version


@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize("policy", ["lru", "lfu", "slru"])
def test_random_lives_agree_with_a_plain_model(policy: str, page_size: int) -> None:
    class Machine(RadixMachine):
        pass

    Machine.policy, Machine.page_size = policy, page_size
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=60,
            stateful_step_count=50,
            deadline=None,
            database=None,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )
