from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rtlang.errors import ConfigError
from rtlang.runtime.mem.radix_cache import RadixCache
from rtlang.runtime.mem.slots import SlotAllocator

MakeTree = Callable[..., Any]
POLICIES = ("lru", "lfu", "slru")


def ids_of(text: str) -> array[int]:
    return array("i", map(ord, text))


def text_of(length: int, first: int = 0) -> str:
    """No token repeats, so that only equal positions can match."""
    return "".join(chr(1000 + first + i) for i in range(length))


# -- matching -----------------------------------------------------------------------------------


def test_a_match_is_the_longest_common_prefix_with_its_own_slots(make_tree: MakeTree) -> None:
    tree = make_tree()
    slots = tree.alloc(6)
    tree.insert("abcdef", slots)
    for text, length in (("abcdef", 6), ("abcdefg", 6), ("abcxef", 3), ("a", 1), ("b", 0), ("", 0)):
        match = tree.match(text)
        assert match.length == length
        assert match.slots.tolist() == slots[:length].tolist()
        assert match.slots.dtype == np.int32


def test_a_match_over_several_nodes_joins_their_slots_in_order(make_tree: MakeTree) -> None:
    tree = make_tree()
    slots = tree.alloc(8)
    tree.private_len = 0
    for end in (2, 5, 8):
        tree.cache.insert(ids_of("abcdefgh"[:end]), slots[:end])
    assert len(tree.texts()) == 3
    assert tree.match("abcdefgh").slots.tolist() == slots.tolist()


def test_the_slots_of_a_match_are_the_callers_to_change(make_tree: MakeTree) -> None:
    tree = make_tree()
    tree.put("abcd")
    match = tree.match("abcd")
    expected = match.slots.tolist()
    match.slots[:] = 0
    assert tree.match("abcd").slots.tolist() == expected


def test_inserted_slots_are_not_tied_to_the_callers_array(make_tree: MakeTree) -> None:
    tree = make_tree()
    slots = tree.alloc(4)
    tree.insert("abcd", slots)
    expected = slots.tolist()
    slots[:] = 0
    assert tree.match("abcd").slots.tolist() == expected


@pytest.mark.parametrize("limit", [0, 1, 3, 4, 5, 6, 100])
def test_a_match_stops_at_the_limit(make_tree: MakeTree, limit: int) -> None:
    tree = make_tree()
    tree.put("abcdef")
    assert tree.match("abcdefgh", limit=limit).length == min(limit, 6)


def test_tokens_that_agree_in_some_bytes_only_do_not_match(make_tree: MakeTree) -> None:
    tree = make_tree()
    slots = tree.alloc(2)
    tree.cache.insert(array("i", [0x01020304, 0x05060708]), slots)
    for other in (0x01020305, 0x02020304, 0x04030201, 0x00010203, -0x01020304):
        assert tree.cache.peek_len(array("i", [other, 0x05060708])) == 0
    # The bytes of a chain shifted by one byte are no chain.
    assert tree.cache.peek_len(array("i", [0x08010203, 0x04050607])) == 0


def test_peek_changes_nothing(make_tree: MakeTree) -> None:
    tree = make_tree(policy="slru")
    tree.put("abcdef")
    tree.put("abxyz")

    def state() -> list[Any]:
        nodes = tree.cache.walk()
        return [tree.cache.version, *((n.key, n.stamp, n.hits, n.protected) for n in nodes)]

    before = state()
    assert tree.cache.peek_len(ids_of("abcq")) == 3
    assert tree.cache.peek_len(ids_of("nothing")) == 0
    assert tree.cache.peek_len(ids_of("abc"), "salt") == 0
    assert state() == before


