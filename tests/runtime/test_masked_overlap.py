"""Constrained steps, overlapped: what comes while the device computes, and what a lost step takes
with it."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from conftest import MakeEngine
from constrained_models import FORCED, VOCAB, noisy

from rtlang.errors import EngineError, RequestAborted
from rtlang.grammar.spec import GrammarSpec
from rtlang.runtime import scheduler
from rtlang.runtime.batch import Batch, BatchResult
from rtlang.runtime.engine import Engine
from rtlang.runtime.executor import Launch, MaskedStep, Step
from rtlang.runtime.req import Req
from rtlang.runtime.sampling_params import SamplingParams
from rtlang.testing import ScriptedModel
from rtlang.testing.scripted import ScriptedExecutor

LETTERS = {"regex": "[a-z]{60}", "temperature": 0.0}
FREE = {"ignore_eos": True, "temperature": 0.0}
Told = Callable[[str, int], None]


def spy(monkeypatch: pytest.MonkeyPatch, tell: Told) -> dict[int, list[Req]]:
    """``tell(what, step)`` before each: prepare, launch, sample, read. Returns who is in which
    step, once it is prepared."""
    prepare, sample, read = ScriptedExecutor.prepare, MaskedStep.sample, MaskedStep.read
    numbers: dict[int, int] = {}  # id of a step -> its number
    batches: dict[int, list[Req]] = {}
    count = 0

    def preparing(self: ScriptedExecutor, batch: Batch) -> Launch:
        nonlocal count
        count += 1
        number = count
        tell("prepare", number)
        batches[number] = list(batch.reqs)
        launch = prepare(self, batch)

        def launching() -> Step:
            tell("launch", number)
            step = launch()
            numbers[id(step)] = number
            return step

        return launching

    def sampling(self: MaskedStep) -> None:
        tell("sample", numbers[id(self)])
        sample(self)

    def reading(self: MaskedStep) -> BatchResult:
        tell("read", numbers.pop(id(self)))
        return read(self)

    monkeypatch.setattr(ScriptedExecutor, "prepare", preparing)
    monkeypatch.setattr(MaskedStep, "sample", sampling)
    monkeypatch.setattr(MaskedStep, "read", reading)
    return batches


def fail_at(monkeypatch: pytest.MonkeyPatch, what: str, num_rows: int) -> list[int]:
    """Once, as soon as so many rows run. Returns the step that failed, when it has."""
    done: list[int] = []

    def tell(found: str, step: int) -> None:
        rows = batches.get(step) or batches.get(step - 1, [])  # before it is prepared: the last
        if found == what and len(rows) == num_rows and not done:
            done.append(step)
            raise RuntimeError("boom")

    batches = spy(monkeypatch, tell)
    return done


def test_between_a_sampling_and_the_next_launch_comes_nothing(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(noisy(), enable_overlap=True)
    engine.generate("p", {**LETTERS, "max_new_tokens": 2})  # compiled
    found: list[tuple[str, int]] = []
    spy(monkeypatch, lambda what, step: found.append((what, step)))
    engine.generate("p", {**LETTERS, "max_new_tokens": 4})
    assert found == [
        *[("prepare", 1), ("launch", 1), ("prepare", 2), ("sample", 1)],
        *[("launch", 2), ("read", 1), ("prepare", 3), ("sample", 2)],
        *[("launch", 3), ("read", 2), ("prepare", 4), ("sample", 3)],
        *[("launch", 4), ("read", 3), ("sample", 4)],  # the length is known beforehand
        ("read", 4),
    ]


def test_steps_without_overlap_come_one_after_the_other(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(noisy(), enable_overlap=False)
    found: list[tuple[str, int]] = []
    spy(monkeypatch, lambda what, step: found.append((what, step)))
    engine.generate("p", {**LETTERS, "max_new_tokens": 3})
    calls = ("prepare", "launch", "sample", "read")
    assert found == [(what, step) for step in (1, 2, 3) for what in calls]


@pytest.mark.parametrize("what", ["prepare", "launch", "sample", "read"])
@pytest.mark.parametrize("overlap", [True, False])
def test_a_step_that_fails_anywhere_takes_its_requests_and_no_more(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch, what: str, overlap: bool
) -> None:
    engine = make_engine(noisy(), enable_overlap=overlap, chunked_prefill_size=64)
    params = [{**LETTERS, "max_new_tokens": 30}, {**FREE, "max_new_tokens": 30}] * 2
    prompts = [[1] * 50 + [i] for i in range(4)]
    good = [r.token_ids for r in engine.generate(prompts, params)]
    with monkeypatch.context() as patch:
        done = fail_at(patch, what, num_rows=4)
        for _ in range(50):  # until they come together
            engine.flush_cache()
            failed = engine.generate(prompts, params, raise_errors=False)
            if done:
                break
    assert all(isinstance(r, EngineError) for r in failed)
    assert any("boom" in r.message for r in failed), [r.message for r in failed]
    engine.check()
    assert engine.stats()["locked_len"] == engine.stats()["num_rows_used"] == 0
    assert engine.stats()["evictable_len"] == 0  # nobody finds what may never have been stored
    assert [r.token_ids for r in engine.generate(prompts, params)] == good


def test_newcomers_that_rest_on_a_step_that_cannot_be_sampled_fail_with_it(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their prompts begin with what that step was to store."""
    engine = make_engine(noisy(), enable_overlap=True, chunked_prefill_size=64)
    prompts = [[2], *([1] * 63 + [i] for i in range(8))]  # one of the long ones fits a step
    params = {**LETTERS, "max_new_tokens": 30}
    good = [engine.generate(p, params).token_ids for p in prompts]
    resting: list[Req] = []

    def tell(what: str, step: int) -> None:
        if what == "sample" and not resting and step + 1 in batches:
            resting.extend(r for r in batches[step + 1] if r.tree_len and r not in batches[step])
            if resting:
                raise RuntimeError("boom")

    with monkeypatch.context() as patch:
        batches = spy(patch, tell)
        for _ in range(50):  # until it happens: it is for the requests to come together
            engine.flush_cache()
            failed = engine.generate(prompts, params, raise_errors=False)
            if resting:
                break
    assert resting
    for req in resting:
        assert failed[prompts.index(req.ids[: req.prompt_len].tolist())].code == "engine_error"
    again = [engine.generate(p, params).token_ids for p in prompts]
    assert again == good


