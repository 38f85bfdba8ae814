"""The scheduler's own work per decode step, on a fake model that costs nothing.

Goal: median under 300 us at batch 64, under 1 ms at batch 256. Exits 1 where it is missed.
"""

from __future__ import annotations

import statistics
import sys
import time
from array import array

import numpy as np

from rtlang.runtime.batch import BatchResult
from rtlang.runtime.config import EngineConfig
from rtlang.runtime.messages import encode
from rtlang.runtime.req import Req
from rtlang.runtime.sampling_params import SamplingParams
from rtlang.runtime.scheduler import Scheduler

GOALS_US = {64: 300.0, 256: 1000.0}
PROMPT_LEN, STEPS = 256, 600


def measure(batch_size: int, page_size: int) -> float:
    """Median microseconds of next_batch + commit + packing the answers, over decode steps."""
    config = EngineConfig(
        max_running_requests=batch_size, chunked_prefill_size=8192, page_size=page_size
    )
    scheduler = Scheduler(config, num_slots=batch_size * 1024, width=1024)
    params = SamplingParams(max_new_tokens=STEPS + 50).resolve()
    rng = np.random.default_rng(0)
    for i in range(batch_size):
        ids = array("i", rng.integers(1000, 50000, PROMPT_LEN).tolist())
        limit = PROMPT_LEN + STEPS + 50
        req = Req(str(i), b"c", ids, PROMPT_LEN, params, i, limit, stop_ids=frozenset({2}))
        scheduler.add(req)
    times: list[float] = []
    while len(times) < STEPS:
        start = time.perf_counter()
        batch = scheduler.next_batch()
        planned = time.perf_counter() - start
        assert batch is not None
        result = BatchResult(rng.integers(1000, 50000, len(batch.sample_rows)).astype(np.int32))
        start = time.perf_counter()
        scheduler.commit(batch, result)
        for _, response in scheduler.outbox.take():
            encode(response)
        if batch.num_decode == batch_size:
            times.append((planned + time.perf_counter() - start) * 1e6)
    return statistics.median(times)


def main() -> int:
    missed = 0
    for batch_size, goal in GOALS_US.items():
        for page_size in (1, 16):
            median = measure(batch_size, page_size)
            missed += median > goal
            print(
                f"batch {batch_size:3d}, page {page_size:2d}: {median:6.1f} us a decode step "
                f"(goal {goal:.0f}) {'ok' if median <= goal else 'MISSED'}"
            )
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
