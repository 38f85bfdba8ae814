"""The GPU's executor in Triton's interpreter: padding, buckets, tables, sampling, overlap."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import graph_cases
import pytest
from conftest import MakeEngine
from step_loop import DEVICE, StepLoop

from rtlang.errors import ConfigError
from rtlang.grammar.spec import GrammarSpec
from rtlang.grammar.vocab import Bitmask
from rtlang.runtime.batch import Batch
from rtlang.runtime.engine import Engine
from rtlang.runtime.gpu import sampler
from rtlang.runtime.gpu.graphs import bucket_of, row_buckets, token_buckets
from rtlang.testing.tiny import TinyModel

ONE_LAYER = TinyModel(num_hidden_layers=1)
#: Small buckets: the interpreter takes its time for every padding row.
SMALL: dict[str, Any] = {"cuda_graph_max_tokens": 32, "max_running_requests": 8}


@pytest.fixture(autouse=True)
def room_for_few_edits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each costs the interpreter time, used or not."""
    monkeypatch.setattr(sampler, "MAX_EDITS", 128)


def test_j1_padding_rows_touch_only_the_reserved_slot() -> None:
    graph_cases.check_padding_rows_touch_only_the_reserved_slot(ONE_LAYER, cuda_graph_max_tokens=32)


@pytest.mark.parametrize("page_size", [1, 16])
def test_j2_nan_in_the_pool_changes_nothing(page_size: int) -> None:
    graph_cases.check_nan_in_the_pool_changes_nothing(ONE_LAYER, page_size=page_size, **SMALL)


def test_j3_every_batch_size_gives_the_ids_of_one_alone() -> None:
    graph_cases.check_every_size_gives_the_ids_of_one_alone(
        ONE_LAYER, 9, [3, 9], cuda_graph_max_tokens=16
    )


@pytest.mark.parametrize("largest", [1, 2, 5, 8, 12, 100, 200, 256, 500])
def test_j3_some_bucket_holds_every_size(largest: int) -> None:
    sizes = row_buckets(largest)
    assert sizes == sorted(set(sizes)) and sizes[-1] == largest
    for size in range(1, largest + 1):
        bucket = bucket_of(sizes, size)
        assert bucket is not None and size <= bucket < size + max(8, size / 8)
    assert bucket_of(sizes, largest + 1) is None


def test_token_buckets_are_a_third_apart() -> None:
    assert token_buckets(100) == [16, 24, 32, 48, 64, 96, 100]
    assert token_buckets(0) == []


@pytest.mark.parametrize("architecture", ["llama", "qwen3", "gemma3"])
@pytest.mark.parametrize("options", [{}, {"page_size": 16, "chunked_prefill_size": 24}])
def test_greedy_ids_are_those_of_the_cpu(
    make_engine: MakeEngine, architecture: str, options: dict[str, Any]
) -> None:
    model = TinyModel(architecture, num_hidden_layers=2 if architecture == "gemma3" else 1)
    given = graph_cases.prompts(2, 5, 30)
    given.append(given[0][:5] + given[1])
    engine = make_engine(model, device="cpu", **options)
    params = {"temperature": 0, "max_new_tokens": 3, "ignore_eos": True}
    plain = [result.token_ids for result in engine.generate(given, params)]
    loop = StepLoop(model, dtype="float32", **(SMALL | options))
    assert loop.run(given, 3) == plain
    assert loop.run(given, 3) == plain  # from the cache


def test_draws_are_those_of_the_cpu(make_engine: MakeEngine) -> None:
    params = {"temperature": 0.9, "top_p": 0.9, "repetition_penalty": 1.2, "max_new_tokens": 5,
              "sampling_seed": 5, "ignore_eos": True}  # fmt: skip
    given = graph_cases.prompts(3)
    plain = make_engine(ONE_LAYER, device="cpu").generate(given, params)
    fast = make_engine(
        ONE_LAYER, device=DEVICE, dtype="float32", attention_backend="triton", **SMALL
    ).generate(given, params)
    assert [r.token_ids for r in fast] == [r.token_ids for r in plain]


def test_features_do_not_depend_on_batch_mates() -> None:
    graph_cases.check_features_do_not_depend_on_batch_mates(ONE_LAYER, 3, **SMALL)


