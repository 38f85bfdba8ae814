"""Log-probabilities as clients get them."""

from __future__ import annotations

import json

import msgspec
import pytest
import torch

from rtlang.runtime.messages import LogprobOptions
from rtlang.runtime.sampling.logprobs import FLOOR, position_logprobs, start_logprobs


def test_values_are_those_of_torch() -> None:
    logits = torch.randn(4, 100, generator=torch.Generator().manual_seed(0)) * 5
    expected = torch.log_softmax(logits.double(), dim=-1)
    options = LogprobOptions(top_num=3, token_ids=(7, 0, 7))
    entries = position_logprobs(logits, [5, 0, 99, 42], options)
    for entry, row in zip(entries, expected, strict=True):
        assert entry.logprob == pytest.approx(float(row[entry.token_id]), abs=1e-5)
        assert entry.ids == pytest.approx(row[[7, 0, 7]].tolist(), abs=1e-5)
        values, ids = row.topk(3)
        assert [i for i, _ in entry.top] == ids.tolist()
        assert [v for _, v in entry.top] == pytest.approx(values.tolist(), abs=1e-5)


def test_half_precision_is_normalised_in_fp32() -> None:
    logits = torch.randn(1, 5000, generator=torch.Generator().manual_seed(0)).bfloat16()
    (entry,) = position_logprobs(logits, [1], LogprobOptions(token_ids=tuple(range(5000))))
    assert torch.tensor(entry.ids, dtype=torch.float64).exp().sum() == pytest.approx(1, abs=1e-5)


def test_no_token_yet_has_alternatives_but_no_value() -> None:
    options = LogprobOptions(top_num=1, token_ids=(0,))
    (entry,) = position_logprobs(torch.tensor([[0.0, 2.0]]), [-1], options)
    assert (entry.token_id, entry.logprob) == (-1, None)
    assert entry.top[0][0] == 1 and len(entry.ids) == 1


def test_nothing_asked_gives_the_token_alone() -> None:
    (entry,) = position_logprobs(torch.zeros(1, 4), [2], LogprobOptions())
    assert entry.logprob == pytest.approx(-1.3863, abs=1e-4)
    assert entry.top == [] and entry.ids == []


def test_d1_what_is_impossible_is_reported_as_a_finite_floor() -> None:
    logits = torch.full((4, 8), -torch.inf)
    logits[0, [2, 3]] = torch.tensor([1.0, 0.0])
    logits[2, 0] = torch.nan
    logits[3, 0] = torch.inf
    options = LogprobOptions(top_num=5, token_ids=(0, 2))
    entries = position_logprobs(logits, [2, 0, 0, 0], options)
    json.dumps(msgspec.to_builtins(entries), allow_nan=False)
    assert [i for i, _ in entries[0].top] == [2, 3, 0, 1, 4]
    assert entries[0].top[2][1] == entries[0].ids[0] == FLOOR
    assert entries[0].logprob == pytest.approx(-0.3133, abs=1e-4)


@pytest.mark.parametrize("num", [1, 3, 5, 8])
def test_equal_alternatives_come_by_id(num: int) -> None:
    """Also where only some of the equals fit: any of them could be the sampled one."""
    logits = torch.tensor([[0.0, 1.0, 0.0, 2.0, 1.0, 0.0, 1.0, 2.0], [0.0] * 8])
    first, second = position_logprobs(logits, [0, 0], LogprobOptions(top_num=num))
    assert [i for i, _ in first.top] == [3, 7, 1, 4, 6, 0, 2, 5][:num]
    assert [i for i, _ in second.top] == list(range(8))[:num]


def test_nothing_as_wide_as_the_vocabulary_is_kept_until_it_is_read() -> None:
    """A long prompt's log-probabilities would else hold gigabytes while a step is in flight."""
    chosen = torch.tensor([1, 2, -1])
    read = start_logprobs(torch.randn(3, 1000), chosen, LogprobOptions(0, 4, (5, 6)))
    kept = [cell.cell_contents for cell in read.__closure__ or ()]
    tensors = [t for k in kept for t in (k if isinstance(k, tuple) else (k,))]
    tensors = [t for t in tensors if isinstance(t, torch.Tensor)]
    assert len(tensors) == 5
    assert all(t.untyped_storage().nbytes() < 1000 for t in tensors)