def test_the_version_changes_with_what_a_match_can_answer(make_tree: MakeTree) -> None:
    tree = make_tree()
    versions = [tree.cache.version]
    node = tree.put("abcdef")
    versions.append(tree.cache.version)
    tree.match("abc")  # splits
    tree.put("abcdef")  # known
    assert tree.cache.version == versions[-1]
    tree.put("abq")
    versions.append(tree.cache.version)
    tree.cache.drop_path(node)
    versions.append(tree.cache.version)
    tree.cache.evict(1)
    versions.append(tree.cache.version)
    tree.put("xyz")
    versions.append(tree.cache.version)
    tree.cache.reset()
    versions.append(tree.cache.version)
    assert len(set(versions)) == len(versions)


# -- inserting ----------------------------------------------------------------------------------


def test_insert_tells_what_was_there_and_takes_only_the_rest(make_tree: MakeTree) -> None:
    tree = make_tree()
    first = tree.alloc(4)
    assert tree.insert("abcd", first)[0] == 0
    second = tree.alloc(6)
    cached_len, node = tree.insert("abcxyz", second)
    assert cached_len == 3
    assert tree.match("abcxyz").slots.tolist() == [*first[:3], *second[3:]]
    assert tree.match("abcxyz").node is node
    tree.free(second[:3])
    tree.check()


def test_insert_gives_the_node_that_ends_exactly_there(make_tree: MakeTree) -> None:
    tree = make_tree()
    whole = tree.put("abcdef")
    middle = tree.put("abc")  # already there, inside a node
    assert middle is whole.parent
    assert middle.num_tokens == 3
    assert tree.put("abc") is middle
    assert tree.put("abcdef") is whole


@pytest.mark.parametrize("enabled", [True, False])
def test_nothing_inserted_gives_the_root(make_tree: MakeTree, enabled: bool) -> None:
    tree = make_tree(enabled=enabled)
    text = "" if enabled else "abcd"
    slots = tree.alloc(len(text))
    cached_len, node = tree.cache.insert(ids_of(text), slots, "salt")
    assert (cached_len, node.parent, node.num_tokens) == (0, None, 0)
    tree.cache.inc_lock_ref(node)
    tree.cache.dec_lock_ref(node)
    tree.check()


def test_insert_refuses_slots_that_do_not_fit(make_tree: MakeTree) -> None:
    tree = make_tree(page_size=4)
    slots = tree.alloc(8)
    for ids, wrong in (
        (array("i", range(8)), slots[:4]),
        (array("i", range(6)), slots[:6]),
        (array("i", range(8)), slots.astype(np.int64)),
        (array("q", range(8)), slots),
    ):
        with pytest.raises(AssertionError):
            tree.cache.insert(ids, wrong)
    assert tree.cache.total_len == 0


@pytest.mark.parametrize("page_size", [1, 16])
def test_a_disabled_cache_matches_and_takes_nothing(make_tree: MakeTree, page_size: int) -> None:
    tree = make_tree(page_size=page_size, enabled=False)
    text = text_of(32)
    slots = tree.alloc(32)
    for _ in range(2):
        match = tree.match(text)
        assert match.length == 0
        tree.cache.inc_lock_ref(match.node)
        assert tree.cache.insert(ids_of(text), slots)[0] == 0
        tree.cache.dec_lock_ref(match.node)
        tree.check()
    assert tree.cache.total_len == tree.cache.evict(100) == 0
    tree.free(slots)
    tree.check()


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"fifo.*lru, lfu, slru"):
        RadixCache(SlotAllocator(4), policy="fifo")


# -- locks --------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES)
def test_a1_what_was_matched_and_locked_survives_evicting_everything(
    make_tree: MakeTree, policy: str
) -> None:
    tree = make_tree(policy=policy)
    for text in ("abcdef", "abcdxy", "abq", "zzz"):
        tree.put(text)
    match = tree.match("abcdef!")
    assert match.length == 6
    tree.cache.inc_lock_ref(match.node)
    path = []
    node = match.node
    while node.parent is not None:
        path.append(node)
        node = node.parent
    assert [n.lock_ref for n in path] == [1, 1, 1]
    assert tree.cache.evict(1000) == 2 + 1 + 3
    tree.check()
    assert tree.texts() == ["ab", "cd", "ef"]
    assert (tree.cache.locked_len, tree.cache.evictable_len) == (6, 0)
    assert tree.match("abcdef").slots.tolist() == match.slots.tolist()
    tree.cache.dec_lock_ref(match.node)
    tree.check()
    assert tree.cache.evict(1000) == 6
    tree.check()
    assert tree.cache.evicted_tokens == 12


