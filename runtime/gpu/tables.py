"""A step on its way to the device: one packed upload, and the row tables that it updates.

The device buffer has three regions. What graphs read lies at addresses that only a bucket decides:

    samples   SAMPLE_FIELDS * num_samples     parameters of the rows that get a token
    rows      decode: rows, seq_lens, slots   [3, num_rows]
              extend: row_of [num_tokens], rows [num_rows], seq_lens [num_rows],
                      q_starts [num_rows + 1]
    runs      extend only: [5, num_runs] and their ids and slots, for ``write_runs``, at any address
"""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

from rtlang.kernels.attention.base import DeviceRows
from rtlang.kernels.triton.rows import decode_tokens, extend_tokens, write_runs
from rtlang.kernels.triton.sampling import SampleRows
from rtlang.runtime.batch import Batch, Int32s
from rtlang.runtime.gpu.copies import Stages, pinned_ints
from rtlang.runtime.mem.rows import ReqToTokenPool

#: The fields of ``SampleRows``, and the row of ``hidden`` that a sample is taken from.
SAMPLE_FIELDS = len(dataclasses.fields(SampleRows)) + 1
_FLOATS = {"temperature", "top_p", "min_p", "repetition", "frequency", "presence"}
#: Uploads are multiples of so many ints: of few lengths.
UPLOAD_INTS = 256
#: ``dirty_from`` of a row whose mirror is complete.
CLEAN = np.iinfo(np.int32).max

Tokens = tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # input ids, positions, slots


@dataclasses.dataclass(slots=True)
class Runs:
    """What an extend step adds to the device's tables."""

    table: Int32s  # [5, num_runs], see ``write_runs``
    data: list[Int32s]  # ids and slots, one after the other
    longest: int


