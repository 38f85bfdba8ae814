"""TritonSampler: the sampling chain of ``runtime/sampling/sampler.py`` on the device.

Its ids are those of the CPU chain: fp32 scores made by the same operations, the same hash, and the
winner of the draw decided in fp64 (``sampling_filters.py`` says how close to a border a filter may
differ). Nothing waits for the device and the launches depend on shapes and on two booleans alone,
so that a call can be captured in a CUDA graph.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton

from rtlang.kernels.checks import check
from rtlang.kernels.triton.sampling_draw import finish_kernel, race_kernel
from rtlang.kernels.triton.sampling_filters import (
    PIVOTS,
    compact_kernel,
    cut_kernel,
    survey_kernel,
)
from rtlang.kernels.triton.sampling_process import (
    count_kernel,
    edit_kernel,
    mask_kernel,
    process_kernel,
)

#: Values of ``out_status``.
OK, NUMERICAL_ERROR, DEAD_END = 0, 1, 2
#: Bits of ``SampleRows.flags``.
GREEDY, FILTERED, PENALISED, MASKED = 1, 2, 4, 8


@dataclass(frozen=True, slots=True)
class SampleRows:
    """What each sample asks for: device tensors [B], contiguous; floats are fp32, the rest int32.

    A row that pads the batch has ``flags`` GREEDY, ``seq_len`` 0 and a line kept for padding.
    """

    temperature: torch.Tensor  # at least 1e-5 or so; not read for greedy rows
    top_k: torch.Tensor  # < 1: off
    top_p: torch.Tensor  # 1: off
    min_p: torch.Tensor  # 0: off
    seed_low: torch.Tensor  # bits 0-31 of the int64 seed
    seed_high: torch.Tensor  # bits 32-63
    position: torch.Tensor  # output index of the token to draw
    flags: torch.Tensor  # GREEDY | FILTERED | PENALISED | MASKED
    repetition: torch.Tensor  # 1: off
    frequency: torch.Tensor
    presence: torch.Tensor
    row: torch.Tensor  # line of the sample in token_ids
    seq_len: torch.Tensor  # the history is token_ids[row, :seq_len]
    prompt_len: torch.Tensor  # the history from here on is output


@dataclass(frozen=True, slots=True)
class Edits:
    """Addends to processed scores: logit bias, and -inf for what may not come.

    The first ``count`` of the fixed capacity are applied. At most one finite addend for one place
    (the order of two would show in the last bit); -inf wins over everything.
    """

    count: torch.Tensor  # [1] i32
    sample: torch.Tensor  # [capacity] i32, 0 .. B - 1
    token: torch.Tensor  # [capacity] i32
    value: torch.Tensor  # [capacity] f32


@dataclass(frozen=True, slots=True)
class SamplerTuning:
    """Tile sizes (powers of two). They change the speed; of the results, only filter borders as
    close as fp32 rounding. So they are fixed for a run and do not depend on the batch."""

    block: int = 2048
    warps: int = 4
    filter_block: int = 4096
    filter_warps: int = 8
    cut_block: int = 2048
    cut_warps: int = 8
    history_block: int = 1024
    history_split: int = 8
    edit_block: int = 256


def mask_logits(logits: torch.Tensor, flags: torch.Tensor, mask_bits: torch.Tensor) -> None:
    """-inf, in place, for what a constraint forbids, in rows with MASKED.

    logits     [B, vocab_size] any float, rows contiguous
    flags      [B] i32
    mask_bits  [B, ceil(vocab_size / 32)] i32, contiguous: token t is bit t % 32 of word t // 32
    """
    num_rows, vocab_size = logits.shape
    check(flags, "flags", (num_rows,), torch.int32)
    check(mask_bits, "mask_bits", (num_rows, triton.cdiv(vocab_size, 32)), torch.int32)
    assert logits.stride(1) == 1 and mask_bits.is_contiguous()
    block = 2048
    mask_kernel[(num_rows, triton.cdiv(vocab_size, block))](
        *(logits, logits.stride(0), mask_bits, mask_bits.stride(0), flags, vocab_size),
        BLOCK=block,
        num_warps=4,
    )


class TritonSampler:
    """Scratch of a fixed address, and the launches. One call at a time, on one stream.

    ``full=False`` allocates none of the [max_batch, vocab_size] scratch (12 bytes an element).
    """

    def __init__(
        self,
        max_batch: int,
        vocab_size: int,
        device: torch.device | str,
        *,
        full: bool = True,
        tuning: SamplerTuning | None = None,
    ) -> None:
        self.max_batch, self.vocab_size = max_batch, vocab_size
        self.tuning = tuning or SamplerTuning()
        self._num_blocks = triton.cdiv(vocab_size, self.tuning.block)
        self._num_pieces = triton.cdiv(vocab_size, self.tuning.filter_block)
        self._has_full = full
        wide = (max_batch if full else 1, vocab_size if full else 1)

        def new(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        self._best = new(max_batch, self._num_blocks, dtype=torch.float32)
        self._arg = new(max_batch, self._num_blocks)
        self._finite = new(max_batch, self._num_blocks)
        self._winner_scores = new(max_batch, self._num_blocks, dtype=torch.float64)
        self._winner_ids = new(max_batch, self._num_blocks)
        self._cuts = new(max_batch, dtype=torch.float32)
        self._scores = new(*wide, dtype=torch.float32)
        self._counts = new(*wide)  # all 0 between calls
        self._listed = new(*wide, dtype=torch.float32)
        self._pivot_counts = new(max_batch, PIVOTS.value, self._num_pieces)
        self._pivot_masses = new(max_batch, PIVOTS.value, self._num_pieces, dtype=torch.float64)
        self._list_lens, self._list_pivots = new(max_batch), new(max_batch)
        self._totals = new(max_batch, dtype=torch.float64)

    def sample(
        self,
        logits: torch.Tensor,
        rows: SampleRows,
        token_ids: torch.Tensor,
        out_ids: torch.Tensor,
        out_status: torch.Tensor,
        *,
        full: bool,
        mask_bits: torch.Tensor | None = None,
        edits: Edits | None = None,
    ) -> None:
        """One token for each row of ``logits``.

        logits      [B, vocab_size] bf16, fp16 or fp32, rows contiguous; not changed
        token_ids   [num_lines, width] i32; the id is also written to [row, seq_len], if that is
                    inside
        out_ids     [B] i32, 0 where the status is not OK
        out_status  [B] i32: OK, NUMERICAL_ERROR (NaN, +inf, nothing finite), DEAD_END (the mask
                    allows no token)
        full        False: no row is filtered, penalised or masked; the two give the same ids
        mask_bits   [B, ceil(vocab_size / 32)] i32, 0 bits are forbidden; of rows with MASKED
        """
        num_rows = logits.shape[0]
        self._check(logits, out_ids, out_status, mask_bits)
        if not full and (mask_bits is not None or edits is not None):
            raise ValueError("masks and edits need full=True")
        if full and not self._has_full:
            raise ValueError("this sampler was made with full=False")
        if num_rows == 0:
            return
        scores = logits
        if not full:
            self._process(logits, rows, None, full=False)
        else:
            scores = self._scores[:num_rows]
            self._penalty_counts(rows, token_ids, num_rows, clear=False)
            self._process(logits, rows, mask_bits, full=True)
            self._penalty_counts(rows, token_ids, num_rows, clear=True)
            if edits is not None:
                self._edit(edits, num_rows)
                self._process(scores, rows, None, full=False)
            self._filter(rows, num_rows)
        self._draw(scores, rows, full=full)
        finish_kernel[(num_rows,)](
            *(self._best, self._arg, self._finite, self._winner_scores, self._winner_ids),
            *(rows.flags, rows.row, rows.seq_len),
            *(token_ids, token_ids.stride(0), token_ids.shape[1]),
            *(out_ids, out_status, self._num_blocks),
            FULL=full,
            NUM_BLOCKS=triton.next_power_of_2(self._num_blocks),
            num_warps=1,
        )

    def _check(
        self,
        logits: torch.Tensor,
        out_ids: torch.Tensor,
        out_status: torch.Tensor,
        mask_bits: torch.Tensor | None,
    ) -> None:
        num_rows = logits.shape[0]
        check(logits, "logits", (num_rows, self.vocab_size))
        check(out_ids, "out_ids", (num_rows,), torch.int32)
        check(out_status, "out_status", (num_rows,), torch.int32)
        if mask_bits is not None:
            shape = (num_rows, triton.cdiv(self.vocab_size, 32))
            check(mask_bits, "mask_bits", shape, torch.int32)
        if num_rows > self.max_batch or logits.stride(1) != 1:
            raise ValueError(f"logits: more than {self.max_batch} rows, or rows not contiguous")

    def _penalty_counts(
        self, rows: SampleRows, token_ids: torch.Tensor, num_rows: int, *, clear: bool
    ) -> None:
        count_kernel[(num_rows, self.tuning.history_split)](
            *(token_ids, token_ids.stride(0), rows.row, rows.seq_len, rows.prompt_len),
            *(rows.flags, self._counts, self.vocab_size),
            CLEAR=clear,
            SPLIT=self.tuning.history_split,
            BLOCK=self.tuning.history_block,
            num_warps=4,
        )

    def _process(
        self, scores: torch.Tensor, rows: SampleRows, mask_bits: torch.Tensor | None, *, full: bool
    ) -> None:
        process_kernel[(scores.shape[0], self._num_blocks)](
            *(scores, scores.stride(0), self._scores, self._counts),
            *((self._arg, 0) if mask_bits is None else (mask_bits, mask_bits.stride(0))),
            *(rows.flags, rows.repetition, rows.frequency, rows.presence),
            *(self._best, self._arg, self._finite, self.vocab_size, self._num_blocks),
            FULL=full,
            HAS_MASK=mask_bits is not None,
            BLOCK=self.tuning.block,
            num_warps=self.tuning.warps,
            enable_fp_fusion=False,
        )

    def _edit(self, edits: Edits, num_rows: int) -> None:
        capacity = edits.sample.shape[0]
        edit_kernel[(triton.cdiv(capacity, self.tuning.edit_block),)](
            *(edits.count, edits.sample, edits.token, edits.value),
            *(self._scores, num_rows, self.vocab_size, capacity),
            BLOCK=self.tuning.edit_block,
        )

    def _filter(self, rows: SampleRows, num_rows: int) -> None:
        tuning, num_pieces = self.tuning, self._num_pieces
        num_best = triton.next_power_of_2(self._num_blocks)
        wants = (self._scores, self._best, rows.temperature, rows.flags, rows.top_k, rows.top_p)
        survey_kernel[(num_rows, num_pieces)](
            *(*wants, self._pivot_counts, self._pivot_masses),
            *(self.vocab_size, self._num_blocks, num_pieces),
            NUM_BEST=num_best,
            BLOCK=tuning.filter_block,
            num_warps=tuning.filter_warps,
        )
        compact_kernel[(num_rows, num_pieces)](
            *(*wants, self._pivot_counts, self._pivot_masses),
            *(self._listed, self._list_lens, self._list_pivots, self._totals),
            *(self.vocab_size, self._num_blocks, num_pieces),
            NUM_BEST=num_best,
            NUM_BLOCKS=triton.next_power_of_2(num_pieces),
            BLOCK=tuning.filter_block,
            num_warps=tuning.filter_warps,
        )
        cut_kernel[(num_rows,)](
            *(rows.flags, self._best, rows.top_k, rows.top_p, rows.min_p),
            *(self._listed, self._list_lens, self._list_pivots, self._totals, self._cuts),
            *(self.vocab_size, self._num_blocks),
            NUM_BEST=num_best,
            BLOCK=tuning.cut_block,
            num_warps=tuning.cut_warps,
        )

    def _draw(self, scores: torch.Tensor, rows: SampleRows, *, full: bool) -> None:
        race_kernel[(scores.shape[0], self._num_blocks)](
            *(scores, scores.stride(0), self._best, rows.temperature),
            *(rows.seed_low, rows.seed_high, rows.position, rows.flags),
            *(self._cuts, self._winner_scores, self._winner_ids),
            *(self.vocab_size, self._num_blocks),
            FULL=full,
            NUM_BLOCKS=triton.next_power_of_2(self._num_blocks),
            BLOCK=self.tuning.block,
            num_warps=self.tuning.warps,
        )
