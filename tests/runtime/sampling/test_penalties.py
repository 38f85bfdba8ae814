"""Penalties by history, and packed masks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from transformers import RepetitionPenaltyLogitsProcessor

from rtlang.runtime.mem.rows import ReqToTokenPool
from rtlang.runtime.sampling.penalties import apply_penalties, penalise_plain, unpack_mask

Pack = Callable[[torch.Tensor], torch.Tensor]


def pool_of(histories: list[tuple[list[int], list[int]]]) -> ReqToTokenPool:
    """Row i has the (prompt, output) i; what lies behind is another request's leavings."""
    pool = ReqToTokenPool(len(histories), 64)
    pool.token_ids[:] = 1
    for row, (prompt, output) in enumerate(histories):
        ids = [*prompt, *output]
        pool.token_ids[row, : len(ids)] = ids
        pool.lens[row], pool.prompt_lens[row] = len(ids), len(prompt)
    return pool


def penalised(
    logits: torch.Tensor, pool: ReqToTokenPool, rep: Any, freq: Any, pres: Any
) -> torch.Tensor:
    """All rows of the pool, each with its own or the same penalties."""
    n = pool.num_rows
    tables = [np.broadcast_to(np.float32(t), (n,)).copy() for t in (rep, freq, pres)]
    result = logits.clone()
    rows = np.arange(n, dtype=np.int32)
    apply_penalties(result.numpy(), np.arange(n), rows, pool.lens[rows], pool, *tables)
    return result


def test_repetition_comes_before_frequency_and_presence() -> None:
    logits = torch.tensor([[2.0, 0.3, -1.0]])
    result = penalised(logits, pool_of([([], [0, 1, 2])]), 2.0, 0.5, 0.25)
    assert result.tolist() == [pytest.approx([0.25, -0.6, -2.75])]


def test_d3_prompt_counts_for_repetition_only_and_once() -> None:
    logits = torch.full((2, 10), 3.0)
    logits[1] = -3.0
    pool = pool_of([([7] * 10, []), ([7] * 10, [])])
    assert torch.equal(penalised(logits, pool, 1.0, 2.0, 2.0), logits)
    result = penalised(logits, pool, 1.3, 0.0, 0.0)
    assert result[0, 7] == pytest.approx(3.0 / 1.3) and result[1, 7] == pytest.approx(-3.0 * 1.3)
    others = [t for t in range(10) if t != 7]
    assert torch.equal(result[:, others], logits[:, others])


def test_d3_frequency_counts_and_presence_does_not() -> None:
    logits = torch.zeros(1, 10)
    pool = pool_of([([4], [7, 7, 7, 2])])
    result = penalised(logits, pool, 1.0, 0.5, 0.25)[0]
    assert result[7] == -1.75 and result[2] == -0.75
    assert result[[0, 1, 3, 4, 5, 6, 8, 9]].abs().max() == 0


def test_negative_penalties_favour_what_was_said() -> None:
    result = penalised(torch.zeros(1, 10), pool_of([([4], [7, 7])]), 1.0, -1.0, -2.0)[0]
    assert result[7] == 4.0


def test_repetition_equals_the_one_of_transformers() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(50, 200, generator=generator) * 4
    ids: Any = torch.randint(0, 200, (50, 40), generator=generator)
    pool = pool_of([(row[:25], row[25:]) for row in ids.tolist()])
    for penalty in (0.5, 1.0, 1.3, 2.0):
        theirs = RepetitionPenaltyLogitsProcessor(penalty)(ids, logits.clone())
        torch.testing.assert_close(
            penalised(logits, pool, penalty, 0.0, 0.0), theirs, rtol=0, atol=1e-6
        )


def test_batched_penalties_equal_the_plain_form() -> None:
    rng = np.random.default_rng(1)
    histories = [
        (rng.integers(0, 30, rng.integers(1, 30)).tolist(), rng.integers(0, 30, m).tolist())
        for m in (0, 1, 5, 30, 12, 7)
    ]
    pool = pool_of(histories)
    rep, freq, pres = rng.uniform(0.5, 2, 6), rng.uniform(-2, 2, 6), rng.uniform(-2, 2, 6)
    logits = torch.from_numpy(rng.standard_normal((6, 40)).astype(np.float32) * 5)
    logits[2, 3] = -torch.inf
    result = penalised(logits, pool, rep, freq, pres)
    for i, (prompt, output) in enumerate(histories):
        history = np.array([*prompt, *output], np.int32)
        row = logits[i].numpy()
        plain = penalise_plain(row, history, len(prompt), rep[i], freq[i], pres[i])
        np.testing.assert_allclose(result[i].numpy(), plain, rtol=1e-6, atol=1e-6)


def test_only_the_named_rows_change() -> None:
    pool = pool_of([([1, 2], [3]), ([1, 2], [3])])
    logits = torch.ones(3, 10)
    tables = [np.array([v], np.float32) for v in (2.0, 1.0, 1.0)]
    at = np.array([1], np.int32)
    apply_penalties(logits.numpy(), np.array([2]), at, pool.lens[at], pool, *tables)
    assert torch.equal(logits[:2], torch.ones(2, 10))
    assert logits[2].tolist() == [1, 0.5, 0.5, -1.5, 1, 1, 1, 1, 1, 1]


@pytest.mark.parametrize("vocab_size", [1, 31, 32, 33, 64, 1000])
def test_unpacked_mask_is_the_packed_one(vocab_size: int, pack: Pack) -> None:
    allowed = torch.rand(5, vocab_size, generator=torch.Generator().manual_seed(1)) < 0.5
    allowed[0], allowed[1] = True, False
    assert np.array_equal(unpack_mask(pack(allowed), vocab_size), allowed.numpy())
