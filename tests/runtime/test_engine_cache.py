"""Area a of the known mistakes at the engine's surface: a hit never changes an answer."""

from __future__ import annotations

import pytest
from conftest import MakeEngine

from rtlang.errors import EngineBusy, EngineError
from rtlang.runtime.result import GenerateResult
from rtlang.testing import Reply, ScriptedModel, TinyModel

GREEDY = {"max_new_tokens": 12, "temperature": 0, "ignore_eos": True}
TEXT = "The quick brown fox jumps over the lazy dog and runs away from all of them. " * 3


def cold(make_engine: MakeEngine, prompt: list[int]) -> list[int]:
    engine = make_engine(TinyModel(), disable_radix_cache=True)
    return list(engine.generate(prompt, GREEDY).token_ids)


@pytest.mark.parametrize("page_size", [1, 16])
def test_a2_pool_is_balanced_after_a_long_generation(
    make_engine: MakeEngine, page_size: int
) -> None:
    engine = make_engine(TinyModel(), page_size=page_size)
    engine.generate([5, 6, 7, 8, 9], {**GREEDY, "max_new_tokens": 200})


@pytest.mark.parametrize("length", [1, 3, 15, 16, 17, 32])
def test_a4_prompts_shorter_than_a_page(make_engine: MakeEngine, length: int) -> None:
    prompt = list(TEXT.encode()[:length])
    engine = make_engine(TinyModel(), page_size=16)
    first, second = engine.generate(prompt, GREEDY), engine.generate(prompt, GREEDY)
    assert second.usage.cached_tokens % 16 == 0
    assert first.token_ids == second.token_ids == cold(make_engine, prompt)


def test_a5_salts_never_share_a_token(make_engine: MakeEngine) -> None:
    engine = make_engine(TinyModel())
    prompt = list(TEXT.encode()[:200])
    hits = [
        engine.generate(prompt, GREEDY, cache_salt=salt).usage.cached_tokens
        for salt in (None, "t1", "t2", "t1", None)
    ]
    assert hits == [0, 0, 0, 199, 199]


@pytest.mark.parametrize("order", [[0, 1], [1, 0]])
def test_a6_cached_and_uncached_rows_in_one_batch(
    make_engine: MakeEngine, order: list[int]
) -> None:
    engine = make_engine(TinyModel())
    prompts = [list(TEXT.encode()[:80]), list(reversed(TEXT.encode()[:70]))]
    engine.generate(prompts[0][:64], GREEDY)
    results = engine.generate([prompts[i] for i in order], GREEDY)
    for i, result in zip(order, results, strict=True):
        assert result.token_ids == cold(make_engine, prompts[i])


def test_a6_one_hit_among_seven_misses(make_engine: MakeEngine) -> None:
    engine = make_engine(TinyModel())
    prompts = [[i, *TEXT.encode()[:50]] for i in range(8)]
    engine.generate(prompts[3], GREEDY)
    results = engine.generate(prompts, GREEDY)
    assert [r.usage.cached_tokens > 0 for r in results] == [i == 3 for i in range(8)]
    for prompt, result in zip(prompts, results, strict=True):
        assert result.token_ids == cold(make_engine, prompt)


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("length", [47, 48, 49])
def test_a7_full_hit(make_engine: MakeEngine, page_size: int, length: int) -> None:
    prompt = list(TEXT.encode()[:length])
    engine = make_engine(TinyModel(), page_size=page_size)
    results: list[GenerateResult] = [engine.generate(prompt, GREEDY) for _ in range(3)]
    assert len({tuple(r.token_ids) for r in results}) == 1
    assert results[0].token_ids == cold(make_engine, prompt)
    for again in results[1:]:
        assert again.usage.cached_tokens == (length - 1) // page_size * page_size


def test_a8_flush_is_refused_while_a_request_lives(make_engine: MakeEngine) -> None:
    engine = make_engine(ScriptedModel(lambda _: Reply("x" * 500), step_s=0.002))
    stream = engine.generate("hello", {"max_new_tokens": 400}, stream=True)
    next(stream)
    with pytest.raises(EngineBusy, match="1 running"):
        engine.flush_cache()
    assert sum(len(c.token_ids) for c in stream) == 399
    engine.flush_cache()
    assert engine.stats()["evictable_len"] == 0


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("chunk", [7, 24, 512])
@pytest.mark.parametrize("cache", [True, False])
def test_same_tokens_whatever_the_cache_the_chunks_and_the_page_size(
    make_engine: MakeEngine, page_size: int, chunk: int, cache: bool
) -> None:
    engine = make_engine(
        TinyModel(), page_size=page_size, chunked_prefill_size=chunk, disable_radix_cache=not cache
    )
    prompts = [list(TEXT.encode()[:n]) for n in (5, 40, 41, 120)]
    together = engine.generate(prompts, GREEDY)
    for prompt, result in zip(prompts, together, strict=True):
        assert result.token_ids == cold(make_engine, prompt)
        assert engine.generate(prompt, GREEDY).token_ids == result.token_ids


def test_a_retraction_changes_nothing(make_engine: MakeEngine) -> None:
    engine = make_engine(TinyModel(), max_total_tokens=160, max_running_requests=6)
    prompts = [[i, *TEXT.encode()[:20]] for i in range(6)]
    params = {**GREEDY, "max_new_tokens": 40}
    results = engine.generate(prompts, params)
    assert engine.stats()["num_retractions"] > 0
    reference = make_engine(TinyModel(), disable_radix_cache=True)
    for prompt, result in zip(prompts, results, strict=True):
        assert result.token_ids == reference.generate(prompt, params).token_ids


def test_counters_are_the_sum_of_the_usages(make_engine: MakeEngine) -> None:
    engine = make_engine(TinyModel())
    results = engine.generate([TEXT[:50], TEXT[:90], "other"], {**GREEDY, "n": 2})
    usages = [r.usage for siblings in results for r in siblings]
    stats = engine.stats()
    for name in ("prompt_tokens", "cached_tokens", "computed_tokens", "completion_tokens"):
        assert stats[name] == sum(getattr(u, name) for u in usages), name


def test_a_step_that_fails_fails_its_requests_and_the_engine_goes_on(
    make_engine: MakeEngine,
) -> None:
    calls = []

    def logits(ids: list[int]) -> dict[int, float]:
        calls.append(ids)
        if len(calls) == 2:
            raise RuntimeError("device lost")
        return {65: 1.0}

    engine = make_engine(ScriptedModel(logits=logits))
    with pytest.raises(EngineError, match="device lost"):
        engine.generate("abc", GREEDY)
    assert engine.stats()["evictable_len"] == 0
    assert engine.generate("abc", GREEDY).text == "A" * 12
