"""The radix tree as data: parents first, newest first, whole or cut."""

from __future__ import annotations

from array import array

import numpy as np
import pytest

from rtlang.runtime.mem.radix_cache import RadixCache
from rtlang.runtime.mem.slots import SlotAllocator
from rtlang.runtime.mem.snapshot import tree_snapshot


@pytest.fixture
def cache() -> RadixCache:
    allocator = SlotAllocator(100, 1)
    cache = RadixCache(allocator)
    for ids in ([1, 2, 3, 4], [1, 2, 5], [7, 8]):
        slots = allocator.alloc(len(ids))
        assert slots is not None
        cache.insert(array("i", ids), np.asarray(slots, np.int32))
    return cache


def test_every_node_with_its_parent(cache: RadixCache) -> None:
    found = tree_snapshot(cache, max_nodes=10, max_ids=2)
    assert (found["num_nodes"], found["num_tokens"]) == (4, cache.total_len)
    chains = []
    for node in found["nodes"]:
        chain, at = [node["ids"]], node["parent"]
        while at >= 0:
            chain.append(found["nodes"][at]["ids"])
            at = found["nodes"][at]["parent"]
        chains.append(chain[::-1])
    assert sorted(chains) == [[[1, 2]], [[1, 2], [3, 4]], [[1, 2], [5]], [[7, 8]]]
    assert found["nodes"][0]["age"] == 0 and max(n["age"] for n in found["nodes"]) == 1


def test_a_cut_picture_keeps_the_latest_and_their_parents(cache: RadixCache) -> None:
    match = cache.match_prefix(array("i", [1, 2, 3, 4]))
    cache.inc_lock_ref(match.node)
    found = tree_snapshot(cache, max_nodes=2, max_ids=8)
    assert [(n["ids"], n["parent"], n["locks"]) for n in found["nodes"]] == [
        ([1, 2], -1, 1),
        ([3, 4], 0, 1),
    ]
    assert found["num_nodes"] == 4
    assert tree_snapshot(cache, max_nodes=0, max_ids=8)["nodes"] == []
