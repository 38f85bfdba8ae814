"""Attention through FlashInfer's kernels: fa3 on Hopper, fa2 elsewhere."""

from __future__ import annotations

from typing import Any

import flashinfer
import numpy as np
import torch
import triton
import triton.language as tl

from rtlang.kernels.attention.base import AttentionLayer, AttentionRows, DeviceRows, NewKV
from rtlang.kernels.triton.jit import jit_varying

_WORKSPACE_BYTES = 256 << 20
_BLOCK = 1024


@jit_varying(pointers=["rows", "starts"])
def _pages_kernel(
    rows: tl.tensor,
    slot_table: tl.tensor,
    starts: tl.tensor,
    pages: tl.tensor,
    width: tl.tensor,
    PAGE: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0)
    start = tl.load(starts + row)
    length = tl.load(starts + row + 1) - start
    first = tl.program_id(1) * BLOCK
    if first < length:
        i = first + tl.arange(0, BLOCK)
        inside = i < length
        line = slot_table + tl.load(rows + row).to(tl.int64) * width
        slots = tl.load(line + i * PAGE, mask=inside, other=0)
        tl.store(pages + start + i, slots // PAGE, mask=inside)


class FlashInferAttention:
    """Implements ``AttentionBackend`` for layers that are all alike, without window or soft cap.

    ``plan`` needs the lengths on the host.
    """

    def __init__(
        self,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        *,
        page_size: int,
        dtype: torch.dtype,
        kv_dtype: torch.dtype,
        scale: float,
        device: torch.device,
        decode: bool = False,
    ) -> None:
        """``scale``: of the scores; ``decode``: for steps of one token a row, otherwise for any."""
        self._sizes = (num_heads, num_kv_heads, head_dim, page_size)
        self._options = {"q_data_type": dtype, "kv_data_type": kv_dtype, "sm_scale": scale}
        self._device = device
        self._decode = decode
        workspace = torch.zeros(_WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        # Two take turns: a plan's pinned arrays may be on their way while the next is made.
        self._wrappers = [self._make_wrapper(workspace, dtype, kv_dtype) for _ in range(2)]
        self._wrapper = self._wrappers[0]

    def _make_wrapper(
        self, workspace: torch.Tensor, dtype: torch.dtype, kv_dtype: torch.dtype
    ) -> Any:
        if self._decode:
            make = flashinfer.BatchDecodeWithPagedKVCacheWrapper
            return make(workspace, "NHD", use_tensor_cores=True)
        fa3 = kv_dtype == dtype and _has_fa3(self._sizes[2], self._device)
        make = flashinfer.BatchPrefillWithPagedKVCacheWrapper
        return make(workspace, "NHD", backend="fa3" if fa3 else "fa2")

    def plan(self, rows: AttentionRows) -> None:
        assert rows.device is not None
        page = self._sizes[3]
        self._wrappers.reverse()
        self._wrapper = self._wrappers[0]
        seq_lens = rows.seq_lens.astype(np.int64)
        num_pages = -(-seq_lens // page)
        kv_starts = _starts(num_pages)
        pages = _page_list(rows.device, kv_starts, int(num_pages.max()), page, self._device)
        last = _pinned(seq_lens - (num_pages - 1) * page)
        if self._decode:
            self._wrapper.plan(kv_starts, pages, last, *self._sizes, **self._options)
        else:
            q_starts = _starts(rows.extend_lens)
            # Lengths that are given need not be found by a loop over tensors.
            self._wrapper.plan(
                *(q_starts, kv_starts, pages, last, *self._sizes),
                causal=True,
                max_token_per_sequence=int(rows.extend_lens.max()),
                seq_lens=_pinned(seq_lens),
                **self._options,
            )

    def run(
        self,
        q: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        layer: AttentionLayer,
        out: torch.Tensor | None = None,
        new: NewKV | None = None,
    ) -> torch.Tensor:
        assert layer.window is None and layer.soft_cap is None, layer
        assert layer.scale == self._options["sm_scale"], layer
        _, kv_heads, dim, page = self._sizes
        paged = (keys.view(-1, page, kv_heads, dim), values.view(-1, page, kv_heads, dim))
        scales: dict[str, float] = {}
        if keys.dtype.itemsize == 1:
            scales = {"k_scale": layer.k_scale, "v_scale": layer.v_scale}
        result: torch.Tensor = self._wrapper.run(q, paged, out=out, **scales)
        return result


class FlashInferRagged:
    """Implements ``AttentionBackend`` for rows of which nothing is in the pool but their new
    tokens: keys and values are read as the layer made them, in order, not gathered slot by slot.

    Measured on an H200, 2 x 4096 tokens, 32/8 heads, dim 128: 608 TFLOP/s, paged 487.
    """

    def __init__(
        self,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        *,
        dtype: torch.dtype,
        scale: float,
        device: torch.device,
    ) -> None:
        """``scale``: of the scores. The pool holds keys and values in ``dtype`` too, so that it
        makes no difference from where they are read."""
        self._sizes = (num_heads, num_kv_heads, head_dim)
        self._options = {"q_data_type": dtype, "sm_scale": scale}
        workspace = torch.zeros(_WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        make = flashinfer.BatchPrefillWithRaggedKVCacheWrapper
        backend = "fa3" if _has_fa3(head_dim, device) else "fa2"
        # Two take turns, as above.
        self._wrappers = [make(workspace, "NHD", backend=backend) for _ in range(2)]

    def plan(self, rows: AttentionRows) -> None:
        assert np.array_equal(rows.seq_lens, rows.extend_lens), rows
        self._wrappers.reverse()
        starts = _starts(rows.extend_lens)
        self._wrappers[0].plan(starts, starts, *self._sizes, causal=True, **self._options)

    def run(
        self,
        q: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        layer: AttentionLayer,
        out: torch.Tensor | None = None,
        new: NewKV | None = None,
    ) -> torch.Tensor:
        assert new is not None and layer.window is None and layer.soft_cap is None, layer
        assert layer.scale == self._options["sm_scale"], layer
        result: torch.Tensor = self._wrappers[0].run(q, *new, out=out)
        return result


def _has_fa3(head_dim: int, device: torch.device) -> bool:
    return torch.cuda.get_device_capability(device)[0] == 9 and head_dim in (64, 128)


def _pinned(values: Any) -> torch.Tensor:
    """int32 on the host. A copy from memory that is not pinned would wait for the stream."""
    return torch.from_numpy(np.asarray(values, np.int32)).pin_memory()


def _starts(lens: Any) -> torch.Tensor:
    """[n + 1] int32 on the host, pinned."""
    starts = np.zeros(len(lens) + 1, np.int32)
    np.cumsum(lens, out=starts[1:])
    return _pinned(starts)


def _page_list(
    rows: DeviceRows, starts: torch.Tensor, longest: int, page: int, device: torch.device
) -> torch.Tensor:
    pages = torch.empty(int(starts[-1]), dtype=torch.int32, device=device)
    grid = (len(starts) - 1, triton.cdiv(longest, _BLOCK))
    on_device = starts.to(device, non_blocking=True)
    table = rows.slot_table
    _pages_kernel[grid](rows.rows, table, on_device, pages, table.shape[1], PAGE=page, BLOCK=_BLOCK)
    return pages
