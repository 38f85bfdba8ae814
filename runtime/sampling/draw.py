"""The seeded draw: argmax of log p + Gumbel noise, the noise a hash of (seed, index, token id).

u(token) = (murmur3_x86_32(seed low, seed high, output index, token id) + 0.5) / 2^32, in fp64, and
g = -log(-log u). A row's draw depends on nothing but its own logits, seed and output index.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Float32s = npt.NDArray[np.float32]
Float64s = npt.NDArray[np.float64]
Ids = npt.NDArray[np.intp]
Words = npt.NDArray[np.uint32]

_C1, _C2 = np.uint32(0xCC9E2D51), np.uint32(0x1B873593)
_ADD = np.uint32(0xE6546B64)
_F1, _F2 = np.uint32(0x85EBCA6B), np.uint32(0xC2B2AE35)
#: Rows with fewer tokens are drawn in fp64 at once.
_FEW = 256
#: Relative room for fp32 errors in the race of ``draw``; a survivor is looked at again in fp64.
_SLACK = 1e-4
#: fp32 knows a hash near 2^32 to 128 (half of its step).
_HASH_ERROR = np.float32(128)


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
    """``seeds.draw_hash`` for many tokens at once; the token's share of it is computed once."""

    def __init__(self, vocab_size: int) -> None:
        self._mixed = _mix_word(np.arange(vocab_size, dtype=np.uint32))

    def __call__(self, seed: int, position: int, tokens: Ids | None = None) -> Words:
        """uint32 hashes of ``tokens`` (of the whole vocabulary, if None). ``seed``: any int64."""
        h: Words = np.zeros(1, np.uint32)
        for word in (seed, seed >> 32, position):
            h = _add_word(h, _mix_word(np.array([word & 0xFFFFFFFF], np.uint32)))
        return _finish(_add_word(h, self._mixed if tokens is None else self._mixed[tokens]))


def gumbel(hashes: Words) -> Float64s:
    """Standard Gumbel noise, in [-3.13, 22.88]: finite for every hash."""
    u = (hashes.astype(np.float64) + 0.5) / 2.0**32
    noise: Float64s = -np.log(-np.log(u))
    return noise


def draw_plain(logits: Float32s, hashes: Words) -> int:
    """Where log p + noise is largest, the first among equals. ``logits`` need no normalisation."""
    return int((logits + gumbel(hashes)).argmax())


def draw(logits: Float32s, hashes: Words) -> int:
    """``draw_plain`` for logits with maximum 0: the same token, sooner.

    The winner has the least -log(u) / e^logit. As -log(u) >= 1 - u, only a token whose
    (1 - u) / e^logit is at most the exact -log(u) / e^logit of some good token (the pilot) can
    win. Both are cheap in fp32; the few survivors are compared as ``draw_plain`` does it.
    """
    if len(logits) < _FEW:
        return draw_plain(logits, hashes)
    weights = np.exp(logits)
    # (1 - u) * 2^32, never 0: impossible tokens get inf below, not 0 / 0.
    gaps = np.float32(2.0**32) - hashes.astype(np.float32) + _HASH_ERROR
    with np.errstate(divide="ignore", over="ignore"):
        pilot = int((gaps / weights).argmin())
    score = float(logits[pilot]) + float(gumbel(hashes[pilot : pilot + 1])[0])
    bound = np.float32(np.exp(-score) * 2.0**32 * (1 + _SLACK))
    # Up to 128 of rounding, 128 added above, the half that u adds to a hash.
    survivors = np.flatnonzero(gaps <= bound * weights + 4 * _HASH_ERROR)
    return int(survivors[draw_plain(logits[survivors], hashes[survivors])])
