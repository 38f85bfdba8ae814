"""Sampling through a whole engine: what goes wrong in one request stays there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rtlang.errors import InvalidParameter, NumericalError
from rtlang.testing import ScriptedModel

MakeEngine = Callable[..., Any]
MARK = ord("!")


def logits_after(tokens: list[int]) -> np.ndarray:
    """Any of the letters a to p; NaN for sequences that start with the mark."""
    row = np.full(ScriptedModel().tokenizer.vocab_size, -np.inf, np.float32)
    row[ord("a") : ord("q")] = 0.0
    row[ord("b")] = np.nan if MARK in tokens else 1.0
    return row


def test_a_nan_row_fails_alone_and_caches_nothing(make_engine: MakeEngine) -> None:
    engine = make_engine(ScriptedModel(logits=logits_after))
    params = {"max_new_tokens": 12, "sampling_seed": 42}
    alone = engine.generate("fine", params)
    first, bad, last = engine.generate(["fine", "!" * 40, "fine"], params, raise_errors=False)
    assert isinstance(bad, NumericalError)
    assert first.token_ids == last.token_ids == alone.token_ids
    again = engine.generate("!" * 40, params | {"max_new_tokens": 0})
    assert again.usage.cached_tokens == 0


def test_d2_seeds_and_siblings(make_engine: MakeEngine) -> None:
    engine = make_engine(ScriptedModel(logits=logits_after))
    seeded = {"max_new_tokens": 20, "temperature": 0.8, "sampling_seed": 42}
    free = {"max_new_tokens": 20, "temperature": 0.8}
    alone = engine.generate("prompt", seeded).token_ids
    prompts = ["other", "prompt", "prompt", "prompt"]
    mixed = engine.generate(prompts, [free, seeded, seeded | {"sampling_seed": 7}, free])
    ids = [result.token_ids for result in mixed]
    assert ids[1] == alone
    assert len({tuple(i) for i in ids}) == 4
    siblings = engine.generate("prompt", seeded | {"n": 3})
    assert siblings[0].token_ids == alone
    assert len({tuple(s.token_ids) for s in siblings}) == 3


@pytest.mark.parametrize(
    "bias", [{"999999": 5}, {"-1": 5}, {"abc": 1}, {"97": 101}, {"97": float("nan")}]
)
def test_d4_a_bad_bias_is_refused_and_the_engine_lives(make_engine: MakeEngine, bias: Any) -> None:
    engine = make_engine(ScriptedModel(logits=logits_after))
    with pytest.raises(InvalidParameter, match=next(iter(bias))) as caught:
        engine.generate("prompt", {"logit_bias": bias})
    assert caught.value.param == "logit_bias"
    result = engine.generate("prompt", {"logit_bias": {"100": 50.0}, "max_new_tokens": 3})
    assert result.text == "ddd"
