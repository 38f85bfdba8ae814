"""Linear layers of few rows on a GPU: fused Triton kernels beside torch's, by shape and config.

    python benchmarks/skinny.py [--only TEXT] [--rows 1 4 16] [--seconds 45]

Each number is a launch's mean in a CUDA graph of many, over copies of the weight of at least 256 MB
together, so that the L2 cache does not help. torch's is the product alone (for o and down with an
addition to the residual), without the norm or the activation that ours holds. TB/s counts weights.
``pdl`` and ``plain`` are ours with and without programmatic dependent launch.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F

from rtlang.kernels.triton.skinny import (
    Config,
    choose,
    linear,
    linear_add,
    norm_gated,
    norm_linear,
)

WEIGHT_BYTES = 256 << 20
EPS = 1e-5


@dataclasses.dataclass(frozen=True)
class Shape:
    name: str
    n: int  # rows of the weight
    k: int

    @property
    def bytes(self) -> int:
        return 2 * self.n * self.k

    @property
    def gated(self) -> bool:
        return "gate_up" in self.name

    @property
    def adds(self) -> bool:
        return self.name.endswith((" o", " down"))


def _model(name: str, hidden: int, qkv: int, heads: int, inner: int, vocab: int) -> list[Shape]:
    return [
        Shape(f"{name} qkv", qkv, hidden),
        Shape(f"{name} o", hidden, heads),
        Shape(f"{name} gate_up", 2 * inner, hidden),
        Shape(f"{name} down", hidden, inner),
        Shape(f"{name} head", vocab, hidden),
    ]


SHAPES = [
    *_model("llama", 4096, 6144, 4096, 14336, 128256),
    *_model("qwen", 1024, 4096, 2048, 3072, 151936),
    *_model("smol", 576, 960, 576, 1536, 49152),
]


def configs(shape: Shape, m: int) -> list[Config]:
    """The default first."""
    k, gated = shape.k, shape.gated
    default = choose(m, shape.n // 2 if gated else shape.n, k, 2, gated=gated)

    def fma(block_n: int, warps: int, depth: int, prefetch: int = 0) -> Config:
        return Config(block_n, 256 * warps, warps, depth, prefetch)

    def dot(block_n: int, block_k: int, warps: int, stages: int, prefetch: int = 0) -> Config:
        return Config(block_n, block_k, warps, stages, prefetch, dot=True)

    if m <= 2:
        one, two = (1, 2) if gated else (2, 4)
        others = [fma(two, 4, 2, k), fma(one, 4, 4), fma(two, 8, 2), fma(2 * two, 4, 2)]
        others += [fma(one, 8, 2)] if k > 1024 else [fma(two, 2, 2)]
    else:
        others = [dot(16, 128, 2, 6), dot(16, 256, 4, 4), dot(32, 128, 4, 5)]
        others += [dot(32, 128, 4, 4, 2048)]
        others += [fma(2, 4, 2)] if m <= 4 else [dot(64, 64, 4, 5)]
    return [default, *(c for c in others if c != default)]


class Inputs:
    def __init__(self, shape: Shape) -> None:
        copies = max(2, min(128, -(-WEIGHT_BYTES // shape.bytes)))
        self.shape, self.launches = shape, max(16, copies)
        weights = torch.randn(copies, shape.n, shape.k, dtype=torch.bfloat16, device="cuda")
        self.weights = list(weights.mul_(shape.k**-0.5))
        self.gain = torch.ones(shape.k, dtype=torch.bfloat16, device="cuda")

    def start(self, m: int) -> None:
        self.x = torch.randn(m, self.shape.k, dtype=torch.bfloat16, device="cuda")
        self.residual = torch.zeros(m, self.shape.n, dtype=torch.bfloat16, device="cuda")

    def plain(self, i: int) -> None:
        product = F.linear(self.x, self.weights[i % len(self.weights)])
        if self.shape.adds:
            self.residual += product

    def ours(self, i: int, config: Config, pdl: bool) -> torch.Tensor:
        weight = self.weights[i % len(self.weights)]
        if self.shape.gated:
            return norm_gated(self.x, self.gain, EPS, weight, "silu", config=config, pdl=pdl)
        if self.shape.adds:
            linear_add(self.x, weight, self.residual, config=config, pdl=pdl)
            return self.residual
        if self.shape.name.endswith("qkv"):
            return norm_linear(self.x, self.gain, EPS, weight, config=config, pdl=pdl)
        return linear(self.x, weight, config=config, pdl=pdl)

    def error(self, config: Config) -> float:
        """The largest difference from fp32, of the first weight."""
        x = self.x.float()
        if self.shape.gated or self.shape.name.endswith("qkv"):
            x = F.rms_norm(x, (self.shape.k,), self.gain.float(), EPS)
        wanted = x @ self.weights[0].float().T
        if self.shape.gated:
            gate, up = wanted.chunk(2, dim=1)
            wanted = F.silu(gate) * up
        self.residual.zero_()
        return float((self.ours(0, config, True).float() - wanted).abs().max())

    def time(self, launch: Callable[[int], object]) -> float:
        """Microseconds of one ``launch(i)``."""
        launch(0)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for i in range(self.launches):
                launch(i)
        graph.replay()
        times: list[float] = []
        for _ in range(3):
            start = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            stop = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            start.record()
            graph.replay()
            stop.record()
            torch.cuda.synchronize()
            times.append(float(start.elapsed_time(stop)) * 1e3 / self.launches)
        return statistics.median(times)


def _text(config: Config) -> str:
    c = config
    kind = "dot" if c.dot else "fma"
    return f"{kind} n{c.block_n} k{c.block_k} w{c.num_warps} s{c.num_stages} p{c.prefetch}"


def report(inputs: Inputs, m: int, deadline: float) -> str | None:
    """The best config, as a line; None: no time was left."""
    if time.monotonic() > deadline:
        return None
    shape = inputs.shape
    inputs.start(m)
    base = inputs.time(inputs.plain)
    rate = shape.bytes / 1e6
    print(f"{shape.name} {shape.n}x{shape.k}, {m} rows: torch {base:.1f} us {rate / base:.2f} TB/s")
    best: tuple[float, str] = (float("inf"), "none")
    for i, config in enumerate(configs(shape, m)):
        if i and time.monotonic() > deadline:
            break
        try:
            error = inputs.error(config)
            plain, pdl = (
                inputs.time(lambda j, c=config, on=on: inputs.ours(j, c, on))  # type: ignore[misc]
                for on in (False, True)
            )
        except Exception as problem:  # too much shared memory, say
            print(f"  {_text(config)}: {type(problem).__name__}: {str(problem)[:100]}")
            continue
        best = min(best, (pdl, f"{_text(config)}{'' if i else ' (default)'}"))
        print(
            f"  {_text(config):28} plain {plain:6.1f} us {rate / plain:5.2f} TB/s   "
            f"pdl {pdl:6.1f} us {rate / pdl:5.2f} TB/s   error {error:.4f}",
            flush=True,
        )
    micros, config_text = best
    return (
        f"{shape.name:14} {m:2} rows  torch {base:6.1f}  best {micros:6.1f} us "
        f"{rate / micros:5.2f} TB/s  {config_text}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="shapes whose name holds this text")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--seconds", type=float, default=45.0, help="then no further config")
    args = parser.parse_args()
    deadline = time.monotonic() + args.seconds
    summary: list[str] = []
    for shape in SHAPES:
        if args.only not in shape.name or time.monotonic() > deadline:
            continue
        inputs = Inputs(shape)
        lines = [report(inputs, m, deadline) for m in args.rows]
        summary += [line for line in lines if line is not None]
        del inputs
        torch.cuda.empty_cache()
    print("\nbest:", *summary, sep="\n")


if __name__ == "__main__":
    main()
