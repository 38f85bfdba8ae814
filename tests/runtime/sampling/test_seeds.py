"""Seeds of siblings and the hash of a draw, in pure Python."""

from __future__ import annotations

import subprocess
import sys

import pytest

from rtlang.runtime.sampling.seeds import derive_seed, draw_hash, murmur3_words

SEEDS = [0, 1, 42, -1, 2**63 - 1, -(2**63)]


def test_hash_is_murmur3_x86_32() -> None:
    # Published test vectors of the hash with seed 0: four bytes "test", eight bytes "testtest".
    test = int.from_bytes(b"test", "little")
    assert murmur3_words([]) == 0
    assert murmur3_words([test]) == 0xBA6BD213
    assert murmur3_words([], 1) == 0x514E28B7
    assert murmur3_words([0x87654321], 0) == 0xF55B516B
    assert murmur3_words([0], 0) == 0x2362F9DE


@pytest.mark.parametrize(
    ("seed", "position", "token", "expected"),
    [
        (0, 0, 0, 0x8134CDF8),
        (42, 0, 0, 0x6F610FE4),
        (42, 7, 3, 0x399E25CC),
        (-1, 5, 49151, 0xBB599FFB),
        (2**63 - 1, 100000, 1, 0x650A1010),
        (7847, 12345, 1208, 0xFFFFFFFF),
    ],
)
def test_hash_of_a_draw(seed: int, position: int, token: int, expected: int) -> None:
    assert draw_hash(seed, position, token) == expected


@pytest.mark.parametrize("seed", SEEDS)
def test_first_sibling_keeps_the_seed(seed: int) -> None:
    assert derive_seed(seed, 0) == seed


def test_siblings_have_distinct_int64_seeds() -> None:
    seeds = [derive_seed(seed, choice) for seed in SEEDS for choice in range(128)]
    assert len(set(seeds)) == len(seeds)
    assert all(-(2**63) <= seed < 2**63 for seed in seeds)


def test_derived_seeds_are_stable() -> None:
    # Stored results depend on them: a change here changes what old programs generate.
    assert derive_seed(42, 1) == -9142636732382708970
    assert derive_seed(42, 2) == -8574399938903742833
    assert derive_seed(-1, 1) == 3285385332206530358


def test_clients_need_no_torch() -> None:
    code = (
        "import sys, rtlang.runtime.sampling.seeds, rtlang.runtime.sampling_params\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