def test_a1_a_partial_match_locks_the_part_that_matched(make_tree: MakeTree) -> None:
    tree = make_tree()
    tree.put("abcdefgh")
    match = tree.match("abcdXY")
    tree.cache.inc_lock_ref(match.node)
    tree.check()
    assert (tree.cache.locked_len, tree.cache.evictable_len) == (4, 4)
    assert tree.cache.evict(100) == 4
    assert tree.texts() == ["abcd"]


def test_a3_size_counters_survive_splits(make_tree: MakeTree) -> None:
    tree = make_tree()

    def lens() -> tuple[int, int]:
        return tree.cache.evictable_len, tree.cache.locked_len

    tree.put("12345678")
    assert lens() == (8, 0)
    match = tree.match("1234")
    assert lens() == (8, 0)
    tree.cache.inc_lock_ref(match.node)
    tree.check()
    assert lens() == (4, 4)
    tree.put("123499")
    assert lens() == (6, 4)
    tree.cache.dec_lock_ref(match.node)
    tree.check()
    assert lens() == (10, 0)
    assert tree.cache.evict(10) == 10
    tree.check()
    assert lens() == (0, 0)


def test_splitting_a_locked_node_keeps_the_handle_and_the_counts(make_tree: MakeTree) -> None:
    tree = make_tree()
    tree.put("abcdefgh")
    held = tree.match("abcdefgh").node
    tree.cache.inc_lock_ref(held)
    tree.cache.inc_lock_ref(held)
    upper = tree.match("abc").node
    assert upper is held.parent, "the new node must be the upper half"
    assert (upper.lock_ref, held.lock_ref) == (2, 2)
    assert (upper.stamp > held.stamp, upper.hits, held.hits) == (True, 2, 1)
    assert tree.cache.locked_len == 8
    tree.cache.inc_lock_ref(upper)
    for node, locked in ((held, 8), (held, 3), (upper, 0)):
        tree.cache.dec_lock_ref(node)
        tree.check()
        assert tree.cache.locked_len == locked


def test_locking_in_one_branch_leaves_the_other_evictable(make_tree: MakeTree) -> None:
    tree = make_tree()
    left, right = tree.put("abLL"), tree.put("abRRR")
    tree.cache.inc_lock_ref(left)
    assert (tree.cache.locked_len, tree.cache.evictable_len) == (4, 3)
    tree.cache.inc_lock_ref(right)
    assert (tree.cache.locked_len, tree.cache.evictable_len) == (7, 0)
    tree.cache.dec_lock_ref(left)
    assert (tree.cache.locked_len, tree.cache.evictable_len) == (5, 2)
    assert tree.cache.evict(100) == 2
    assert tree.texts() == ["RRR", "ab"]


def test_wrong_lock_calls_assert(make_tree: MakeTree) -> None:
    tree = make_tree()
    node = tree.put("abc")
    with pytest.raises(AssertionError, match="unlocked twice"):
        tree.cache.dec_lock_ref(node)
    tree.cache.evict(3)
    with pytest.raises(AssertionError, match="not in the tree"):
        tree.cache.inc_lock_ref(node)
    tree.check()


def test_a_lock_on_an_empty_namespace_survives_its_coming_and_going(make_tree: MakeTree) -> None:
    tree = make_tree()
    early = tree.match("abc", "salt").node
    tree.cache.inc_lock_ref(early)
    tree.put("abc", "salt")
    assert tree.match("abc", "salt").length == 3
    late = tree.match("zzz", "salt").node
    tree.cache.inc_lock_ref(late)
    assert tree.cache.evict(3) == 3, "the lock holds no token"
    tree.put("xyz", "salt")
    for node in (early, late):
        tree.cache.dec_lock_ref(node)
        tree.check()
    assert tree.match("xyz", "salt").length == 3


