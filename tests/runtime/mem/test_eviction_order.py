from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any

import pytest

from rtlang.runtime.mem.eviction import PROTECTED_SHARE, SLACK, LazyHeap
from rtlang.runtime.mem.radix_cache import NO_SLOTS, TreeNode

MakeTree = Callable[..., Any]
POLICIES = ("lru", "lfu", "slru")


def ids_of(text: str) -> array[int]:
    return array("i", map(ord, text))


def test_lru_the_least_recently_used_leaf_goes_first(make_tree: MakeTree) -> None:
    tree = make_tree(policy="lru")
    for text in ("aa", "bb", "cc", "dd"):
        tree.put(text)
    tree.match("bb")
    tree.match("aa")
    assert tree.victims() == ["cc", "dd", "bb", "aa"]


def test_lru_inserting_again_is_a_use(make_tree: MakeTree) -> None:
    tree = make_tree(policy="lru")
    for text in ("aa", "bb", "aa"):
        tree.put(text)
    assert tree.victims() == ["bb", "aa"]


def test_lru_a_parent_goes_after_its_last_child_by_its_own_age(make_tree: MakeTree) -> None:
    tree = make_tree(policy="lru")
    tree.put("abX")
    tree.put("abY")
    tree.put("zz")
    assert tree.victims() == ["X", "Y", "ab", "zz"]
    tree.put("abX")
    tree.put("zz")
    tree.match("ab")  # the part that matched is younger than the rest
    assert tree.victims() == ["X", "zz", "ab"]


def test_lru_growing_a_chain_keeps_its_beginning_young(make_tree: MakeTree) -> None:
    tree = make_tree(policy="lru")
    tree.put("ab")
    tree.put("zz")
    tree.put("abcd")
    assert tree.victims() == ["zz", "cd", "ab"]


def test_lru_a_leaf_that_was_locked_takes_the_place_of_its_age(make_tree: MakeTree) -> None:
    tree = make_tree(policy="lru")
    node = tree.put("aa")
    tree.put("bb")
    tree.cache.inc_lock_ref(node)
    assert tree.cache.evict(1) == 2 and tree.has("aa")
    tree.put("cc")
    tree.cache.dec_lock_ref(node)
    assert tree.victims() == ["aa", "cc"]


def test_lfu_fewest_hits_first_then_the_oldest(make_tree: MakeTree) -> None:
    tree = make_tree(policy="lfu")
    for text in ("aa", "bb", "cc", "dd"):
        tree.put(text)
    for text in ("aa", "aa", "bb", "cc"):
        tree.match(text)
    tree.match("bb")  # bb: 2 hits, younger than aa's 2
    assert tree.victims() == ["dd", "cc", "aa", "bb"]


def test_lfu_both_halves_keep_the_hits_of_a_split_node(make_tree: MakeTree) -> None:
    tree = make_tree(policy="lfu")
    tree.put("abcd")
    for _ in range(3):
        tree.match("abcd")
    tree.put("zz")
    tree.match("zz")
    tree.match("ab")
    assert sorted((n.num_tokens, n.hits) for n in tree.cache.walk()) == [(2, 1), (2, 3), (2, 4)]
    assert tree.victims() == ["zz", "cd", "ab"]


def test_slru_what_was_hit_again_outlives_a_scan(make_tree: MakeTree) -> None:
    tree = make_tree(policy="slru")
    for text in ("aa", "bb", "cc"):
        tree.put(text)
    tree.match("aa")
    for text in ("dd", "ee"):
        tree.put(text)
    assert tree.victims() == ["bb", "cc", "dd", "ee", "aa"]


def test_slru_the_oldest_protected_node_is_demoted_beyond_the_share(make_tree: MakeTree) -> None:
    assert PROTECTED_SHARE == 0.8
    tree = make_tree(policy="slru")
    for text in ("aa", "bb", "cc", "dd", "ee"):
        tree.put(text)
    for text in ("bb", "aa", "cc", "dd"):
        tree.match(text)
    assert tree.cache._eviction.protected_len == 8
    tree.match("ee")  # 10 of 10 tokens: bb, the oldest, goes back to probation
    assert tree.cache._eviction.protected_len == 8
    tree.put("ff")
    tree.match("cc")
    assert tree.victims() == ["bb", "ff", "aa", "dd", "ee", "cc"]


def test_slru_a_demoted_node_is_protected_again_by_a_hit(make_tree: MakeTree) -> None:
    tree = make_tree(policy="slru")
    for text in ("aa", "bb", "cc", "dd", "ee"):
        tree.put(text)
    for text in ("aa", "bb", "cc", "dd", "ee", "aa"):
        tree.match(text)  # the last two demote aa, then bb
    assert tree.victims() == ["bb", "cc", "dd", "ee", "aa"]


