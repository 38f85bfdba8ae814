"""Median time of a RadixCache match, by cached length, number of nodes on the path and page size.

    python benchmarks/radix_match.py [--repeats 2000]

``match`` is match_prefix (ages, hits and the slots of the path), ``peek`` is peek_len, both of a
prompt one token longer than what is cached; ``lock`` is one inc and dec of the matched node.
Microseconds on one core.
"""

from __future__ import annotations

import argparse
import statistics
import time
from array import array
from collections.abc import Callable

from rtlang.runtime.mem.radix_cache import RadixCache
from rtlang.runtime.mem.slots import SlotAllocator

VOCAB = 32_000


def build(cached_len: int, num_nodes: int, page_size: int) -> tuple[RadixCache, array[int]]:
    """A chain of ``cached_len`` tokens spread over ``num_nodes`` nodes: a side branch hangs from
    the end of each but the last."""
    allocator = SlotAllocator(2 * cached_len + num_nodes * page_size, page_size)
    cache = RadixCache(allocator)
    chain = array("i", ((i * 7919) % VOCAB for i in range(cached_len)))
    add(cache, chain)
    step = cached_len // num_nodes // page_size * page_size
    for node in range(1, num_nodes):
        side = array("i", [VOCAB + node] * page_size)
        add(cache, chain[: node * step] + side)
    return cache, chain + array("i", [0])


def add(cache: RadixCache, ids: array[int]) -> None:
    slots = cache.allocator.alloc(len(ids))
    assert slots is not None
    cached_len, _ = cache.insert(ids, slots)
    cache.allocator.free(slots[:cached_len])


def median_us(call: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e6


def measure(cached_len: int, num_nodes: int, page_size: int, repeats: int) -> list[float]:
    """Medians of match, peek and lock."""
    cache, prompt = build(cached_len, num_nodes, page_size)
    match = cache.match_prefix(prompt)
    assert match.length == cached_len, "the benchmark's chain is not cached"
    depth, node = 0, match.node
    while node.parent is not None:
        depth, node = depth + 1, node.parent
    assert depth == num_nodes, f"the chain is spread over {depth} nodes"

    def lock() -> None:
        cache.inc_lock_ref(match.node)
        cache.dec_lock_ref(match.node)

    return [
        median_us(lambda: cache.match_prefix(prompt), repeats),
        median_us(lambda: cache.peek_len(prompt), repeats),
        median_us(lock, repeats),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeats", type=int, default=2000)
    repeats = parser.parse_args().repeats
    print(f"{'page':>4} {'tokens':>7} {'nodes':>5} {'match':>8} {'peek':>8} {'lock':>8}  (us)")
    for page_size in (1, 16):
        for cached_len, num_nodes in ((2000, 1), (2000, 20), (32_000, 1), (32_000, 20)):
            medians = measure(cached_len, num_nodes, page_size, repeats)
            times = " ".join(f"{us:8.1f}" for us in medians)
            print(f"{page_size:4d} {cached_len:7d} {num_nodes:5d} {times}")


if __name__ == "__main__":
    main()
