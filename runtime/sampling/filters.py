"""top-k, top-p, min-p, in this order, each on what the one before left; ties stay together.

keep t iff #{p_j > p_t} < k; renormalise to q; keep iff sum of q_j > q_t < top_p; keep iff
q_t >= min_p * max q. The rule does not depend on the order of the vocabulary.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

#: Candidates looked at first; a row that keeps them all is done again in full.
FIRST_LOOK = 1024
#: fp32 logits carry probabilities to about 1e-7: a border closer than this counts as reached.
BORDER = 1e-6


def filter_row(
    logits: npt.NDArray[np.float32], top_k: int, top_p: float, min_p: float
) -> tuple[Ints, Floats]:
    """(kept ids, their logits) of one row of logits over temperature, maximum subtracted."""
    probs = np.exp(logits.astype(np.float64))
    probs /= probs.sum()
    if top_k == 1:
        return np.array([probs.argmax()]), np.zeros(1)
    count = FIRST_LOOK if top_k < 1 or top_k < FIRST_LOOK else len(probs)
    while True:
        kept = _kept_of_largest(probs, min(count, len(probs)), top_k, top_p, min_p)
        if kept is not None:
            return kept, logits[kept].astype(np.float64)
        count = len(probs)


def _kept_of_largest(
    probs: Floats, count: int, top_k: int, top_p: float, min_p: float
) -> Ints | None:
    """Kept ids among the ``count`` most likely; None if the border lies beyond them."""
    whole = count == len(probs)
    ids = np.arange(count) if whole else np.argpartition(-probs, count - 1)[:count]
    ids = ids[np.argsort(-probs[ids], kind="stable")]
    p = probs[ids]
    # Where the run of equals that an element belongs to starts: so many are strictly above it.
    above = np.maximum.accumulate(np.where(np.diff(p, prepend=np.inf) != 0, np.arange(count), 0))
    keep = above < top_k if top_k > 0 else np.ones(count, np.bool_)
    if keep[-1] and not whole and top_k > 0:
        return None
    total = p[keep].sum() if top_k > 0 else 1.0
    mass_above = (np.cumsum(p) - p)[above] / total
    if top_p < 1.0:
        keep &= mass_above < top_p * (1 - BORDER)
    keep &= p >= min_p * p[0] * (1 - BORDER)
    if keep[-1] and not whole:
        return None
    kept: Ints = ids[keep]
    return kept
