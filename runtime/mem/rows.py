"""ReqToTokenPool: the host's tables of running requests, one row each."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


class ReqToTokenPool:
    """Row tables of running requests; the host's copy is authoritative, a device mirrors it.

    token_ids  [num_rows, width] int32: prompt and generated ids
    slots      [num_rows, width] int32: KV slot of each token that is computed or planned
    lens       [num_rows] int32: tokens known in the row (prompt and generated)
    prompt_lens  [num_rows] int32
    limit_lens   [num_rows] int32: ``lens`` never exceeds it
    constrained  [num_rows] bool: what is sampled for it must match a grammar
    dirty_from   [num_rows] int32: the first token whose id or slot a mirror has not seen yet;
                 the mirror moves it on. What decode steps add is not marked: a mirror learns
                 of those from the steps themselves.

    ``lens`` counts a token as known from the moment its step is planned; its id follows when the
    step is read. On CPU the executor maps these arrays as tensors without a copy.
    """

    def __init__(self, num_rows: int, width: int) -> None:
        self.num_rows = num_rows
        self.width = width
        self.token_ids: npt.NDArray[np.int32] = np.zeros((num_rows, width), np.int32)
        self.slots: npt.NDArray[np.int32] = np.zeros((num_rows, width), np.int32)
        self.lens: npt.NDArray[np.int32] = np.zeros(num_rows, np.int32)
        self.prompt_lens: npt.NDArray[np.int32] = np.zeros(num_rows, np.int32)
        self.limit_lens: npt.NDArray[np.int32] = np.zeros(num_rows, np.int32)
        self.constrained: npt.NDArray[np.bool_] = np.zeros(num_rows, np.bool_)
        self.dirty_from: npt.NDArray[np.int32] = np.zeros(num_rows, np.int32)
        self._free = list(range(num_rows - 1, -1, -1))

    @property
    def num_free(self) -> int:
        return len(self._free)

    def alloc(self) -> int:
        """A free row. The caller has checked ``num_free``."""
        return self._free.pop()

    def free(self, row: int) -> None:
        assert row not in self._free, f"row {row} freed twice"
        self._free.append(row)
