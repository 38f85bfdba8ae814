"""top-k, top-p, min-p, in this order, each on what the one before left; equals stay together.

keep t iff #{p_j > p_t} < k; renormalise to q; keep iff sum of q_j > q_t < top_p; keep iff
q_t >= min_p * max q. The rule does not depend on the order of the vocabulary, and each filter
keeps what lies on or above some logit: all three together are one cut.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Float32s = npt.NDArray[np.float32]
Bools = npt.NDArray[np.bool_]

#: fp32 logits carry probabilities to about 1e-7: a border closer than this counts as reached.
BORDER = 1e-6
#: Room for rounding where ``_top_p_cut`` sets the unlikely aside.
_MARGIN = 1e-3


def filter_plain(logits: Float32s, top_k: int, top_p: float, min_p: float) -> Bools:
    """What stays of a row of logits (over temperature, maximum subtracted): the rule as written.

    ``top_k`` < 1, ``top_p`` 1.0 and ``min_p`` 0.0 keep all.
    """
    order = np.argsort(-logits, kind="stable")
    ranked = logits[order]
    # [n] how many are strictly above
    first = np.maximum.accumulate(np.where(_run_starts(ranked), np.arange(len(ranked)), 0))
    keep = first < top_k if top_k > 0 else np.ones(len(ranked), np.bool_)
    probs = np.where(keep, np.exp(ranked.astype(np.float64)), 0.0)
    probs /= probs.sum()
    if top_p < 1.0:
        keep &= (np.cumsum(probs) - probs)[first] < top_p * (1 - BORDER)
    if min_p > 0.0:
        keep &= probs >= min_p * probs[0] * (1 - BORDER)
    kept = np.zeros(len(logits), np.bool_)
    kept[order[keep]] = True
    return kept


def filter_cut(logits: Float32s, top_k: int, top_p: float, min_p: float) -> np.float32:
    """The least logit that stays: ``logits >= cut`` is ``filter_plain``, without a full sort."""
    cut = np.float32(-np.inf)
    if 0 < top_k < len(logits):
        cut = np.partition(logits, len(logits) - top_k)[len(logits) - top_k]
    if top_p < 1.0:
        cut = _top_p_cut(logits, cut, top_p)
    if min_p > 0.0:
        cut = max(cut, np.float32(math.log(min_p) - BORDER))
    return cut


def _top_p_cut(logits: Float32s, low: np.float32, top_p: float) -> np.float32:
    """Cut of top-p among the logits that are at least ``low``."""
    if low > -np.inf:
        logits = logits[logits >= low]
    total = float(np.exp(logits.astype(np.float64)).sum())
    # All logits below ``floor`` have less mass together than top-p leaves out.
    floor = math.log((1.0 - top_p) * total / len(logits)) - _MARGIN
    ranked = np.sort(logits[logits >= floor])[::-1]
    masses = np.exp(ranked.astype(np.float64))
    above = np.cumsum(masses) - masses
    starts = np.flatnonzero(_run_starts(ranked))
    num_kept = int(np.count_nonzero(above[starts] < top_p * total * (1 - BORDER)))
    return np.float32(ranked[starts[num_kept - 1]])


def _run_starts(ranked: Float32s) -> Bools:
    """True where an element differs from the one before."""
    starts = np.ones(len(ranked), np.bool_)
    np.not_equal(ranked[1:], ranked[:-1], out=starts[1:])
    return starts
