"""top-k, top-p, min-p: the table, an exact reference, and the cut against its plain twin."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from rtlang.runtime.sampling.filters import Bools, Float32s, filter_cut, filter_plain

OFF = {"top_k": -1, "top_p": 1.0, "min_p": 0.0}


def log_probs(probs: list[float]) -> Float32s:
    with np.errstate(divide="ignore"):
        logits = np.log(np.array(probs, np.float64)).astype(np.float32)
    shifted: Float32s = logits - logits.max()
    return shifted


def kept_by_both(logits: Float32s, top_k: int, top_p: float, min_p: float) -> list[int]:
    kept = logits >= filter_cut(logits, top_k, top_p, min_p)
    plain = filter_plain(logits, top_k, top_p, min_p)
    assert kept.tolist() == plain.tolist()
    return np.flatnonzero(kept).tolist()


@pytest.mark.parametrize(
    ("probs", "given", "expected"),
    [
        ([0.5, 0.25, 0.125, 0.125], {"top_p": 0.5}, [0]),
        ([0.5, 0.25, 0.125, 0.125], {"top_p": 0.75}, [0, 1]),
        ([0.4, 0.3, 0.2, 0.1], {"top_k": 2, "top_p": 0.5}, [0]),
        ([0.4, 0.2, 0.2, 0.2], {"top_k": 2}, [0, 1, 2, 3]),
        ([0.25, 0.25, 0.25, 0.25], {"top_p": 0.5}, [0, 1, 2, 3]),
        ([0.5, 0.25, 0.125, 0.125], {"min_p": 0.5}, [0, 1]),
        ([0.5, 0.25, 0.125, 0.125], {"min_p": 1.0}, [0]),
        ([0.5, 0.25, 0.125, 0.125], {"top_p": 1e-4}, [0]),
        ([0.5, 0.25, 0.125, 0.125], {"top_p": 5e-324}, [0]),
        ([0.125, 0.5, 0.125, 0.25], {"top_p": 0.76}, [0, 1, 2, 3]),
        ([0.5, 0.25, 0.125, 0.125], {"top_k": 100, "top_p": 0.999, "min_p": 0.3}, [0, 1]),
        ([0.5, 0.3, 0.2, 0.0], {"top_k": 3, "top_p": 0.999}, [0, 1, 2]),
        ([1.0], {"top_k": 1, "top_p": 0.1, "min_p": 1.0}, [0]),
    ],
)
def test_table(probs: list[float], given: dict[str, float], expected: list[int]) -> None:
    options = OFF | given
    top_k, top_p, min_p = int(options["top_k"]), options["top_p"], options["min_p"]
    assert kept_by_both(log_probs(probs), top_k, top_p, min_p) == expected


def exact(weights: list[int], top_k: int, top_p: Fraction, min_p: Fraction) -> Bools:
    """The rule on integers: no rounding at all."""
    keep = [top_k < 1 or sum(v > w for v in weights) < top_k for w in weights]
    left = [w if k else 0 for w, k in zip(weights, keep, strict=True)]
    above = [sum(v for v in left if v > w) for w in left]
    keep = [
        k and (top_p == 1 or Fraction(a, sum(left)) < top_p) and w >= min_p * max(weights)
        for k, a, w in zip(keep, above, left, strict=True)
    ]
    return np.array(keep)


def random_case(rng: np.random.Generator) -> tuple[list[int], int, Fraction, Fraction]:
    size, levels = int(rng.integers(1, 40)), int(rng.integers(1, 9))
    weights = rng.integers(1, levels + 1, size).tolist()
    top_k = int(rng.choice([-1, *range(1, 12)]))
    top_p = Fraction(int(rng.integers(1, 21)), 20)
    min_p = Fraction(int(rng.choice([0, *range(21)])), 20)
    return weights, top_k, top_p, min_p


def test_1000_random_rows_with_ties_against_exact_arithmetic() -> None:
    rng = np.random.default_rng(7)
    for _ in range(1000):
        weights, top_k, top_p, min_p = random_case(rng)
        logits = log_probs([w / sum(weights) for w in weights])
        expected = np.flatnonzero(exact(weights, top_k, top_p, min_p)).tolist()
        kept = kept_by_both(logits, top_k, float(top_p), float(min_p))
        assert kept == expected, (weights, top_k, top_p, min_p)


def test_permuted_vocabulary_permutes_what_is_kept() -> None:
    rng = np.random.default_rng(8)
    for _ in range(300):
        weights, top_k, top_p, min_p = random_case(rng)
        logits = log_probs([w / sum(weights) for w in weights])
        order = rng.permutation(len(logits))
        cut = filter_cut(logits, top_k, float(top_p), float(min_p))
        permuted = filter_cut(logits[order], top_k, float(top_p), float(min_p))
        assert ((logits >= cut)[order] == (logits[order] >= permuted)).all()


@pytest.mark.parametrize("scale", [0.0, 0.5, 2.0, 8.0, 60.0])
@pytest.mark.parametrize("step", [None, 0.25])
def test_cut_equals_the_plain_rule_on_large_rows(scale: float, step: float | None) -> None:
    """Flat and peaked rows, with and without many ties, some tokens impossible."""
    rng = np.random.default_rng(9)
    for size in (1000, 49152):
        logits = (rng.standard_normal(size) * scale).astype(np.float32)
        if step is not None:
            logits = np.round(logits / np.float32(step)) * np.float32(step)
        logits[rng.random(size) < 0.1] = -np.inf
        logits -= logits.max()
        for top_k, top_p, min_p in [
            (-1, 0.95, 0.0),
            (-1, 0.5, 0.0),
            (-1, 0.9999999, 0.0),
            (-1, 1e-9, 0.0),
            (-1, 1.0, 0.05),
            (50, 1.0, 0.0),
            (50, 0.9, 0.1),
            (5000, 0.99, 0.0),
            (size, 0.9, 0.0),
            (2**40, 1.0, 0.001),
        ]:
            kept_by_both(logits, top_k, top_p, min_p)
