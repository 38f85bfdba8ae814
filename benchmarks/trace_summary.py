"""What a profile of decode steps says: where a step's time goes, and the gaps between steps.

    python benchmarks/trace_summary.py TRACE.json

A step ends with the kernel that writes the sampled ids. Printed are, per step and in
microseconds: its length, the time in which no kernel ran, the gap before its first kernel, and
the kernels that take most.
"""

from __future__ import annotations

import gzip
import itertools
import json
import statistics
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

LAST_KERNEL = "finish_kernel"


def kernels_of(path: Path) -> list[dict[str, Any]]:
    """Kernels and copies of the trace, by start."""
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt") as file:
        events = json.load(file)["traceEvents"]
    wanted = ("kernel", "gpu_memcpy", "gpu_memset")
    return sorted((e for e in events if e.get("cat") in wanted), key=lambda e: e["ts"])


def steps_of(kernels: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Whole steps: what lies between two ends."""
    steps: list[list[dict[str, Any]]] = [[]]
    for kernel in kernels:
        steps[-1].append(kernel)
        if LAST_KERNEL in kernel["name"]:
            steps.append([])
    return [step for step in steps[1:-1] if step]


def main() -> int:
    if len(sys.argv) != 2:
        print(__doc__)
        return 2
    steps = steps_of(kernels_of(Path(sys.argv[1])))
    lengths, idle, gaps = [], [], []
    total: dict[str, float] = defaultdict(float)
    count: dict[str, int] = defaultdict(int)
    for before, step in itertools.pairwise(steps):
        end = before[-1]["ts"] + before[-1]["dur"]
        start = end
        quiet = 0.0
        for kernel in step:
            quiet += max(0.0, kernel["ts"] - end)
            end = max(end, kernel["ts"] + kernel["dur"])
            total[kernel["name"]] += kernel["dur"]
            count[kernel["name"]] += 1
        lengths.append(end - start)
        idle.append(quiet)
        first = next((k for k in step if k.get("cat") == "kernel"), step[0])
        gaps.append(first["ts"] - start)
    length, gap = statistics.median(lengths), statistics.median(gaps)
    print(f"{len(lengths)} steps, median {length:.1f} us; no kernel runs in", end=" ")
    print(f"{statistics.median(idle):.1f} us; before the first {gap:.1f}", end=" ")
    print(f"({100 * gap / length:.2f} %)")
    for name, duration in sorted(total.items(), key=lambda item: -item[1])[:16]:
        number, each = count[name] / len(lengths), duration / count[name]
        print(f"{duration / len(lengths):9.1f} us {number:6.1f} x {each:7.2f}  {name[:90]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