def test_logprobs_are_those_of_the_cpu(make_engine: MakeEngine) -> None:
    params = {"temperature": 0, "max_new_tokens": 4, "ignore_eos": True}
    options: dict[str, Any] = {
        "return_logprob": True,
        "top_logprobs_num": 2,
        "logprob_start_len": 2,
    }
    given = graph_cases.prompts(3, 12, 12)
    plain = make_engine(TinyModel(), device="cpu").generate(given, params, **options)
    fast = make_engine(
        TinyModel(), device=DEVICE, dtype="float32", attention_backend="triton", **SMALL
    ).generate(given, params, **options)
    for got, want in zip(fast, plain, strict=True):
        for name in ("logprobs", "prompt_logprobs"):
            mine, theirs = getattr(got, name), getattr(want, name)
            assert [e.token_id for e in mine] == [e.token_id for e in theirs]
            values = [e.logprob for e in theirs]
            assert [e.logprob for e in mine] == pytest.approx(values, abs=1e-4)
            assert [[t for t, _ in e.top] for e in mine] == [[t for t, _ in e.top] for e in theirs]


def test_a_row_with_nan_fails_alone() -> None:
    given = graph_cases.prompts(3, 3, 8)
    plain = StepLoop(ONE_LAYER, **SMALL).run(given, 4)
    calls = 0

    def spoil(batch: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            slot = int(batch.pool.slots[batch.rows[1], 0])
            loop.runner._kv.keys[0][slot] = float("nan")

    loop = StepLoop(ONE_LAYER, disable_radix_cache=True, **SMALL)
    ids = loop.run(given, 4, before=spoil)
    assert set(loop.errors.values()) == {"numerical_error"} and len(loop.errors) == 1
    assert [ids[0], ids[2]] == [plain[0], plain[2]]


@pytest.mark.skipif(DEVICE == "cuda", reason="there is a GPU here")
@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"device": "cuda"}, "no GPU"),
        ({"kv_cache_dtype": "fp8"}, "kv_cache_dtype"),
        ({"cuda_graph_max_tokens": 64}, "cuda_graph_max_tokens"),
        ({"attention_backend": "flashinfer"}, "NVIDIA GPU"),
    ],
)
def test_what_needs_a_gpu_is_refused_without_one(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Engine(TinyModel(), **options)


def test_more_logit_edits_than_a_graph_has_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    params: dict[str, Any] = {"logit_bias": {token: 3.0 - token for token in range(6)}}
    given = graph_cases.prompts(2, 3, 8)
    plain = StepLoop(ONE_LAYER, **SMALL).run(given, 2, **params)
    monkeypatch.setattr(sampler, "MAX_EDITS", 4)
    loop = StepLoop(ONE_LAYER, **SMALL)
    assert loop.run(given, 2, **params) == plain
    assert loop.runner.graphs.fallbacks["many logit edits"] > 0
    assert loop.run(given, 2) == StepLoop(ONE_LAYER, **SMALL).run(given, 2)  # and none again


def test_masks_reach_their_own_rows_whatever_else_the_batch_samples() -> None:
    graph_cases.check_masks_reach_their_own_rows(ONE_LAYER, **SMALL)


@pytest.mark.parametrize("overlap", [False, True])
def test_logprobs_under_a_constraint_beside_others_that_want_none(
    make_engine: MakeEngine, overlap: bool
) -> None:
    """Its last step is sampled when the step behind it, which nobody wants any of, is prepared."""
    given = graph_cases.prompts(2, 5, 6)
    engine = make_engine(
        ONE_LAYER, device=DEVICE, dtype="float32", attention_backend="triton",
        enable_overlap=overlap, enable_mixed_chunk=False, **SMALL,
    )  # fmt: skip
    params: dict[str, Any] = {"regex": "[a-z]{30}", "temperature": 0}
    with ThreadPoolExecutor(2) as pool:
        others = pool.submit(engine.generate, given[:1], {**params, "max_new_tokens": 20})
        found = engine.generate(given[1:], {**params, "max_new_tokens": 4}, return_logprob=True)[0]
        others.result(60)
    assert len(found.logprobs) == len(found.token_ids) == 4
    assert [entry.token_id for entry in found.logprobs] == found.token_ids


@pytest.mark.parametrize("extra", [{}, {"top_k": 5}], ids=str)
def test_a_mask_that_allows_nothing_is_a_dead_end(extra: dict[str, Any]) -> None:
    loop = StepLoop(ONE_LAYER, **SMALL)
    fill, calls = loop.constraints.fill, 0

    def fill_but_one(batch: Batch, bitmask: Bitmask) -> list[Any]:
        nonlocal calls
        calls += 1
        failures = fill(batch, bitmask)
        if calls == 3:
            bitmask[batch.masked[0]] = 0
        return failures

    loop.constraints.fill = fill_but_one  # type: ignore[method-assign]
    params = [{"grammar": GrammarSpec.regex("[a-z]{30}"), **extra}] * 2
    loop.run_each(graph_cases.prompts(2, 5, 6), params, 6)
    assert list(loop.errors.values()) == ["grammar_dead_end"]
