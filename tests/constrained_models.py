"""A scripted model for constraints, and a constraint that forces most of its text."""

from __future__ import annotations

import numpy as np

from rtlang.runtime.byte_tokenizer import ByteTokenizer
from rtlang.testing import ScriptedModel

VOCAB = ByteTokenizer().vocab_size
FORCED = {"regex": 'the answer is: [0-9]\\. and the reason is: "[a-z]{3}" and no more'}


def noisy(seed: int = 0) -> ScriptedModel:
    """Random logits, the same after the same tokens; EOS is liked best."""

    def logits(tokens: list[int]) -> np.ndarray:
        rng = np.random.default_rng([seed, *tokens[-20:], len(tokens)])
        row = rng.normal(size=VOCAB).astype(np.float32)
        row[256] += 3.0
        return row

    return ScriptedModel(logits=logits)
