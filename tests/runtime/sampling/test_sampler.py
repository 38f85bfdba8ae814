"""The chain as a whole: its order, its rows' independence, its edges."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from rtlang.runtime.batch import Batch, ForwardMode
from rtlang.runtime.messages import LogprobOptions

Make = Callable[..., Any]
Pack = Callable[[torch.Tensor], torch.Tensor]
VOCAB = 97


def random_logits(n: int, vocab_size: int = VOCAB, *, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, vocab_size, generator=torch.Generator().manual_seed(seed)) * 2


#: Requests of every kind: what each asks for besides its own history.
KINDS: list[dict[str, Any]] = [
    {"temperature": 0.8, "seed": 42},
    {"temperature": 0.0},
    {"top_p": 0.7, "seed": 42},
    {"top_k": 5, "min_p": 0.05, "seed": -3},
    {"repetition_penalty": 1.7, "frequency_penalty": 1.0, "presence_penalty": -0.5, "seed": 9},
    {"temperature": 0.0, "logit_bias": {3: 100.0, 4: -100.0}},
    {"min_new_tokens": 9, "stop_ids": [0, 1, 2], "top_k": 20, "seed": 5},
    {"logprobs": LogprobOptions(top_num=4, token_ids=(1,)), "temperature": 1.5, "seed": 7},
]


def test_d2_a_row_gets_the_same_alone_in_a_batch_and_permuted(make_rows: Make) -> None:
    rows = make_rows(VOCAB)
    reqs = [rows.add(range(i + 1), range(20, 20 + i), **kind) for i, kind in enumerate(KINDS)]
    for step in range(40):
        logits = random_logits(len(reqs), seed=step)
        alone = [rows.one(logits[j], req) for j, req in enumerate(reqs)]
        assert rows.sample(logits, reqs).next_ids.tolist() == alone
        order = np.random.default_rng(step).permutation(len(reqs)).tolist()
        permuted = rows.sample(logits[order], [reqs[j] for j in order])
        assert permuted.next_ids.tolist() == [alone[j] for j in order]
        assert permuted.logprobs[order.index(7)] == rows.sample(logits[7:8], reqs[7:]).logprobs[0]
        for req, token in zip(reqs, alone, strict=True):
            rows.append(req, token)


def test_d2_a_retraction_changes_no_draw(make_rows: Make) -> None:
    rows = make_rows(VOCAB)
    logits = random_logits(30)

    def generate(retracted_at: int | None) -> list[int]:
        rows.add()  # so that the rows differ from run to run
        req = rows.add(range(5), temperature=0.9, top_p=0.9, repetition_penalty=1.2, seed=42)
        for step in range(30):
            if step == retracted_at:
                rows.remove(req)
                rows.add()  # takes the row
                rows.place(req)
            rows.append(req, rows.one(logits[step], req))
        rows.remove(req)
        generated: list[int] = req.ids[5:].tolist()
        return generated

    straight = generate(None)
    assert generate(13) == straight
    assert len(set(straight)) > 5


def test_d2_the_prompt_length_is_no_part_of_the_noise(make_rows: Make) -> None:
    rows = make_rows(VOCAB)
    reqs = [rows.add(range(m), [1, 2], temperature=0.9, seed=11) for m in (1, 5, 40)]
    drawn = rows.sample(random_logits(1).expand(3, -1), reqs).next_ids.tolist()
    assert len(set(drawn)) == 1


def test_d2_other_seeds_and_positions_draw_otherwise(make_rows: Make) -> None:
    rows = make_rows(VOCAB, num_rows=64)
    by_seed = [rows.add(seed=s, temperature=1.0) for s in range(20)]
    assert len(set(rows.sample(torch.zeros(20, VOCAB), by_seed).next_ids.tolist())) > 10
    by_index = [rows.add([0], range(m), temperature=1.0) for m in range(20)]
    assert len(set(rows.sample(torch.zeros(20, VOCAB), by_index).next_ids.tolist())) > 10


def test_a_reused_row_forgets_its_former_owner(make_rows: Make) -> None:
    rows = make_rows(VOCAB, num_rows=1)
    logits = random_logits(1)[0]
    best = int(logits.argmax())
    for kind in [*KINDS, {"logit_bias": {7: 100.0}, "temperature": 0.0}]:
        req = rows.add([0], **kind)
        rows.one(logits, req)
        rows.remove(req)
        plain = rows.add([0], temperature=0.0)
        assert rows.one(logits, plain) == best
        rows.remove(plain)


def test_logits_are_never_changed(make_rows: Make, pack: Pack) -> None:
    rows = make_rows(VOCAB)
    reqs = [rows.add(range(4), range(3), **kind) for kind in KINDS]
    logits = random_logits(len(reqs))
    before = logits.clone()
    rows.sample(logits, reqs)
    rows.sample(logits, reqs, pack(logits > 0))
    assert torch.equal(logits, before)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_any_float_dtype_is_taken(make_rows: Make, dtype: torch.dtype) -> None:
    rows = make_rows(VOCAB)
    reqs = [rows.add(range(4), range(3), **kind) for kind in KINDS]
    logits = random_logits(len(reqs)).to(dtype)
    low, full = rows.sample(logits, reqs), rows.sample(logits.float(), reqs)
    assert low.next_ids.tolist() == full.next_ids.tolist()
    assert low.next_ids.dtype == np.int32


def test_no_samples_give_no_tokens(make_rows: Make) -> None:
    result = make_rows(VOCAB).sample(torch.zeros(0, VOCAB), [])
    assert len(result.next_ids) == 0 and result.errors == {}


def test_only_sampled_rows_of_a_batch_count(make_rows: Make) -> None:
    """Errors go by batch index, tokens by sample."""
    rows = make_rows(VOCAB)
    reqs = [rows.add([0], temperature=0.0) for _ in range(5)]
    logits = random_logits(2)
    logits[1, 4] = torch.nan
    batch = make_batch(rows, reqs, sample_rows=[1, 3])
    result = rows.sampler.sample(logits, batch)
    assert result.next_ids.tolist() == [int(logits[0].argmax()), 0]
    assert list(result.errors) == [3]


def make_batch(rows: Any, reqs: list[Any], sample_rows: list[int]) -> Any:
    at = np.array([req.row for req in reqs], np.int32)
    ones = np.ones(len(reqs), np.int32)
    samples = np.array(sample_rows, np.int32)
    return Batch(ForwardMode.MIXED, reqs, at, rows.pool.lens[at], ones, 1, samples, rows.pool)


# -- greedy ---------------------------------------------------------------------------------


@pytest.mark.parametrize("params", [{"temperature": 0.0}, {"temperature": 1e-7}, {"top_k": 1}])
def test_greedy_is_the_argmax_with_the_lowest_id(make_rows: Make, params: dict[str, Any]) -> None:
    rows = make_rows(VOCAB)
    req = rows.add(seed=3, **params)
    for seed in range(20):
        logits = random_logits(1, seed=seed)[0]
        assert rows.one(logits, req) == int(logits.argmax())
    logits[[50, 13, 60]] = 99.0
    assert rows.one(logits, req) == 13
    assert rows.one(torch.ones(VOCAB), req) == 0


@pytest.mark.parametrize("params", [{"temperature": 1e-4}, {"top_p": 1e-4}, {"min_p": 1.0}])
def test_d7_extreme_parameters_are_greedy(make_rows: Make, params: dict[str, Any]) -> None:
    rows = make_rows(VOCAB)
    req = rows.add(seed=3, **params)
    for seed in range(200):
        logits = random_logits(1, seed=seed)[0]
        assert rows.one(logits, req) == int(logits.argmax())


@pytest.mark.parametrize("temperature", [1.1e-5, 1e-4, 1.0, 1e10, 1e38, 1e39, 1e308])
def test_d7_no_temperature_overflows(make_rows: Make, temperature: float) -> None:
    rows = make_rows(VOCAB)
    logits = torch.full((VOCAB,), -torch.inf)
    logits[[3, 4, 5]] = torch.tensor([3e38, -3e38, 1.0])
    for params in ({}, {"top_p": 0.9}, {"min_p": 0.1}, {"top_k": 2}):
        reqs = [rows.add(seed=s, temperature=temperature, **params) for s in range(10)]
        result = rows.sample(logits.expand(10, -1), reqs)
        assert not result.errors and set(result.next_ids.tolist()) <= {3, 4, 5}
        for req in reqs:
            rows.remove(req)


def test_huge_temperature_is_uniform(make_rows: Make) -> None:
    rows = make_rows(4, num_rows=400)
    reqs = [rows.add(seed=s, temperature=1e300) for s in range(400)]
    logits = torch.tensor([30.0, 0.0, -30.0, -torch.inf]).expand(400, -1)
    counts = np.bincount(rows.sample(logits, reqs).next_ids, minlength=4)
    assert counts[3] == 0 and counts[:3].min() > 100


# -- what a row may ask for -----------------------------------------------------------------


def test_filters_bound_what_is_drawn(make_rows: Make) -> None:
    probs = torch.tensor([0.4, 0.3, 0.2, 0.1])
    rows = make_rows(4, num_rows=300)
    cases: list[tuple[dict[str, Any], set[int]]] = [
        ({"top_k": 2}, {0, 1}),
        ({"top_k": 2, "top_p": 0.5}, {0}),
        ({"top_p": 0.7}, {0, 1}),
        ({"top_p": 0.71}, {0, 1, 2}),
        ({"min_p": 0.5}, {0, 1, 2}),
        ({"min_p": 0.5, "temperature": 0.5}, {0, 1}),
        ({}, {0, 1, 2, 3}),
    ]
    for params, support in cases:
        reqs = [rows.add(seed=s, **params) for s in range(300)]
        drawn = rows.sample(probs.log().expand(300, -1), reqs).next_ids.tolist()
        assert set(drawn) == support, params
        for req in reqs:
            rows.remove(req)


def test_filtered_and_unfiltered_rows_use_the_same_noise(make_rows: Make) -> None:
    """Noise belongs to token ids, not to ranks: where the winner survives, it wins again."""
    rows = make_rows(VOCAB)
    free, filtered = rows.add(seed=5), rows.add(seed=5, top_p=0.9)
    same = 0
    for seed in range(200):
        logits = random_logits(2, seed=seed)
        a, b = rows.sample(logits[:1].expand(2, -1), [free, filtered]).next_ids.tolist()
        same += a == b
    assert same > 160


def test_d4_a_bias_changes_only_its_own_row(make_rows: Make) -> None:
    rows = make_rows(VOCAB)
    logits = random_logits(3)
    reqs = [rows.add(temperature=0.0) for _ in range(2)]
    biased = rows.add(temperature=0.0, logit_bias={17: 100.0})
    best = logits.argmax(dim=1).tolist()
    ids = rows.sample(logits, [reqs[0], biased, reqs[1]]).next_ids.tolist()
    assert ids == [best[0], 17, best[2]]
    banned = rows.add(temperature=0.0, logit_bias={int(best[0]): -100.0})
    assert rows.one(logits[0], banned) == int(logits[0].topk(2).indices[1])


def test_penalties_come_from_the_row_tables(make_rows: Make) -> None:
    rows = make_rows(4)
    logits = torch.tensor([2.0, 1.5, 0.0, 0.0])
    req = rows.add([3], [], temperature=0.0, presence_penalty=1.0)
    said = []
    for _ in range(3):
        said.append(rows.one(logits, req))
        rows.append(req, said[-1])
    assert said == [0, 1, 0]  # 2, 1.5 -> 1, 1.5 -> 1, 0.5


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_d5_every_stop_id_is_held_until_the_minimum(make_rows: Make, temperature: float) -> None:
    """EOS ids of any source, stop ids; the prompt does not count."""
    rows = make_rows(VOCAB)
    logits = torch.zeros(VOCAB)
    logits[[10, 11, 12]] = 50.0
    wants = {"min_new_tokens": 20, "temperature": temperature, "seed": 1}
    req = rows.add([0] * 50, [], stop_ids=[10, 11, 12], **wants)
    for _ in range(20):
        token = rows.one(logits, req)
        assert token not in (10, 11, 12)
        rows.append(req, token)
    assert rows.one(logits, req) in (10, 11, 12)


def test_d5_a_model_without_eos_has_nothing_to_hold(make_rows: Make) -> None:
    rows = make_rows(VOCAB)
    logits = random_logits(1)[0]
    req = rows.add(min_new_tokens=20, temperature=0.0)
    assert rows.one(logits, req) == int(logits.argmax())


# -- masks ----------------------------------------------------------------------------------


def test_mask_comes_last_and_nothing_revives_a_token(make_rows: Make, pack: Pack) -> None:
    rows = make_rows(VOCAB)
    allowed = torch.zeros(3, VOCAB, dtype=torch.bool)
    allowed[:, [20, 40, 96]] = True
    reqs = [
        rows.add(temperature=0.0, logit_bias={5: 100.0}),
        rows.add(temperature=2.0, seed=1, logit_bias={20: -100.0, 40: -100.0, 96: -100.0}),
        rows.add([5], [5], temperature=0.7, top_k=50, presence_penalty=-2.0, seed=2),
    ]
    for step in range(30):
        ids = rows.sample(random_logits(3, seed=step), reqs, pack(allowed)).next_ids
        assert set(ids.tolist()) <= {20, 40, 96}


def test_rows_without_a_constraint_are_as_without_a_mask(make_rows: Make, pack: Pack) -> None:
    rows = make_rows(VOCAB)
    reqs = [rows.add(range(4), range(3), **kind) for kind in KINDS]
    logits = random_logits(len(reqs))
    allowed = torch.ones(len(reqs), VOCAB, dtype=torch.bool)
    allowed[1] = False
    allowed[1, 77] = True
    free, masked = rows.sample(logits, reqs), rows.sample(logits, reqs, pack(allowed))
    expected = free.next_ids.tolist()
    expected[1] = 77
    assert masked.next_ids.tolist() == expected


def test_minimum_length_yields_to_a_complete_constraint(make_rows: Make, pack: Pack) -> None:
    rows = make_rows(VOCAB)
    wants = {"min_new_tokens": 20, "temperature": 0.0, "stop_ids": [1, 2]}
    allowed = torch.zeros(2, VOCAB, dtype=torch.bool)
    allowed[0, [1, 2]] = True  # complete: nothing but an end is possible
    allowed[1, [1, 2, 30]] = True  # may end or go on
    logits = torch.zeros(2, VOCAB)
    logits[:, 2] = 9.0
    result = rows.sample(logits, [rows.add(**wants), rows.add(**wants)], pack(allowed))
    assert result.errors == {} and result.next_ids.tolist() == [2, 30]


# -- rows in error --------------------------------------------------------------------------


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("params", [{"temperature": 0.0}, {"seed": 1}, {"top_p": 0.9, "seed": 1}])
def test_a_bad_row_fails_alone(make_rows: Make, value: float, params: dict[str, Any]) -> None:
    rows = make_rows(VOCAB)
    options = LogprobOptions(top_num=3)
    reqs = [rows.add(logprobs=options, **params) for _ in range(3)]
    good = random_logits(3)
    bad = good.clone()
    bad[1, 60] = value
    expected, result = rows.sample(good, reqs), rows.sample(bad, reqs)
    assert list(result.errors) == [1] and result.errors[1][0] == "numerical_error"
    assert result.next_ids[1] == 0 and result.logprobs[1] is None
    for j in (0, 2):
        assert result.next_ids[j] == expected.next_ids[j]
        assert result.logprobs[j] == expected.logprobs[j]


def test_nothing_finite_is_an_error_of_the_model_or_of_the_mask(
    make_rows: Make, pack: Pack
) -> None:
    rows = make_rows(VOCAB)
    reqs = [rows.add(temperature=0.0), rows.add(seed=1), rows.add(top_k=3)]
    logits = random_logits(3)
    logits[1] = -torch.inf
    assert rows.sample(logits, reqs).errors[1][0] == "numerical_error"
    allowed = torch.ones(3, VOCAB, dtype=torch.bool)
    allowed[0] = False
    errors = rows.sample(logits, reqs, pack(allowed)).errors
    codes = {j: code for j, (code, _) in errors.items()}
    assert codes == {0: "grammar_dead_end", 1: "numerical_error"}


# -- log-probabilities ----------------------------------------------------------------------


def test_logprobs_are_those_of_the_raw_logits(make_rows: Make, pack: Pack) -> None:
    rows = make_rows(VOCAB)
    logits = random_logits(2)
    req = rows.add(
        [1], [2, 3], temperature=0.3, top_k=2, repetition_penalty=2.0, logit_bias={9: 50.0},
        logprobs=LogprobOptions(top_num=2, token_ids=(9,)),
    )  # fmt: skip
    other = rows.add()
    allowed = torch.zeros(2, VOCAB, dtype=torch.bool)
    allowed[:, 9] = True
    result = rows.sample(logits, [req, other], pack(allowed))
    assert result.logprobs[1] is None
    entry, expected = result.logprobs[0], torch.log_softmax(logits[0], dim=-1)
    assert entry.token_id == 9 and entry.logprob == pytest.approx(float(expected[9]), abs=1e-6)
    assert entry.top[0][0] == int(expected.argmax())


def test_d1_logprobs_beside_a_constraint_are_strict_json(make_rows: Make) -> None:
    rows = make_rows(VOCAB)
    logits = torch.full((2, VOCAB), -torch.inf)
    logits[:, [3, 4]] = torch.tensor([1.0, 2.0])
    options = LogprobOptions(top_num=5, token_ids=(0, 3))
    reqs = [rows.add(top_k=1, logprobs=options), rows.add(seed=2, logprobs=options)]
    result = rows.sample(logits, reqs)
    json.dumps(msgspec.to_builtins(result.logprobs), allow_nan=False)


def test_nobody_asks_for_logprobs(make_rows: Make) -> None:
    rows = make_rows(VOCAB)
    assert rows.sample(random_logits(1), [rows.add()]).logprobs is None
