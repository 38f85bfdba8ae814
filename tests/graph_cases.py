"""Area j of the known mistakes, as functions: the interpreter and the GPU run the same cases."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import regex
import torch
from step_loop import StepLoop

from rtlang.grammar.spec import GrammarSpec
from rtlang.runtime.batch import Batch, ForwardMode
from rtlang.runtime.engine import Engine
from rtlang.testing.tiny import TinyModel


def prompts(num: int, low: int = 3, high: int = 20, seed: int = 0) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(1, 250) for _ in range(rng.randint(low, high))] for _ in range(num)]


def check_padding_rows_touch_only_the_reserved_slot(model: TinyModel, **options: Any) -> None:
    """J1: 5 requests in a bucket of 8."""
    loop = StepLoop(model, max_running_requests=8, **options)
    pools: list[torch.Tensor] = []
    checked = 0

    def before(batch: Batch) -> None:
        pools[:] = [loop.pools()]

    def after(batch: Batch) -> None:
        nonlocal checked
        if batch.mode is not ForwardMode.DECODE:
            return
        now, was = loop.pools(), pools[0]
        same = (now == was) | (now.isnan() & was.isnan())
        changed = (~same).any(dim=(0, 1, 3)).nonzero()[:, 0].tolist()
        expected = batch.pool.slots[batch.rows, batch.seq_lens - 1].tolist()
        assert 0 not in expected
        assert set(changed) - {0} == set(expected), (changed, expected)
        checked += 1

    loop.run(prompts(5), 4, before, after)
    assert checked >= 3


def check_nan_in_the_pool_changes_nothing(model: TinyModel, **options: Any) -> None:
    """J2: the whole pool, with the reserved slot and the tails of pages."""
    plain = StepLoop(model, **options).run(prompts(5), 4)
    loop = StepLoop(model, **options)
    for tensor in (*loop.runner._kv.keys, *loop.runner._kv.values):
        tensor.fill_(float("nan"))
    assert loop.run(prompts(5), 4) == plain
    assert not loop.errors


def check_every_size_gives_the_ids_of_one_alone(
    model: TinyModel, largest: int, sizes: list[int], **options: Any
) -> None:
    """J3: batches of every size, with a maximum that is no multiple of the buckets' step."""
    loop = StepLoop(
        model, max_running_requests=largest, max_total_tokens=65536,
        disable_radix_cache=True, **options,
    )  # fmt: skip
    given = prompts(largest, 3, 6)
    alone = [loop.run([prompt], 3)[0] for prompt in given]
    for size in sizes:
        assert loop.run(given[:size], 3) == alone[:size], size


def check_features_do_not_depend_on_batch_mates(
    model: TinyModel, new: int = 8, **options: Any
) -> None:
    """Filters, penalties, biases and seeds, mixed in one batch and alone."""
    kinds: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"temperature": 0.8},
        {"temperature": 0.8, "top_k": 5, "top_p": 0.8},
        {"temperature": 1.0, "frequency_penalty": 0.5, "repetition_penalty": 1.3},
        {"temperature": 0.7, "logit_bias": {7: 5.0, 9: -5.0}, "min_p": 0.05},
        {"temperature": 0.0, "min_new_tokens": 3},
    ]
    loop = StepLoop(model, **options)
    given = prompts(len(kinds), 3, 10)
    for kind, prompt in zip(kinds, given, strict=True):
        seeded = {**kind, "sampling_seed": 11}
        alone = loop.run([prompt], new, **seeded)[0]
        again = loop.run([prompt, given[0]], new, **seeded)[0]
        assert again == alone, kind


def check_masks_reach_their_own_rows(model: TinyModel, **options: Any) -> None:
    """Constrained rows equal the CPU's, and free ones those without neighbours: masked alone, with
    penalties (the full chain), joining and leaving at different steps, with text that is forced
    while a step is in flight."""
    bound: list[dict[str, Any]] = [
        {"grammar": GrammarSpec.regex("[a-f]{2,9}"), "temperature": 1.0},
        {"grammar": GrammarSpec.regex("(yes|no|maybe)"), "temperature": 0.0},
        {"grammar": GrammarSpec.regex("[0-9]+z"), "temperature": 0.7, "frequency_penalty": 1.0},
        {
            "grammar": GrammarSpec.regex("[a-f]nd[0-9]"),
            "jump_forward": "canonical",
            "temperature": 0.0,
        },
    ]
    free: list[dict[str, Any]] = [
        {"temperature": 1.0},
        {"temperature": 0.0, "presence_penalty": 0.5},
        # Its edits are gone from a step that is prepared before the last one of it is sampled.
        {"temperature": 0.0, "logit_bias": {70: 50.0}, "max_new_tokens": 2},
    ]
    for given in ([bound[0], free[0]], [*bound, *free[1:]]):
        loop, alone = StepLoop(model, **options), StepLoop(model, overlap=False, **options)
        params = [{"sampling_seed": i, **p} for i, p in enumerate(given)]
        texts = [[65 + i, 66, 67] for i in range(len(given))]
        together = loop.run_each(texts, params, new=4)
        lonely = [alone.run_each([t], [p], new=4)[0] for t, p in zip(texts, params, strict=True)]
        assert together == lonely
        for ids, p in zip(together, params, strict=True):
            if "grammar" in p:
                pattern = regex.compile(p["grammar"].source)
                text = bytes(i for i in ids if i < 256).decode()
                assert pattern.fullmatch(text, partial=len(ids) == 4), text
    with Engine(model, device="cpu", disable_radix_cache=True) as engine:
        cpu = engine.generate(texts, [{"max_new_tokens": 4, **p} for p in params])
    assert [r.token_ids for r in cpu] == together


def spread(largest: int) -> list[int]:
    return sorted({1, 2, 3, *np.linspace(1, largest, 6).astype(int).tolist(), largest - 1, largest})