# -- dropping -----------------------------------------------------------------------------------


def test_drop_path_takes_the_node_and_lone_ancestors(make_tree: MakeTree) -> None:
    tree = make_tree()
    tree.put("ab")
    tree.put("abcd")
    node = tree.put("abcdef")
    tree.put("abZ")
    assert tree.cache.drop_path(node) == 4
    tree.check()
    assert tree.texts() == ["Z", "ab"]
    assert tree.cache.evicted_tokens == 0, "dropping is no eviction"


def test_drop_path_stops_at_a_lock(make_tree: MakeTree) -> None:
    tree = make_tree()
    upper = tree.put("ab")
    node = tree.put("abcd")
    tree.cache.inc_lock_ref(upper)
    assert tree.cache.drop_path(upper) == 0
    assert tree.cache.drop_path(node) == 2
    tree.check()
    assert tree.texts() == ["ab"]


def test_drop_path_leaves_locked_inner_and_dropped_nodes_and_roots(make_tree: MakeTree) -> None:
    tree = make_tree()
    inner = tree.put("ab")
    locked = tree.put("abcd")
    tree.cache.inc_lock_ref(locked)
    gone = tree.put("xyz")
    assert tree.cache.drop_path(gone) == 3
    root = tree.match("nothing").node
    for node in (inner, locked, gone, root):
        assert tree.cache.drop_path(node) == 0
    tree.check()
    assert tree.texts() == ["ab", "cd"]


def test_reset_frees_everything_and_refuses_while_something_is_locked(make_tree: MakeTree) -> None:
    tree = make_tree()
    node = tree.put("abcd")
    tree.put("abxy", "salt")
    tree.cache.inc_lock_ref(node)
    with pytest.raises(AssertionError, match="locked"):
        tree.cache.reset()
    assert tree.has("abcd")
    tree.cache.dec_lock_ref(node)
    tree.cache.reset()
    tree.check()
    assert tree.allocator.free_len == tree.allocator.total_len
    assert not tree.has("a") and not tree.has("a", "salt")
    assert tree.cache.drop_path(node) == 0, "a handle from before the reset is dead"
    tree.put("abcd")
    assert tree.victims() == ["abcd"]


# -- pages, namespaces --------------------------------------------------------------------------


@pytest.mark.parametrize("length", [0, 3, 15, 16, 17, 32])
def test_a4_prompts_shorter_than_a_page(make_tree: MakeTree, length: int) -> None:
    tree = make_tree(num_slots=256, page_size=16)
    text, whole = text_of(length), length - length % 16
    for expected in (0, whole, whole):
        assert tree.match(text).length == expected
        tree.put(text[:whole])
        assert tree.cache.total_len == whole, "sizes count stored slots, not keys"
    assert tree.match(text_of(length) + "tail").length == whole


@pytest.mark.parametrize("common", [0, 1, 15, 16, 17, 31, 32, 47])
def test_a4_only_whole_pages_are_shared_after_a_divergence(
    make_tree: MakeTree, common: int
) -> None:
    tree = make_tree(num_slots=256, page_size=16)
    a, b = text_of(48), text_of(common) + text_of(48 - common, first=500)
    whole = common - common % 16
    tree.put(a)
    assert tree.match(b).length == whole
    tree.put(b)
    assert tree.cache.total_len == 96 - whole
    assert tree.match(a).length == tree.match(b).length == 48
    starts = tree.match(a).slots[::16]
    assert (starts % 16 == 0).all()


def test_a5_namespaces_share_nothing_and_hit_themselves(make_tree: MakeTree) -> None:
    tree = make_tree(num_slots=1024)
    text = text_of(100)
    names = ("", "adapter=a", "adapter=b", "salt=a", "salt=t1", "salt=t2")
    used: set[int] = set()
    for name in names:
        assert tree.match(text, name).length == 0
        tree.put(text, name)
        slots = tree.match(text, name).slots.tolist()
        assert len(slots) == 100 and not used & set(slots)
        used |= set(slots)
    assert [tree.match(text, name).length for name in names] == [100] * 6


