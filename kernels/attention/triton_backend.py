"""Paged attention in Triton that reads every length on the device."""

from __future__ import annotations

import dataclasses
import math

import torch
import triton

from rtlang.kernels.attention.base import AttentionLayer, AttentionRows, DeviceRows, NewKV
from rtlang.kernels.attention.triton_decode import (
    NUM_FIELDS,
    BlockConfig,
    decode_config,
    decode_kernel,
    plan,
)
from rtlang.kernels.attention.triton_extend import (
    EXTEND_WAVES,
    MAX_BLOCK_M,
    MIN_BLOCK_M,
    extend_block_m,
    extend_config,
    extend_kernel,
)
from rtlang.kernels.checks import check
from rtlang.kernels.triton.jit import pdl_options

LOG2E = math.log2(math.e)
#: Elements of parts that a merge reads at once.
MERGE_ELEMENTS = 4096
#: The largest ``BlockConfig.waves`` that the work buffers are made for.
MAX_WAVES = 16


@dataclasses.dataclass(frozen=True, slots=True)
class _Launch:
    """How the planned batch's kernels are started; a function of shapes alone."""

    config: BlockConfig
    block_m: int
    block_q: int
    target: int
    max_items: int


class TritonAttention:
    """Implements ``AttentionBackend`` with two kernels, one for decode and one for the rest.

    Only the shapes of a batch's tensors matter to the host: ``plan`` and the ``run`` of all layers
    may be captured into a CUDA graph, which then replays with whatever lengths and slots the same
    device tensors hold. Call ``plan`` first in the captured region: it only remembers the batch,
    and the first ``run`` for each window makes that window's work list on the device. Work buffers
    are shared, so batches of one object follow each other on one stream.
    """

    def __init__(
        self,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        *,
        windows: tuple[int | None, ...] = (None,),
        max_rows: int,
        max_tokens: int,
        device: torch.device | str,
        num_sms: int = 132,
        config: BlockConfig | None = None,
    ) -> None:
        """``config``, for tuning and tests, is used for every launch instead of the tables."""
        if num_kv_heads < 1 or num_heads % num_kv_heads or num_heads // num_kv_heads > 64:
            raise ValueError(f"num_heads: {num_heads} with {num_kv_heads} KV heads: 1 to 64 each")
        if not 1 <= head_dim <= 256:
            raise ValueError(f"head_dim: expected 1 to 256, got {head_dim}")
        if any(w is not None and w < 1 for w in windows):
            raise ValueError(f"windows: expected positive lengths, got {windows}")
        if max_rows < 1 or max_tokens < max_rows:
            raise ValueError(f"max_tokens: expected >= max_rows >= 1, got {max_tokens}, {max_rows}")
        if config is not None and not 1 <= config.waves <= MAX_WAVES:
            raise ValueError(f"config: expected 1 to {MAX_WAVES} waves, got {config.waves}")
        self.num_heads, self.num_kv_heads, self.head_dim = num_heads, num_kv_heads, head_dim
        self.max_rows, self.max_tokens, self.num_sms = max_rows, max_tokens, num_sms
        self._group = num_heads // num_kv_heads
        self._block_d = max(16, triton.next_power_of_2(head_dim))
        self._config = config
        self._rows: DeviceRows | None = None
        self._planned: dict[int | None, _Launch] = {}
        self._captured = False

        def ints(*shape: int) -> torch.Tensor:
            return torch.zeros(shape, dtype=torch.int32, device=device)

        targets = -(-MAX_WAVES * num_sms // num_kv_heads)
        # Twice a row for short tiles, see extend_block_m; decode has one tile a row.
        tiles = max_rows + max(2 * max_rows, max_tokens // max(MIN_BLOCK_M // self._group, 1))
        self._items = {w: ints(NUM_FIELDS, tiles + targets) for w in dict.fromkeys(windows)}
        self._counts = {w: ints(1) for w in self._items}
        self._arrivals = ints(2 * targets, num_kv_heads)
        lines = max(self._num_part_lines(), 1)
        self._part_lses = torch.empty(lines, dtype=torch.float32, device=device)
        self._parts = torch.empty(lines, self._block_d, dtype=torch.float32, device=device)

    def _num_part_lines(self) -> int:
        """Lines of all parts of the batch shape that has most."""
        if self._config is not None:
            shapes = [(self._config.waves, MAX_BLOCK_M)]
        else:
            tile = max(16, triton.next_power_of_2(self._group))
            shapes = [(MAX_WAVES, tile), (EXTEND_WAVES, MAX_BLOCK_M)]
        heads = self.num_kv_heads
        return max(2 * -(-w * self.num_sms // heads) * heads * m for w, m in shapes)

    def plan(self, rows: AttentionRows) -> None:
        """Remembers the batch; reads ``rows.device`` alone, and of it only shapes."""
        device = rows.device
        if device is None:
            raise ValueError("rows: expected rows on a device, got device=None")
        num_rows = device.seq_lens.shape[0]
        check(device.seq_lens, "seq_lens", (num_rows,), torch.int32)
        check(device.q_starts, "q_starts", (num_rows + 1,), torch.int32)
        check(device.rows, "rows", (num_rows,), torch.int32)
        check(device.slot_table, "slot_table", (None, None), torch.int32)
        if num_rows > self.max_rows:
            raise ValueError(f"seq_lens: expected at most {self.max_rows} rows, got {num_rows}")
        for name in ("seq_lens", "q_starts", "rows"):
            if not getattr(device, name).is_contiguous():
                raise ValueError(f"{name}: expected a contiguous tensor")
        if device.slot_table.stride(1) != 1:
            raise ValueError("slot_table: expected contiguous lines")
        self._rows = device
        self._planned.clear()

    def run(
        self,
        q: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        layer: AttentionLayer,
        out: torch.Tensor | None = None,
        new: NewKV | None = None,
    ) -> torch.Tensor:
        """As ``AttentionBackend.run``; ``out``, as q, is written where given.

        keys and values have q's dtype or are float8_e4m3fn; any strides but 1 for the last axis.
        """
        rows = self._rows
        assert rows is not None, "plan first"
        out = torch.empty_like(q) if out is None else out
        self._check(q, keys, values, layer, out)
        if q.shape[0] == 0 or rows.seq_lens.shape[0] == 0:
            return out
        launch = self._launch(rows, q, keys, layer.window)
        cap = layer.soft_cap
        score_scale = layer.scale * layer.k_scale * (LOG2E if cap is None else 2 * LOG2E / cap)
        items = self._items[layer.window]
        arguments = (
            q, keys, values, out, rows.slot_table, items, self._counts[layer.window],
            self._parts, self._part_lses, self._arrivals,
            float(score_scale), LOG2E * (cap or 0.0), float(layer.v_scale),
            items.stride(0), rows.slot_table.stride(0), *q.stride()[:2], *keys.stride()[:2],
            *values.stride()[:2], *out.stride()[:2],
        )  # fmt: skip
        merge_m = triton.next_power_of_2(self._group) if rows.decode else launch.block_m
        options = {
            "NUM_KV_HEADS": self.num_kv_heads,
            "GROUP": self._group,
            "HEAD_DIM": self.head_dim,
            "BLOCK_M": launch.block_m,
            "BLOCK_D": self._block_d,
            "BLOCK_N": launch.config.block_n,
            "SOFT_CAP": cap is not None,
            "PRECISION": "ieee" if q.dtype == torch.float32 else "tf32",
            "MERGE": max(1, MERGE_ELEMENTS // (merge_m * self._block_d)),
            "MERGE_M": merge_m,
            "num_warps": launch.config.num_warps,
            "num_stages": launch.config.num_stages,
        }
        grid = (self.num_kv_heads, launch.max_items)
        if rows.decode:
            decode_kernel[grid](*arguments, **options, **pdl_options())
        else:
            window = layer.window
            extend_kernel[grid](*arguments, window or 0, WINDOW=window is not None, **options)
        return out

    def _launch(
        self, rows: DeviceRows, q: torch.Tensor, keys: torch.Tensor, window: int | None
    ) -> _Launch:
        """The launch for this window; the first time since ``plan``, its work list is made."""
        capturing = q.is_cuda and torch.cuda.is_current_stream_capturing()
        if capturing != self._captured:  # what a capture records has not run, and the other way
            self._planned.clear()
        self._captured = capturing
        launch = self._planned.get(window)
        if launch is not None:
            return launch
        num_rows, num_tokens = rows.seq_lens.shape[0], q.shape[0]
        if rows.decode:
            block_m, block_q = max(16, triton.next_power_of_2(self._group)), 1
            size = 4 if q.dtype == torch.float32 else keys.element_size()
            programs = num_rows * self.num_kv_heads
            config = self._config or decode_config(self.head_dim, size, programs, self.num_sms)
            tiles = num_rows
        else:
            shape = self.head_dim, q.element_size()
            block_m = extend_block_m(num_tokens, num_rows, self._group, *shape)
            block_q = block_m // self._group
            config = self._config or extend_config(block_m, *shape)
            tiles = min(num_tokens // block_q + num_rows, num_tokens)
        target = config.num_targets(self.num_kv_heads, self.num_sms)
        launch = _Launch(config, block_m, block_q, target, tiles + target)
        plan(
            rows.seq_lens, rows.q_starts, rows.rows, self._items[window], self._counts[window],
            target=target, window=window, block_q=block_q, config=config,
        )  # fmt: skip
        self._planned[window] = launch
        return launch

    def _check(
        self,
        q: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        layer: AttentionLayer,
        out: torch.Tensor,
    ) -> None:
        rows = self._rows
        assert rows is not None
        num_tokens = rows.seq_lens.shape[0] if rows.decode else None
        check(q, "q", (num_tokens, self.num_heads, self.head_dim))
        check(keys, "keys", (None, self.num_kv_heads, self.head_dim))
        check(values, "values", (keys.shape[0], self.num_kv_heads, self.head_dim), keys.dtype)
        check(out, "out", tuple(q.shape), q.dtype)
        if q.shape[0] > self.max_tokens:
            raise ValueError(f"q: expected at most {self.max_tokens} tokens, got {q.shape[0]}")
        if keys.dtype not in (q.dtype, torch.float8_e4m3fn):
            raise ValueError(f"keys: expected {q.dtype} or float8_e4m3fn, got {keys.dtype}")
        for name, tensor in (("q", q), ("keys", keys), ("values", values), ("out", out)):
            if tensor.stride(2) != 1:
                raise ValueError(f"{name}: expected elements of a head side by side")
        if layer.window not in self._items:
            raise ValueError(f"layer: window {layer.window} is none of {list(self._items)}")
