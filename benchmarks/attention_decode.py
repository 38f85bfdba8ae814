"""Decode attention on a GPU: time and bandwidth by shape and block configuration.

    python benchmarks/attention_decode.py [--only TEXT] [--seconds 60]

Each number is a launch's mean in a CUDA graph of at least 40, over pools of at least 512 MB
together, so that the L2 cache does not help; slots are shuffled, page size 1, bf16. TB/s counts
keys and values. ``error`` is the largest difference from attention in fp32; ``plan`` is one work
list's time, once a step. FlashInfer's tensor-core decode stands beside it where it can be imported.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from rtlang.kernels.attention.base import AttentionLayer, AttentionRows, DeviceRows
from rtlang.kernels.attention.triton_backend import TritonAttention
from rtlang.kernels.attention.triton_decode import BlockConfig, decode_config

flashinfer: Any
try:
    flashinfer = importlib.import_module("flashinfer")
except ImportError:
    flashinfer = None

POOL_BYTES = 512 << 20
CONFIGS = (
    BlockConfig(64, 4, 3, 64, 4),
    BlockConfig(64, 4, 5, 128, 4),
    BlockConfig(64, 4, 5, 128, 16),
    BlockConfig(64, 4, 7, 128, 8),
    BlockConfig(32, 4, 7, 64, 8),
    BlockConfig(128, 4, 5, 128, 8),
    BlockConfig(128, 8, 3, 128, 8),
)


@dataclasses.dataclass(frozen=True)
class Shape:
    rows: int
    seq_len: int
    num_heads: int
    num_kv_heads: int
    head_dim: int

    @property
    def kv_bytes(self) -> int:
        return 2 * 2 * self.rows * self.seq_len * self.num_kv_heads * self.head_dim

    def __str__(self) -> str:
        heads = f"{self.num_heads}/{self.num_kv_heads}x{self.head_dim}"
        return f"{self.rows} x {self.seq_len}, {heads}"


SHAPES = [
    *(Shape(b, n, h, 8, 128) for h in (32, 16) for b, n in ((1, 1024), (64, 1024), (256, 1024))),
    *(Shape(32, 8320, h, 8, 128) for h in (32, 16)),
    *(Shape(b, 1100, 9, 3, 64) for b in (1, 64, 128, 256)),
]


class Inputs:
    """Some layers' pools, one shuffled slot table, rotated from launch to launch."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        num_slots = shape.rows * shape.seq_len + 1
        num_pools = max(2, min(64, -(-POOL_BYTES // shape.kv_bytes)))
        self.num_launches = max(40, num_pools)
        kv = (num_slots, shape.num_kv_heads, shape.head_dim)
        self.pools = [(_randn(kv), _randn(kv)) for _ in range(num_pools)]
        self.q = _randn((shape.rows, shape.num_heads, shape.head_dim))
        self.out = torch.empty_like(self.q)
        slots = torch.randperm(num_slots - 1, device="cuda", dtype=torch.int32) + 1
        self.table = slots.view(shape.rows, shape.seq_len)
        self.layer = AttentionLayer(scale=shape.head_dim**-0.5)

    def rows(self) -> AttentionRows:
        rows, seq_len = self.shape.rows, self.shape.seq_len
        index = torch.arange(rows + 1, dtype=torch.int32, device="cuda")
        lens = torch.full((rows,), seq_len, dtype=torch.int32, device="cuda")
        nothing = np.zeros(0, np.int32)
        device = DeviceRows(lens, index, index[:rows].clone(), self.table, decode=True)
        return AttentionRows(nothing, nothing, nothing[:, None], device)

    def error(self) -> float:
        """Of ``out``, which the last launch wrote, in the last row."""
        keys, values = self.pools[(self.num_launches - 1) % len(self.pools)]
        slots = self.table[-1].long()
        group = self.shape.num_heads // self.shape.num_kv_heads
        k, v = (x[slots].float().repeat_interleave(group, 1) for x in (keys, values))
        scores = torch.einsum("hd,khd->hk", self.q[-1].float(), k) * self.layer.scale
        wanted = torch.einsum("hk,khd->hd", scores.softmax(-1), v)
        return float((self.out[-1].float() - wanted).abs().max())


def _randn(shape: tuple[int, ...]) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.bfloat16, device="cuda")


def time_graph(inputs: Inputs, launch: Callable[[int], object]) -> float:
    """Microseconds of one ``launch(i)``."""
    launch(0)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(inputs.num_launches):
            launch(i)
    times: list[float] = []
    graph.replay()
    for _ in range(5):
        start = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        stop = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        start.record()
        graph.replay()
        stop.record()
        torch.cuda.synchronize()
        times.append(float(start.elapsed_time(stop)) * 1e3 / inputs.num_launches)
    return statistics.median(times)


def time_ours(inputs: Inputs, config: BlockConfig | None, *, plan_each: bool = False) -> float:
    shape = inputs.shape
    backend = TritonAttention(
        shape.num_heads,
        shape.num_kv_heads,
        shape.head_dim,
        max_rows=shape.rows,
        max_tokens=shape.rows,
        device="cuda",
        config=config,
    )
    rows = inputs.rows()
    backend.plan(rows)

    def launch(i: int) -> None:
        if plan_each:
            backend.plan(rows)
        backend.run(inputs.q, *inputs.pools[i % len(inputs.pools)], inputs.layer, inputs.out)

    return time_graph(inputs, launch)


def time_flashinfer(inputs: Inputs) -> float:
    shape = inputs.shape
    workspace = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD", use_tensor_cores=True)
    starts = torch.arange(shape.rows + 1, dtype=torch.int32, device="cuda") * shape.seq_len
    wrapper.plan(
        starts,
        inputs.table.reshape(-1),
        torch.ones(shape.rows, dtype=torch.int32, device="cuda"),
        shape.num_heads,
        shape.num_kv_heads,
        shape.head_dim,
        1,
        q_data_type=torch.bfloat16,
        kv_data_type=torch.bfloat16,
    )
    pools = [(k.unsqueeze(1), v.unsqueeze(1)) for k, v in inputs.pools]
    return time_graph(
        inputs, lambda i: wrapper.run(inputs.q, pools[i % len(pools)], out=inputs.out)
    )


def report(shape: Shape, deadline: float) -> None:
    inputs = Inputs(shape)

    def line(name: str, micros: float, more: str = "") -> None:
        bandwidth = shape.kv_bytes / micros / 1e6
        error = inputs.error()
        print(f"  {name:36} {micros:8.1f} us {bandwidth:5.2f} TB/s  error {error:.4f} {more}")

    programs = shape.rows * shape.num_kv_heads
    print(f"{shape}: {len(inputs.pools)} pools", flush=True)
    default = decode_config(shape.head_dim, 2, programs, 132)
    plain = time_ours(inputs, None)
    planned = time_ours(inputs, None, plan_each=True)
    line(f"default {_text(default)}", plain, f"plan {planned - plain:.1f} us")
    if flashinfer is not None:
        try:
            line("FlashInfer", time_flashinfer(inputs))
        except Exception as error:
            print(f"  FlashInfer: {type(error).__name__}: {str(error)[:100]}")
    for config in CONFIGS:
        if config != default and time.monotonic() < deadline:
            try:
                line(_text(config), time_ours(inputs, config))
            except Exception as error:  # too much shared memory, say
                print(f"  {_text(config)}: {type(error).__name__}: {str(error)[:100]}")


def _text(config: BlockConfig) -> str:
    c = config
    return f"n{c.block_n} w{c.num_warps} s{c.num_stages} min{c.min_tokens} waves{c.waves}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="shapes whose name holds this text")
    parser.add_argument("--seconds", type=float, default=60.0, help="then defaults alone")
    args = parser.parse_args()
    deadline = time.monotonic() + args.seconds
    for shape in SHAPES:
        if args.only in str(shape):
            report(shape, deadline)
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
