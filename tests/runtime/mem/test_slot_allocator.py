from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtlang.errors import ConfigError
from rtlang.runtime.mem.slots import SlotAllocator

PAGE_SIZES = (1, 4, 16)


@pytest.mark.parametrize("page_size", PAGE_SIZES)
def test_num_slots_is_rounded_down_to_pages_and_the_padding_page_comes_on_top(
    page_size: int,
) -> None:
    allocator = SlotAllocator(5 * page_size + page_size - 1, page_size)
    assert allocator.total_len == allocator.free_len == 5 * page_size
    assert allocator.tensor_len == 6 * page_size


@pytest.mark.parametrize(("num_slots", "page_size"), [(0, 1), (15, 16), (-3, 1), (8, 0), (8, -1)])
def test_a_pool_without_a_page_is_refused(num_slots: int, page_size: int) -> None:
    with pytest.raises(ConfigError):
        SlotAllocator(num_slots, page_size)


@pytest.mark.parametrize("page_size", PAGE_SIZES)
def test_all_slots_but_the_padding_page_are_handed_out_once_as_aligned_runs(page_size: int) -> None:
    allocator = SlotAllocator(6 * page_size, page_size, debug=True)
    parts = [allocator.alloc(count * page_size) for count in (1, 0, 2, 3)]
    assert all(part is not None and part.dtype == np.int32 for part in parts)
    slots = np.concatenate([part for part in parts if part is not None])
    assert sorted(slots.tolist()) == list(range(page_size, allocator.tensor_len))
    pages = slots.reshape(-1, page_size)
    assert (pages[:, 0] % page_size == 0).all()
    assert (np.diff(pages, axis=1) == 1).all()
    assert allocator.free_len == 0


@pytest.mark.parametrize("page_size", PAGE_SIZES)
def test_too_much_is_none_and_changes_nothing(page_size: int) -> None:
    allocator = SlotAllocator(3 * page_size, page_size, debug=True)
    held = allocator.alloc(page_size)
    assert held is not None
    assert allocator.alloc(3 * page_size) is None
    assert allocator.free_len == 2 * page_size
    rest = allocator.alloc(2 * page_size)
    assert rest is not None and not set(rest.tolist()) & set(held.tolist())


def test_a_count_that_is_no_whole_page_is_our_bug() -> None:
    allocator = SlotAllocator(64, 16)
    for count in (1, 15, 17, -16):
        with pytest.raises(AssertionError):
            allocator.alloc(count)


def test_what_was_handed_out_does_not_change_when_the_free_list_does() -> None:
    allocator = SlotAllocator(8, debug=True)
    first, second = allocator.alloc(4), allocator.alloc(4)
    assert first is not None and second is not None
    copy = second.copy()
    allocator.free(first)
    assert np.array_equal(second, copy)


def test_a2_freeing_a_slot_twice_asserts() -> None:
    allocator = SlotAllocator(8, debug=True)
    slots = allocator.alloc(3)
    assert slots is not None
    allocator.free(slots[:1])
    with pytest.raises(AssertionError, match="freed twice"):
        allocator.free(slots)
    assert allocator.free_len == 6, "a refused free must change nothing"
    with pytest.raises(AssertionError, match="in one call"):
        allocator.free(slots[[1, 1]])
    allocator.free(slots[1:])
    assert allocator.free_len == 8


@pytest.mark.parametrize("slot", [0, 9, 1000, -1])
def test_freeing_a_foreign_slot_asserts(slot: int) -> None:
    allocator = SlotAllocator(8, debug=True)
    assert allocator.alloc(8) is not None
    with pytest.raises(AssertionError, match="outside the pool"):
        allocator.free(np.array([slot], np.int32))
    assert allocator.free_len == 0


def test_freeing_a_part_of_a_page_asserts() -> None:
    allocator = SlotAllocator(16, 4, debug=True)
    slots = allocator.alloc(8)
    assert slots is not None
    shifted = np.roll(slots, 1)
    for wrong in (slots[:3], slots[2:6], shifted, slots[::-1]):
        with pytest.raises(AssertionError, match="no whole pages"):
            allocator.free(wrong)
    assert allocator.free_len == 8


def test_pages_may_come_back_in_any_order() -> None:
    allocator = SlotAllocator(16, 4, debug=True)
    slots = allocator.alloc(16)
    assert slots is not None
    allocator.free(slots.reshape(-1, 4)[[2, 0, 3, 1]].reshape(-1))
    again = allocator.alloc(16)
    assert again is not None and sorted(again.tolist()) == sorted(slots.tolist())


def test_reset_takes_all_pages_back() -> None:
    allocator = SlotAllocator(16, 4, debug=True)
    held = allocator.alloc(8)
    assert held is not None
    allocator.reset()
    assert allocator.free_len == 16
    with pytest.raises(AssertionError, match="freed twice"):
        allocator.free(held)
    assert allocator.alloc(16) is not None


@settings(max_examples=60, deadline=None, database=None)
@given(
    page_size=st.sampled_from(PAGE_SIZES),
    debug=st.booleans(),
    steps=st.lists(st.tuples(st.booleans(), st.integers(0, 5)), max_size=40),
)
def test_a_slot_is_free_or_held_once_and_never_lost(
    page_size: int, debug: bool, steps: list[tuple[bool, int]]
) -> None:
    allocator = SlotAllocator(9 * page_size, page_size, debug=debug)
    held: list[int] = []  # pages
    for takes, num_pages in steps:
        if takes:
            slots = allocator.alloc(num_pages * page_size)
            assert (slots is None) == (num_pages + len(held) > 9)
            if slots is not None:
                held += (slots[::page_size] // page_size).tolist()
        else:
            back, held = held[:num_pages], held[num_pages:]
            slots = np.array(back, np.int32).repeat(page_size) * np.int32(page_size)
            allocator.free(slots + np.tile(np.arange(page_size, dtype=np.int32), len(back)))
        assert len(set(held)) == len(held) and 0 not in held
        assert allocator.free_len + len(held) * page_size == allocator.total_len