def test_a5_one_off_namespaces_leave_nothing_behind(make_tree: MakeTree) -> None:
    tree = make_tree(num_slots=64)
    for i in range(500):
        name = f"salt={i}"
        assert tree.cache.match_prefix(ids_of("ab"), name).length == 0
        tree.cache.peek_len(ids_of("ab"), name)
        tree.cache.insert(array("i"), np.zeros(0, np.int32), name)
        node = tree.put("ab", name)
        (tree.cache.drop_path(node) if i % 2 else tree.cache.evict(2))
    tree.check()
    assert not tree.cache._roots


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("offset", [-1, 0, 1])
def test_a7_a_full_hit_leaves_the_last_token_and_hits_again(
    make_tree: MakeTree, page_size: int, offset: int
) -> None:
    tree = make_tree(num_slots=256, page_size=page_size)
    text = text_of(3 * page_size + offset)
    usable = (len(text) - 1) // page_size * page_size
    whole = len(text) // page_size * page_size
    chain: list[int] = []
    for turn in range(3):
        match = tree.match(text, limit=len(text) - 1)
        assert match.length == (usable if turn else 0) < max(len(text), 1)
        tree.cache.inc_lock_ref(match.node)
        own = tree.alloc(whole - match.length)
        owned = {slot for node in tree.cache.walk() for slot in node.slots.tolist()}
        assert not owned & set(own.tolist()), "recomputation must not write into a shared page"
        ids = ids_of(text[:whole])
        cached_len, node = tree.cache.insert(ids, np.concatenate([match.slots, own]))
        tree.private_len -= whole - max(cached_len, match.length)
        tree.free(own[: cached_len - match.length])
        tree.cache.inc_lock_ref(node)
        tree.cache.dec_lock_ref(match.node)
        tree.cache.dec_lock_ref(node)
        tree.check()
        chain = chain or tree.match(text).slots.tolist()
        assert tree.match(text).slots.tolist() == chain
    assert tree.cache.total_len == whole


# -- the check itself ---------------------------------------------------------------------------


def _break_counter(cache: Any, node: Any) -> None:
    cache.evictable_len -= 1


def _break_lock(cache: Any, node: Any) -> None:
    node.lock_ref += 1


def _break_slot(cache: Any, node: Any) -> None:
    node.slots[0] = node.parent.slots[0]


def _break_page(cache: Any, node: Any) -> None:
    node.slots[:] = node.slots[::-1].copy()


def _break_child(cache: Any, node: Any) -> None:
    node.parent.children[b"no page"] = node.parent.children.pop(node.key[:8])


def _lose_leaf(cache: Any, node: Any) -> None:
    cache._eviction._leaves.discard(node)


def _age_parent(cache: Any, node: Any) -> None:
    node.parent.stamp = 0


@pytest.mark.parametrize(
    "harm",
    [
        _break_counter,
        _break_lock,
        _break_slot,
        _break_page,
        _break_child,
        _lose_leaf,
        _age_parent,
    ],
)
def test_the_integrity_check_finds_harm(
    make_tree: MakeTree, harm: Callable[[Any, Any], None]
) -> None:
    tree = make_tree(page_size=2)
    tree.put("abcd")
    node = tree.put("abcdefgh")
    tree.put("abcdxy")
    harm(tree.cache, node)
    with pytest.raises((AssertionError, KeyError)):
        tree.cache.check_integrity()


def test_a_node_shows_its_tokens_and_locks(make_tree: MakeTree) -> None:
    tree = make_tree()
    node = tree.put("abc")
    tree.cache.inc_lock_ref(node)
    assert repr(node) == "<TreeNode 3 tokens [97, 98, 99] locks=1 hits=0>"
    assert "…" in repr(tree.put("0123456789"))
