"""Seeds of siblings. Pure Python: clients need it, and clients load no torch."""

from __future__ import annotations

MASK = 0xFFFFFFFF


def murmur3_words(words: list[int], seed: int = 0) -> int:
    """MurmurHash3_x86_32 of 32-bit little-endian words (Austin Appleby, public domain)."""
    h = seed & MASK
    for word in words:
        k = (word * 0xCC9E2D51) & MASK
        k = ((k << 15) | (k >> 17)) & MASK
        h ^= (k * 0x1B873593) & MASK
        h = ((h << 13) | (h >> 19)) & MASK
        h = (h * 5 + 0xE6546B64) & MASK
    h ^= 4 * len(words)
    h ^= h >> 16
    h = (h * 0x85EBCA6B) & MASK
    h ^= h >> 13
    h = (h * 0xC2B2AE35) & MASK
    return h ^ (h >> 16)


def draw_hash(seed: int, position: int, token: int) -> int:
    """The 32 random bits of one token at one output index; what ``draw`` computes in bulk."""
    return murmur3_words([seed & MASK, (seed >> 32) & MASK, position & MASK, token & MASK])


def derive_seed(seed: int, choice: int) -> int:
    """Seed of the ``choice``-th sibling of a seeded request; the first one keeps it. An int64."""
    if choice == 0:
        return seed
    low = murmur3_words([seed & MASK, (seed >> 32) & MASK, choice, 1])
    high = murmur3_words([seed & MASK, (seed >> 32) & MASK, choice, 2])
    return ((high << 32) | low) - 2**63