def test_slru_both_halves_of_a_protected_node_stay_protected(make_tree: MakeTree) -> None:
    tree = make_tree(policy="slru")
    for text in ("abcd", "xx", "yy"):
        tree.put(text)
    tree.match("abcd")
    tree.match("ab")
    assert tree.cache._eviction.protected_len == 4
    assert tree.victims() == ["xx", "yy", "cd", "ab"]


def test_slru_a_node_larger_than_the_share_may_be_protected(make_tree: MakeTree) -> None:
    tree = make_tree(policy="slru")
    tree.put("abcdefghij")
    tree.match("abcdefghij")
    tree.put("z")
    assert tree.victims() == ["z", "abcdefghij"]


@pytest.mark.parametrize("policy", POLICIES)
def test_evict_stops_as_soon_as_there_is_enough(make_tree: MakeTree, policy: str) -> None:
    tree = make_tree(policy=policy)
    for text in ("aaa", "bbb", "ccc"):
        tree.put(text)
    assert tree.cache.evict(0) == tree.cache.evict(-5) == 0
    assert tree.cache.evict(4) == 6
    tree.check()
    assert tree.texts() == ["ccc"]
    assert tree.cache.evict(100) == 3
    assert tree.cache.evict(1) == 0
    assert tree.cache.evicted_tokens == 9


@pytest.mark.parametrize("policy", POLICIES)
def test_b9_eviction_never_touches_a_locked_path(make_tree: MakeTree, policy: str) -> None:
    tree = make_tree(num_slots=256, policy=policy)
    texts = [f"{a}{b}{c}" for a in "ab" for b in "cd" for c in "efg"]
    nodes = [tree.put(text) for text in texts]
    locked = nodes[::5]
    for node in locked:
        tree.cache.inc_lock_ref(node)
    for text in texts[1::2]:
        tree.match(text)
    tree.cache.evict(10_000)
    tree.check()
    assert tree.cache.evictable_len == 0
    kept = {text[:n] for text in texts[::5] for n in (1, 2, 3)}
    assert tree.cache.locked_len == len(kept)
    assert all(tree.has(text) for text in kept)


def _ten_thousand_leaves(tree: Any) -> list[Any]:
    nodes = []
    for i in range(10_000):
        _, node = tree.cache.insert(array("i", [1, i]), tree.alloc(2))
        nodes.append(node)
    return nodes


def _no_walk() -> Any:
    raise AssertionError("eviction walked the tree")


@pytest.mark.parametrize("policy", POLICIES)
def test_evicting_one_of_ten_thousand_leaves_looks_at_one(
    make_tree: MakeTree, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = make_tree(num_slots=20_000, policy=policy)
    nodes = _ten_thousand_leaves(tree)
    eviction = tree.cache._eviction
    monkeypatch.setattr(tree.cache, "walk", _no_walk)
    before = eviction.num_pops
    assert tree.cache.evict(1) == 1
    assert eviction.num_pops - before == 1
    # What was hit or locked is looked at once more each, and not again.
    for i in range(1, 51):
        tree.cache.match_prefix(array("i", [1, i]))
        tree.cache.inc_lock_ref(nodes[50 + i])
    before = eviction.num_pops
    assert tree.cache.evict(1) == 1
    assert eviction.num_pops - before <= 101
    before = eviction.num_pops
    assert tree.cache.evict(100) == 100
    assert eviction.num_pops - before <= 200


@pytest.mark.parametrize("policy", POLICIES)
def test_the_heaps_do_not_grow_with_use(make_tree: MakeTree, policy: str) -> None:
    tree = make_tree(policy=policy)
    hot = tree.put("abcd")
    for i in range(2000):
        tree.cache.match_prefix(ids_of("abcd"))
        tree.cache.inc_lock_ref(hot)
        tree.cache.dec_lock_ref(hot)
        ids = array("i", [1000 + i])
        _, node = tree.cache.insert(ids, tree.alloc(1))
        tree.cache.match_prefix(ids)
        tree.cache.drop_path(node)
    tree.private_len = 0
    tree.check()
    eviction = tree.cache._eviction
    heaps = [eviction._leaves, *([eviction._protected] if policy == "slru" else [])]
    assert all(heap.num_entries <= 2 * 2 + SLACK + 1 for heap in heaps)


def test_a_lazy_heap_gives_each_node_once_by_its_key_of_now() -> None:
    nodes = [TreeNode(None, b"", NO_SLOTS, stamp) for stamp in (10, 20, 30, 40)]
    heap = LazyHeap(lambda node: (node.stamp, 0), lambda node: node.stamp != 0)
    for node in nodes:
        heap.add(node)
    nodes[0].stamp = 35  # grew without notice
    nodes[3].stamp = 5  # fell, so it is announced
    heap.add(nodes[3])
    heap.add(nodes[1])  # no news
    nodes[2].stamp = 0  # not wanted any more
    order = [heap.pop() for _ in range(4)]
    assert order == [nodes[3], nodes[1], nodes[0], None]
    assert heap.num_entries == 0
