"""Time of the sampling chain on a GPU, in a CUDA graph, by batch and vocabulary.

    python benchmarks/sampling.py [--repeats 200]

``plain``: draws at temperature 1. ``full``: the full variant on rows that ask for nothing more,
that is, what its passes cost. ``filtered``: each row top-k 50, top-p 0.95 and min-p 0.01.
``nucleus``: top-p 0.95 alone. ``all``: top-p, penalties with a history of 1000 tokens, a mask and
edits. The logits are bf16, normal with standard deviation 3: about as peaked as a model's.
Microseconds, the mean of the replays.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch

from rtlang.kernels.triton.sampling import (
    FILTERED,
    MASKED,
    PENALISED,
    Edits,
    SampleRows,
    TritonSampler,
)

SHAPES = [(1, 151936), (64, 151936), (256, 151936), (64, 128256), (128, 49152)]
WIDTH, HISTORY = 4096, 1000
FILTERS = (50, 0.95, 0.01)
#: flags, (top_k, top_p, min_p), whether the full variant runs
VARIANTS: dict[str, tuple[int, tuple[int, float, float], bool]] = {
    "plain": (0, (-1, 1.0, 0.0), False),
    "full": (0, (-1, 1.0, 0.0), True),
    "filtered": (FILTERED, FILTERS, True),
    "nucleus": (FILTERED, (-1, 0.95, 0.0), True),
    "all": (FILTERED | PENALISED | MASKED, (-1, 0.95, 0.0), True),
}


def make_rows(batch: int, flags: int, filters: tuple[int, float, float]) -> SampleRows:
    def ints(value: int) -> torch.Tensor:
        return torch.full((batch,), value, dtype=torch.int32, device="cuda")

    def floats(value: float) -> torch.Tensor:
        return torch.full((batch,), value, dtype=torch.float32, device="cuda")

    return SampleRows(
        temperature=floats(1.0),
        top_k=ints(filters[0]),
        top_p=floats(filters[1]),
        min_p=floats(filters[2]),
        seed_low=torch.arange(batch, dtype=torch.int32, device="cuda"),
        seed_high=ints(0),
        position=ints(7),
        flags=ints(flags),
        repetition=floats(1.1),
        frequency=floats(0.1),
        presence=floats(0.1),
        row=torch.arange(batch, dtype=torch.int32, device="cuda"),
        seq_len=ints(HISTORY),
        prompt_len=ints(HISTORY // 2),
    )


def time_graph(graph: torch.cuda.CUDAGraph, repeats: int) -> float:
    """Microseconds of one replay."""
    for _ in range(5):
        graph.replay()
    new_event: Any = torch.cuda.Event
    start, end = (new_event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(repeats):
        graph.replay()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) * 1000 / repeats


def measure(batch: int, vocab_size: int, name: str, sampler: TritonSampler, repeats: int) -> float:
    flags, filters, full = VARIANTS[name]
    rows = make_rows(batch, flags, filters)
    generator = torch.Generator("cuda").manual_seed(0)
    logits = torch.randn(batch, vocab_size, generator=generator, device="cuda") * 3
    logits = logits.to(torch.bfloat16)
    token_ids = torch.randint(
        vocab_size, (batch, WIDTH), generator=generator, device="cuda", dtype=torch.int32
    )
    ids, status = (torch.zeros(batch, dtype=torch.int32, device="cuda") for _ in range(2))
    mask, edits = None, None
    if flags & MASKED:
        mask = torch.full((batch, -(-vocab_size // 32)), -2, dtype=torch.int32, device="cuda")
        zeros = torch.zeros(512, dtype=torch.int32, device="cuda")
        edits = Edits(zeros[:1] + 100, zeros, torch.arange(512, device="cuda").int(), zeros.float())

    def launch() -> None:
        sampler.sample(logits, rows, token_ids, ids, status, full=full, mask_bits=mask, edits=edits)

    launch()  # compiles
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch()
    took = time_graph(graph, repeats)
    assert not status.any(), status
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=200)
    repeats = parser.parse_args().repeats
    if not torch.cuda.is_available():
        raise SystemExit("benchmarks/sampling.py needs an NVIDIA GPU")
    print(f"{torch.cuda.get_device_name()}; microseconds")
    print(f"{'batch':>6}{'vocab':>8}" + "".join(f"{name:>10}" for name in VARIANTS))
    for batch, vocab_size in SHAPES:
        sampler = TritonSampler(batch, vocab_size, "cuda")
        took = [measure(batch, vocab_size, name, sampler, repeats) for name in VARIANTS]
        print(f"{batch:>6}{vocab_size:>8}" + "".join(f"{us:>10.1f}" for us in took), flush=True)


if __name__ == "__main__":
    main()
