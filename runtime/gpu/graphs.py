"""GraphRunner: a step's forward pass and its sampling, each captured once per bucket.

A bucket is a number of rows (decode, samples) or tokens (extend); a step runs in the smallest
that holds it, filled up with padding rows that touch only slot 0. What a graph reads lies at
fixed addresses in ``DeviceTables``. Graphs follow each other on one stream and share one memory
pool; only hidden states, logits, ids and the tables live on from one to the next.
"""

from __future__ import annotations

import bisect
import logging
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable

import torch
from rich.console import Console
from rich.progress import track

logger = logging.getLogger(__name__)

Launch = Callable[[], object]
Key = tuple[str, int]  # what it runs, its bucket


def row_buckets(largest: int) -> list[int]:
    """Every size up to ``largest`` has a bucket that wastes less than 8 rows, or an eighth."""
    sizes = [1, 2, 4, *range(8, 256, 8), *range(256, largest, 32)]
    return [*(s for s in sizes if s < largest), largest]


def few_buckets(largest: int) -> list[int]:
    """Sizes for what is seldom needed: four times apart."""
    sizes = [size for size in (1, 4, 16, 64, 256, 1024) if size < largest]
    return [*sizes, largest]


def token_buckets(largest: int) -> list[int]:
    """Sizes of captured steps with prompt tokens: a third apart."""
    sizes, size = [], 16
    while size < largest:
        sizes += [size, size + size // 2]
        size *= 2
    return [*(s for s in sizes if s < largest), largest] if largest else []


def bucket_of(sizes: list[int], size: int) -> int | None:
    """The smallest bucket that holds ``size``; None if none does."""
    at = bisect.bisect_left(sizes, size)
    return sizes[at] if at < len(sizes) else None


class GraphRunner:
    """Captured launches by key. ``enabled=False``: every launch runs eagerly, in its bucket."""

    def __init__(self, device: torch.device, *, enabled: bool) -> None:
        self.enabled = enabled
        self._device = device
        self._graphs: dict[Key, torch.cuda.CUDAGraph] = {}
        self._pool: object = torch.cuda.graph_pool_handle() if enabled else None
        self.num_replays = 0
        self.fallbacks: Counter[str] = Counter()  # why steps ran without a graph
        self.capture_s = 0.0
        self.capture_bytes = 0

    def capture(self, launches: Iterable[tuple[Key, Launch]]) -> None:
        """Capture each, in the order given: the largest first, so that the pool fits at once."""
        todo = list(launches)
        if not self.enabled or not todo:
            return
        start = time.monotonic()
        free_before = torch.cuda.mem_get_info(self._device)[0]
        console = Console(stderr=True)
        for key, launch in track(todo, "capturing CUDA graphs", console=console, transient=True):
            launch()  # compiles kernels, and lets libraries allocate what they keep
            graph = torch.cuda.CUDAGraph()
            torch.cuda.synchronize(self._device)
            with torch.cuda.graph(graph, pool=self._pool):  # type: ignore[arg-type]
                launch()
            self._graphs[key] = graph
        torch.cuda.synchronize(self._device)
        self.capture_s = time.monotonic() - start
        self.capture_bytes = max(0, free_before - torch.cuda.mem_get_info(self._device)[0])
        logger.info(
            "captured %d CUDA graphs in %.1f s, %.2f GiB",
            *(len(todo), self.capture_s, self.capture_bytes / 2**30),
        )

    def run(self, key: Key, launch: Launch) -> None:
        """Replay the graph of ``key``; where there is none, launch."""
        graph = self._graphs.get(key)
        if graph is None:
            launch()
            return
        graph.replay()
        self.num_replays += 1

    def fall_back(self, reason: str) -> None:
        """Count a step that no graph fits, and say so the first time."""
        if self.enabled and not self.fallbacks[reason]:
            logger.info("a step runs without a CUDA graph: %s", reason)
        self.fallbacks[reason] += 1

    def stats(self) -> dict[str, Hashable]:
        return {
            "num_graphs": len(self._graphs),
            "num_graph_replays": self.num_replays,
            "graph_capture_s": self.capture_s,
            "graph_bytes": self.capture_bytes,
            **{f"eager_steps[{reason}]": n for reason, n in self.fallbacks.items()},
        }
