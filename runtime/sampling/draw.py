"""The seeded draw: argmax of log p + Gumbel noise, the noise a hash of (seed, index, token id).

u(token) = (murmur3_x86_32(seed low, seed high, output index, token id) + 0.5) / 2^32, in fp64, and
g = -log(-log u). A row's draw depends on nothing but its own logits, seed and output index.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint32]

_C1, _C2 = np.uint32(0xCC9E2D51), np.uint32(0x1B873593)
_ADD = np.uint32(0xE6546B64)
_F1, _F2 = np.uint32(0x85EBCA6B), np.uint32(0xC2B2AE35)
#: fp32 noise in the race of ``draw_row``; a survivor is looked at again in fp64.
_SLACK = 1e-4
#: fp32 keeps a hash to 128; and the 0.5 that u adds to it is left out.
_FP32_GAP = np.float32(256)


def _rotl(x: Words, bits: int) -> Words:
    return (x << np.uint32(bits)) | (x >> np.uint32(32 - bits))


def _mix_word(word: Words) -> Words:
    return _rotl(word * _C1, 15) * _C2


def _add_word(h: Words, mixed: Words) -> Words:
    return _rotl(h ^ mixed, 13) * np.uint32(5) + _ADD


def _finish(h: Words) -> Words:
    h = h ^ np.uint32(16)  # the key has 16 bytes
    h ^= h >> np.uint32(16)
    h *= _F1
    h ^= h >> np.uint32(13)
    h *= _F2
    h ^= h >> np.uint32(16)
    return h


class TokenHash:
    """``draw_hash`` for many tokens at once; the token's share of it is computed once."""

    def __init__(self, vocab_size: int) -> None:
        with np.errstate(over="ignore"):
            self._mixed = _mix_word(np.arange(vocab_size, dtype=np.uint32))

    def __call__(self, seed: int, position: int, tokens: Ints | None = None) -> Words:
        """uint32 hashes of ``tokens`` (of the whole vocabulary, if None)."""
        words = [seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF, position & 0xFFFFFFFF]
        mixed = self._mixed if tokens is None else self._mixed[tokens]
        with np.errstate(over="ignore"):
            h: Words = np.zeros(1, np.uint32)
            for word in words:
                h = _add_word(h, _mix_word(np.array([word], np.uint32)))
            return _finish(_add_word(h, mixed))


def gumbel(hashes: Words) -> Floats:
    """Standard Gumbel noise, finite for every hash."""
    u = (hashes.astype(np.float64) + 0.5) / 2.0**32
    noise: Floats = -np.log(-np.log(u))
    return noise


def draw_among(logp: Floats, tokens: Ints, hashes: Words) -> int:
    """The drawn one of ``tokens`` (ascending ids win ties). The plain form of the draw."""
    scores = logp + gumbel(hashes)
    best = np.flatnonzero(scores == scores.max())
    return int(tokens[best].min())


def draw_row(shifted: npt.NDArray[np.float32], hash_of: TokenHash, seed: int, position: int) -> int:
    """Draw from a whole row of logits (over temperature, its maximum subtracted).

    Equal to ``draw_among`` over the vocabulary, in two passes: -log(u) >= 1 - u, so in the race
    for the least -log(u) / exp(logit) only tokens with (1 - u) / exp(logit) below the exact value
    of a good one can win; those few are compared exactly.
    """
    hashes = hash_of(seed, position)
    weights = np.exp(shifted)
    gaps = np.float32(2.0**32) - hashes.astype(np.float32)  # (1 - u) * 2^32
    with np.errstate(divide="ignore"):
        pilot = int((gaps / weights).argmin())
    best = float(shifted[pilot]) + float(gumbel(hashes[pilot : pilot + 1])[0])
    bound = np.float32(np.exp(-best) * 2.0**32 * (1 + _SLACK))
    tokens = np.flatnonzero(gaps <= bound * weights + _FP32_GAP)
    return draw_among(shifted[tokens].astype(np.float64), tokens, hashes[tokens])
