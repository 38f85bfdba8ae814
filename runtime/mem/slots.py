"""SlotAllocator: which slots and pages are free."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rtlang.errors import ConfigError

Int32s = npt.NDArray[np.int32]


class SlotAllocator:
    """A stack of free pages. Page 0 is the padding slot's: reserved, never handed out.

    Slots ``page_size .. tensor_len - 1`` are in use or free; ``total_len`` counts them.
    """

    def __init__(self, num_slots: int, page_size: int = 1, *, debug: bool = False) -> None:
        """``num_slots`` is rounded down to whole pages; ``ConfigError`` if none is left.

        ``debug``: a ``free`` of pages that are free, foreign or not whole asserts.
        """
        if page_size < 1:
            raise ConfigError(f"page_size must be at least 1, got {page_size}")
        num_pages = num_slots // page_size
        if num_pages < 1:
            raise ConfigError(f"a pool of {num_slots} tokens holds no page of {page_size}")
        self.page_size = page_size
        self.total_len = num_pages * page_size
        self.tensor_len = self.total_len + page_size
        self._debug = debug
        self._pages: Int32s = np.zeros(num_pages, np.int32)  # a stack; the first _num_free count
        self._is_free = np.zeros(num_pages + 1, np.bool_)  # by page; kept up in debug only
        self._offsets: Int32s = np.arange(page_size, dtype=np.int32)
        self._num_free = 0
        self.reset()

    @property
    def free_len(self) -> int:
        return self._num_free * self.page_size

    def reset(self) -> None:
        """All pages are free again, whoever had them."""
        self._num_free = self.total_len // self.page_size
        self._pages[:] = np.arange(self._num_free, 0, -1)
        self._is_free[:] = True

    def alloc(self, count: int) -> Int32s | None:
        """``count`` slots (a multiple of the page size) as page-aligned runs; None if too many."""
        assert count >= 0 and count % self.page_size == 0, (count, self.page_size)
        num_pages = count // self.page_size
        if num_pages > self._num_free:
            return None
        self._num_free -= num_pages
        pages = self._pages[self._num_free : self._num_free + num_pages][::-1].copy()
        if self._debug:
            self._is_free[pages] = False
        if self.page_size == 1:
            return pages
        slots: Int32s = pages[:, None] * np.int32(self.page_size) + self._offsets
        return slots.reshape(-1)

    def free(self, slots: Int32s) -> None:
        """Give back whole pages, in any order of pages."""
        pages = slots if self.page_size == 1 else slots[:: self.page_size] // self.page_size
        if self._debug:
            self._check_free(slots, pages)
        self._pages[self._num_free : self._num_free + len(pages)] = pages
        self._num_free += len(pages)

    def _check_free(self, slots: Int32s, pages: Int32s) -> None:
        whole = pages[:, None] * self.page_size + np.arange(self.page_size)
        assert len(slots) % self.page_size == 0, f"{len(slots)} slots are no whole pages"
        assert np.array_equal(whole.reshape(-1), slots), "slots are no whole pages"
        assert len(np.unique(pages)) == len(pages), "a page is freed twice in one call"
        inside = (pages >= 1) & (pages * self.page_size < self.tensor_len)
        assert inside.all(), "a page outside the pool is freed"
        assert not self._is_free[pages].any(), "a page is freed twice"
        self._is_free[pages] = True
