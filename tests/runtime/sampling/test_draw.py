"""The seeded draw: its vectors, its distribution, and the race against its plain twin."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rtlang.runtime.sampling.draw import Float32s, TokenHash, draw, draw_plain, gumbel
from rtlang.runtime.sampling.seeds import draw_hash

#: A draw whose hash is 0xffffffff: u is as close to 1 as it gets.
TOP_SEED, TOP_POSITION, TOP_TOKEN = 7847, 12345, 1208
VOCAB = 49152


def log_probs(*probs: float) -> Float32s:
    logits = np.log(np.array(probs, np.float64)).astype(np.float32)
    shifted: Float32s = logits - logits.max()
    return shifted


def chi_square_p(counts: np.ndarray, probs: np.ndarray) -> float:
    expected = probs * counts.sum()
    statistic = float(((counts - expected) ** 2 / expected).sum())
    half = torch.tensor([(len(probs) - 1) / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))


def test_bulk_hash_equals_the_plain_hash() -> None:
    rng = np.random.default_rng(0)
    hash_of = TokenHash(512)
    tokens = np.array([0, 5, 511, 17])
    seeds = [0, -1, 2**63 - 1, -(2**63), *rng.integers(-(2**63), 2**63, 20).tolist()]
    for seed in seeds:
        position = int(rng.integers(0, 2**31))
        everything = hash_of(seed, position)
        assert everything.tolist() == [draw_hash(seed, position, t) for t in range(512)]
        assert hash_of(seed, position, tokens).tolist() == everything[tokens].tolist()


def test_noise_is_finite_at_both_ends() -> None:
    assert draw_hash(TOP_SEED, TOP_POSITION, TOP_TOKEN) == 0xFFFFFFFF
    low, high = gumbel(np.array([0, 0xFFFFFFFF], np.uint32)).tolist()
    assert high == pytest.approx(22.8739, abs=1e-4)
    assert low == pytest.approx(-3.1300, abs=1e-4)


def test_first_draws_of_seed_42() -> None:
    logits, hash_of = log_probs(0.1, 0.2, 0.3, 0.4), TokenHash(4)
    drawn = [draw(logits, hash_of(42, position)) for position in range(16)]
    assert drawn == [3, 1, 3, 0, 3, 3, 2, 1, 2, 3, 2, 2, 1, 3, 0, 2]


def test_counts_of_20000_draws_of_seed_42() -> None:
    probs = np.array([0.5, 0.3, 0.15, 0.05])
    logits, hash_of = log_probs(*probs.tolist()), TokenHash(4)
    drawn = [draw(logits, hash_of(42, position)) for position in range(20000)]
    counts = np.bincount(drawn, minlength=4)
    assert counts.tolist() == [10137, 5983, 2914, 966]
    assert chi_square_p(counts, probs) == pytest.approx(0.136, abs=1e-3)
    assert np.abs(counts / 20000 - probs).sum() / 2 <= 2 * (4 / 20000) ** 0.5


@pytest.mark.parametrize("seed", [1, -7, 2**62])
def test_draws_follow_the_distribution(seed: int) -> None:
    rng = np.random.default_rng(3)
    probs = rng.dirichlet(np.full(300, 0.3)) * 0.9 + 0.1 / 300
    logits, hash_of = log_probs(*probs.tolist()), TokenHash(300)
    drawn = [draw(logits, hash_of(seed, position)) for position in range(15000)]
    counts = np.bincount(drawn, minlength=300)
    order = np.argsort(-probs)
    head, tail = order[:60], order[60:]
    merged = np.append(counts[head], counts[tail].sum())
    assert chi_square_p(merged, np.append(probs[head], probs[tail].sum())) > 1e-4


def test_neighbouring_positions_and_seeds_are_independent() -> None:
    logits, hash_of = log_probs(0.25, 0.25, 0.25, 0.25), TokenHash(4)
    table = np.array([[draw(logits, hash_of(s, p)) for p in range(100)] for s in range(100)])
    for pairs in (table[:, :-1] * 4 + table[:, 1:], table[:-1] * 4 + table[1:]):
        counts = np.bincount(pairs.reshape(-1), minlength=16)
        assert chi_square_p(counts, np.full(16, 1 / 16)) > 1e-4


def test_lowest_id_wins_among_equals() -> None:
    hashes = np.array([7, 9, 9, 3], np.uint32)
    assert draw(np.zeros(4, np.float32), hashes) == 1
    many = np.full(1000, 5, np.uint32)
    many[[300, 700]] = 4_000_000_000
    assert draw(np.zeros(1000, np.float32), many) == 300


@pytest.mark.parametrize("scale", [0.0, 0.3, 1.0, 4.0, 30.0, 1e4])
@pytest.mark.parametrize("impossible", [0.0, 0.9])
def test_race_equals_the_plain_draw(scale: float, impossible: float) -> None:
    rng = np.random.default_rng(int(scale * 10) + 1)
    hash_of = TokenHash(VOCAB)
    for size in (256, 1000, VOCAB):
        for seed in range(12):
            logits = (rng.standard_normal(size) * scale).astype(np.float32)
            logits[rng.random(size) < impossible] = -np.inf
            logits -= logits.max()
            hashes = hash_of(seed, seed + 5)[:size]
            assert draw(logits, hashes) == draw_plain(logits, hashes)


@pytest.mark.parametrize("logit", [-np.inf, -200.0, -95.0, -60.0, -22.0, -12.0, -11.0, -5.0, 0.0])
def test_race_with_the_largest_noise(logit: float) -> None:
    """The token with the largest noise there is may be impossible, hopeless or the winner."""
    hashes = TokenHash(VOCAB)(TOP_SEED, TOP_POSITION)
    logits = np.zeros(VOCAB, np.float32)
    logits[TOP_TOKEN] = logit
    assert draw(logits, hashes) == draw_plain(logits, hashes)
    alone = np.full(VOCAB, -np.inf, np.float32)
    alone[[5, TOP_TOKEN]] = 0.0, logit
    assert draw(alone, hashes) == draw_plain(alone, hashes)
    assert draw(logits, hashes) == TOP_TOKEN if logit >= -11 else True


def test_race_with_close_scores() -> None:
    """Tokens made to tie with the winner to a few units of fp32: only fp64 tells them apart."""
    rng = np.random.default_rng(5)
    for _ in range(50):
        hashes = rng.integers(0, 2**32, 2000, dtype=np.uint32)
        logits = (4.0 - gumbel(hashes)).astype(np.float32)
        logits -= logits.max()
        assert draw(logits, hashes) == draw_plain(logits, hashes)