class DeviceTables:
    """Mirrors of the row tables, and the buffer of the step that is being launched.

    One more line than the pool has rows: padding rows of a captured graph use it, and slot 0.
    """

    def __init__(
        self, pool: ReqToTokenPool, device: torch.device, max_rows: int, max_tokens: int
    ) -> None:
        """``max_rows``, ``max_tokens``: the largest step."""
        self.device = device
        self.pool = pool
        self.pad_row = pool.num_rows
        shape = (pool.num_rows + 1, pool.width)
        self.token_ids = torch.zeros(shape, dtype=torch.int32, device=device)
        self.slot_table = torch.zeros(shape, dtype=torch.int32, device=device)
        self.rows_at = -(-SAMPLE_FIELDS * max_rows // 64) * 64
        # Small runs fit behind the rows: what is left of the room for the largest step's tokens.
        size = self.rows_at + max_tokens + 3 * max_rows + 1
        size = -(-size // UPLOAD_INTS) * UPLOAD_INTS
        self._buffer = torch.zeros(size, dtype=torch.int32, device=device)
        self._behind = self._buffer[:0]  # runs that it has no room for
        self._iota = torch.arange(max_rows + 1, dtype=torch.int32, device=device)
        self.tokens: Tokens = tuple(  # type: ignore[assignment]
            torch.zeros(max(max_tokens, max_rows), dtype=torch.int32, device=device)
            for _ in range(3)
        )
        self._stages = Stages(self._buffer, to_device=True)
        self._turn = 0
        self._num_ints = self._runs_at = 0
        self._large: torch.Tensor | None = None  # of a step that is longer than the buffer

    # -- the host's side --------------------------------------------------------------------

    def begin(self, num_rows: int) -> Int32s:
        """Host memory for a decode step in a bucket of so many rows; ``upload`` sends it. The step
        that had it last was read, or ended in an error after which the device was waited for."""
        return self._begin(self.rows_at + 3 * num_rows)

    def begin_extend(self, num_tokens: int, num_rows: int, runs: Runs) -> Int32s:
        """The same for a step with prompt tokens; the runs are in it already."""
        at, count = self.rows_at + num_tokens + 3 * num_rows + 1, runs_len(runs)
        if at + count > len(self._buffer):
            at = len(self._buffer)
        host = self._begin(at + count)
        size = runs.table.size
        host[at : at + size] = runs.table.reshape(-1)
        np.concatenate(runs.data, out=host[at + size : at + count])
        self._runs_at = at
        return host

    def _begin(self, num_ints: int) -> Int32s:
        self._num_ints = num_ints
        if num_ints > len(self._buffer):
            self._large = pinned_ints(num_ints, self.device)  # the allocator's to recycle
            return self._large.numpy()
        self._large = None
        self._turn = self._stages.take()
        return self._stages.hosts[self._turn]

    def upload(self) -> None:
        if self._large is not None:
            fixed = len(self._buffer)
            self._buffer.copy_(self._large[:fixed], non_blocking=True)
            self._behind = self._large[fixed:].to(self.device, non_blocking=True)
            return
        count = -(-self._num_ints // UPLOAD_INTS) * UPLOAD_INTS
        self._stages.copy(self._turn, count)

    def pack_decode(self, host: Int32s, batch: Batch, num_rows: int) -> None:
        """A decode step, padded to ``num_rows`` rows."""
        n = len(batch.rows)
        fields = host[self.rows_at : self.rows_at + 3 * num_rows].reshape(3, num_rows)
        fields[0, :n], fields[0, n:] = batch.rows, self.pad_row
        fields[1, :n], fields[1, n:] = batch.seq_lens, 1
        fields[2, :n] = batch.pool.slots[batch.rows, batch.seq_lens - 1]
        fields[2, n:] = 0

    def pack_extend(self, host: Int32s, batch: Batch, num_tokens: int, num_rows: int) -> None:
        """A step with prompt tokens, padded to ``num_tokens`` tokens and ``num_rows`` rows."""
        n, real = len(batch.rows), batch.num_tokens
        at = self.rows_at
        row_of = host[at : at + num_tokens]
        row_of[:real] = np.repeat(np.arange(n, dtype=np.int32), batch.extend_lens)
        row_of[real:] = -1
        rows, seq_lens = host[at + num_tokens :][: 2 * num_rows].reshape(2, num_rows)
        rows[:n], rows[n:] = batch.rows, self.pad_row
        seq_lens[:n], seq_lens[n:] = batch.seq_lens, 0
        q_starts = host[at + num_tokens + 2 * num_rows :][: num_rows + 1]
        q_starts[0] = 0
        np.cumsum(batch.extend_lens, out=q_starts[1 : n + 1])
        q_starts[n + 1 :] = real

    def make_runs(self, batch: Batch) -> Runs:
        """What the device has not seen of the batch's rows; marks it as seen.

        A decode row's newest id is on the device already (and maybe nowhere else yet).
        """
        pool, num_runs = self.pool, len(batch.rows)
        table = np.empty((5, num_runs), np.int32)
        data: list[Int32s] = []
        at = longest = 0
        starts = np.minimum(pool.dirty_from[batch.rows], batch.seq_lens - batch.extend_lens)
        lines = zip(batch.rows.tolist(), starts.tolist(), batch.seq_lens.tolist(), strict=True)
        for i, (row, start, end) in enumerate(lines):
            length = end - start
            ids_at = -1
            if i >= batch.num_decode:
                ids_at = at
                data.append(pool.token_ids[row, start:end])
                at += length
                pool.dirty_from[row] = CLEAN
            else:
                start, length = end - 1, 1
            data.append(pool.slots[row, start:end])
            table[:, i] = (row, start, length, ids_at, at)
            at += length
            longest = max(longest, length)
        return Runs(table, data, longest)

    # -- the device's side ------------------------------------------------------------------

    def sample_rows(self, num_samples: int) -> tuple[SampleRows, torch.Tensor]:
        """(parameters, rows of ``hidden``), views of the buffer."""
        fields = self._buffer[: SAMPLE_FIELDS * num_samples].view(SAMPLE_FIELDS, num_samples)
        names = [f.name for f in dataclasses.fields(SampleRows)]
        views = {
            name: fields[i].view(torch.float32) if name in _FLOATS else fields[i]
            for i, name in enumerate(names)
        }
        return SampleRows(**views), fields[-1]

    def decode_rows(self, num_rows: int) -> tuple[DeviceRows, Tokens]:
        """Launches the gathering of the step's tokens; capturable."""
        fields = self._buffer[self.rows_at : self.rows_at + 3 * num_rows].view(3, num_rows)
        rows, seq_lens, slots = fields.unbind(0)
        tokens = self._tokens(num_rows)
        decode_tokens(rows, seq_lens, slots, self.token_ids, self.slot_table, tokens)
        starts = self._iota[: num_rows + 1]
        return DeviceRows(seq_lens, starts, rows, self.slot_table, decode=True), tokens

    def extend_rows(self, num_tokens: int, num_rows: int) -> tuple[DeviceRows, Tokens]:
        """The same for a step with prompt tokens; ``write`` its runs first."""
        region = self._buffer[self.rows_at :]
        row_of, region = region[:num_tokens], region[num_tokens:]
        rows, seq_lens = region[: 2 * num_rows].view(2, num_rows).unbind(0)
        starts = region[2 * num_rows : 3 * num_rows + 1]
        tokens = self._tokens(num_tokens)
        extend_tokens(row_of, rows, seq_lens, starts, self.token_ids, self.slot_table, tokens)
        return DeviceRows(seq_lens, starts, rows, self.slot_table, decode=False), tokens

    def write(self, runs: Runs) -> None:
        """The runs of the step that was uploaded."""
        behind = self._behind if self._large is not None else self._buffer[self._runs_at :]
        size = runs.table.size
        write_runs(
            behind[:size].view(5, -1), behind[size:], runs.longest, self.token_ids, self.slot_table
        )

    def _tokens(self, count: int) -> Tokens:
        ids, positions, slots = self.tokens
        return ids[:count], positions[:count], slots[:count]


def runs_len(runs: Runs) -> int:
    return runs.table.size + sum(len(part) for part in runs.data)