def test_aborts_while_the_next_step_is_planned_end_once(make_engine: MakeEngine) -> None:
    model = noisy()
    model.step_s = 0.002
    engine = make_engine(model, enable_overlap=True, page_size=16)
    params = SamplingParams(
        grammar=GrammarSpec.regex("[a-z]+"), min_new_tokens=3999, max_new_tokens=4000
    )
    for wait in range(5):
        streams = [engine.start([i + 1] * 50, params) for i in range(4)]
        chunks = [iter(stream) for stream in streams]
        for _ in range(wait):
            next(chunks[0])
        for stream in streams:
            stream.abort()
        for each in chunks:
            with pytest.raises(RequestAborted):
                list(each)
        engine.check()
    assert engine.stats()["num_aborted"] == 20


def test_control_calls_and_the_end_see_all_answers(make_engine: MakeEngine) -> None:
    model = noisy()
    model.step_s = 0.002
    engine = make_engine(model, enable_overlap=True)
    found: list[int] = []
    ready = threading.Event()

    def stream() -> None:
        for chunk in engine.generate("x", {**LETTERS, "max_new_tokens": 60}, stream=True):
            found.extend(chunk.token_ids)
            ready.set()

    thread = threading.Thread(target=stream)
    thread.start()
    assert ready.wait(20)
    while thread.is_alive():
        engine.check()
        assert engine.stats()["output_tokens"] <= 60
    thread.join()
    assert re.fullmatch("[a-z]{60}", bytes(found).decode())
    engine.flush_cache()
    assert engine.stats()["free_len"] == engine.stats()["total_len"]


# -- jump-forward -----------------------------------------------------------------------------


def shown(engine: Engine, prompts: list[str], params: list[dict[str, Any]]) -> list[Any]:
    results = engine.generate(prompts, params, return_logprob=True)
    return [
        (r.token_ids, r.finish_reason.type, r.usage.forced_tokens, r.usage.completion_tokens,
         [round(entry.logprob, 5) for entry in r.logprobs])
        for r in results
    ]  # fmt: skip


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"page_size": 16},
        {"chunked_prefill_size": 16},
        {"enable_mixed_chunk": False},
        {"max_total_tokens": 128},  # retractions
        {"max_total_tokens": 160, "page_size": 16},
        {"disable_radix_cache": True},
    ],
    ids=str,
)
def test_forced_text_in_overlapped_steps(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    """Beside free rows and rows that are masked only, with ends inside of what is forced."""
    monkeypatch.setattr(scheduler, "RATIO_START", 0.0)  # nothing is kept free for those that run
    kinds: list[dict[str, Any]] = [
        {**FORCED, "jump_forward": "canonical", "max_new_tokens": 99},
        {**FORCED, "jump_forward": "off", "max_new_tokens": 99},
        {**FORCED, "jump_forward": "canonical", "max_new_tokens": 20},
        {**FORCED, "jump_forward": "canonical", "max_new_tokens": 99, "stop": "reason"},
        {"max_new_tokens": 30, "ignore_eos": True},
    ]
    params = [{**kinds[i % 5], "temperature": 1.0, "sampling_seed": i} for i in range(10)]
    prompts = [f"prompt {i}" for i in range(10)]
    found = []
    for overlap in (False, True):
        engine = make_engine(noisy(), enable_overlap=overlap, **options)
        found.append(shown(engine, prompts, params))
        retracted = engine.stats()["num_retractions"]
        assert bool(retracted) is ("max_total_tokens" in options)
    assert found[0] == found[1]
    assert sum(forced for _, _, forced, *_ in found[0]) > 100


def test_a_forced_run_costs_one_step_more_when_overlapped(make_engine: MakeEngine) -> None:
    """The step that is in flight when the run becomes known samples the run's first token."""
    params = {**FORCED, "jump_forward": "canonical", "temperature": 0.0, "max_new_tokens": 99}
    counts: list[int] = []
    for overlap in (False, True):
        model = noisy()
        engine = make_engine(model, enable_overlap=overlap)
        engine.generate("p", params)
        counts.append(len(model.steps))
    plain, overlapped = counts
    num_runs = 3  # the first one is known before any step: it belongs to the prompt
    assert plain < overlapped <= plain + num_runs + 1  # and one for the end, which nobody foresaw


def test_a_run_that_others_had_before_costs_no_step_more(make_engine: MakeEngine) -> None:
    """The step before it is waited for, if nobody else would be in the one behind."""
    params = {**FORCED, "jump_forward": "canonical", "temperature": 0.0, "max_new_tokens": 99}
    model, plain = noisy(), noisy()
    make_engine(plain, enable_overlap=False).generate("p", params)
    engine = make_engine(model, enable_overlap=True)
    texts, counts = [], []
    for _ in range(5):
        before = len(model.steps)
        texts.append(engine.generate("p", params).text)
        counts.append(len(model.steps) - before)
    assert len(set(texts)) == 1
    assert counts[0] > counts[-1] == len(plain.steps) + 1  # one for the end
    # Beside a request that is in no such place, nothing waits.
    free, bound = engine.generate(["q", "p"], [{**FREE, "max_new_tokens": 60}, params])
    assert bound.text == texts[0] and len(free.token_ids) == 60


def test_nothing_waits_where_too_little_is_forced_to_be_appended(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A single forced token is sampled, since the next character could have merged into it."""
    waits: list[bool] = []
    asked = scheduler._all_may_jump

    def asking(reqs: list[Req]) -> bool:
        waits.append(asked(reqs))
        return waits[-1]

    monkeypatch.setattr(scheduler, "_all_may_jump", asking)
    engine = make_engine(noisy(), enable_overlap=True)
    params = {"regex": "([0-9],){20}", "jump_forward": "canonical", "temperature": 0.0}
    for _ in range(4):
        assert engine.generate("p", {**params, "max_new_tokens": 40}).usage.forced_tokens == 0
    assert len(waits) > 100 and not any(waits)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("bad", [-np.inf, np.nan])
def test_what_would_be_sampled_where_text_is_forced_does_not_matter(
    make_engine: MakeEngine, bad: float, overlap: bool
) -> None:
    """Nobody asks the model there: it may find the forced token impossible, or fail."""

    def logits(tokens: list[int]) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
        row = np.zeros(VOCAB, np.float32)
        row[ord("a")] = row[ord("7")] = 1.0
        if tokens[-1] == ord("a"):
            row[ord("n")] = bad
        return row

    engine = make_engine(ScriptedModel(logits=logits), enable_overlap=overlap)
    params = {"regex": "[ab]nswer: the [0-9]", "jump_forward": "canonical", "temperature": 0.0}
    assert engine.generate("p", params).text == "answer: the 7"
    # The scripted executor checks that what is read from the cache was stored there.
    again = engine.generate("panswer: the 7", {"max_new_tokens": 1, "temperature": 0.0})
    assert again.usage.cached_tokens >= 12
