"""Engines that plan a step while the one before it is in flight answer as those that do not."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
from conftest import MakeEngine

from rtlang.errors import (
    DeadlineExceeded,
    EngineBusy,
    EngineError,
    NumericalError,
    RequestAborted,
    RtlangError,
)
from rtlang.runtime.batch import Batch, BatchResult
from rtlang.runtime.chunk import Chunk
from rtlang.runtime.config import EngineConfig
from rtlang.runtime.engine import Engine
from rtlang.runtime.executor import DoneStep
from rtlang.runtime.job import CallOptions
from rtlang.runtime.req import Req
from rtlang.runtime.sampling_params import SamplingParams
from rtlang.runtime.scheduler import Scheduler
from rtlang.testing import Reply, ScriptedModel, TinyModel

Fields = dict[str, Any]
ENDLESS = {"max_new_tokens": 4000, "ignore_eos": True}


def slow() -> ScriptedModel:
    return ScriptedModel(lambda _: Reply("abcdefgh" * 500, eos=False), step_s=0.002)


def noisy(tokens: list[int]) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    seed = hash(tuple(tokens)) % 2**32
    return np.random.default_rng(seed).normal(0, 3, 264).astype(np.float32)


def both(
    make_engine: MakeEngine, model: Callable[[], Any], run: Callable[[Engine], Any], **options: Any
) -> Any:
    """What ``run`` gives on an overlapped engine, which is what it gives on a plain one."""
    plain = run(make_engine(model(), enable_overlap=False, **options))
    overlapped = run(make_engine(model(), enable_overlap=True, **options))
    assert overlapped == plain
    return overlapped


def shown(result: Any) -> Any:
    reason, usage = result.finish_reason, result.usage
    ended = (reason.type, reason.matched, reason.detail)
    return result.text, result.token_ids, ended, usage.prompt_tokens, usage.completion_tokens


# -- how requests end ---------------------------------------------------------------------------


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("mixed", [True, False])
def test_eos_stop_strings_and_length_end_alike(
    make_engine: MakeEngine, page_size: int, mixed: bool
) -> None:
    def run(engine: Engine) -> list[Any]:
        prompts = [f"{'shared ' * 6}{i}" for i in range(8)]
        params: list[Fields] = [
            {"max_new_tokens": 40},  # EOS
            {"max_new_tokens": 40, "stop": ["fine"]},
            {"max_new_tokens": 40, "stop": ["all is"], "ignore_eos": True},
            {"max_new_tokens": 1},
            {"max_new_tokens": 2},
            {"max_new_tokens": 5},
            {"max_new_tokens": 40, "stop_token_ids": [ord("s")]},
            {"max_new_tokens": 0},
        ]
        return [shown(r) for _ in range(2) for r in engine.generate(prompts, params)]

    options = {"page_size": page_size, "enable_mixed_chunk": mixed, "chunked_prefill_size": 32}
    found = both(make_engine, lambda: ScriptedModel(lambda _: "so all is fine here"), run,
                 max_running_requests=3, **options)  # fmt: skip
    assert [ended[0] for _, _, ended, *_ in found[:8]] == [
        *("stop", "stop", "stop", "length", "length", "length", "stop", "length")
    ]


def test_the_steps_are_overlapped_and_a_known_end_costs_none_more(make_engine: MakeEngine) -> None:
    model = ScriptedModel(lambda _: Reply("x" * 50, eos=False))
    engine = make_engine(model, enable_overlap=True)
    engine.generate("a", {"max_new_tokens": 7})
    assert len(model.steps) == 7  # the length is known beforehand
    model = ScriptedModel(lambda _: "abc")
    engine = make_engine(model, enable_overlap=True)
    assert engine.generate("a").text == "abc"
    assert len(model.steps) == 4 + 1  # EOS is not: one step too many


def test_sampled_ids_and_logprobs_are_the_same(make_engine: MakeEngine) -> None:
    prompts = [list(range(5, 5 + n)) for n in (3, 40, 17)]
    params = {"temperature": 0.8, "top_p": 0.9, "repetition_penalty": 1.3, "frequency_penalty": 0.2,
              "min_new_tokens": 4, "max_new_tokens": 12, "sampling_seed": 3}  # fmt: skip
    asked: Fields = {"return_logprob": True, "top_logprobs_num": 2, "token_ids_logprob": [7]}

    def run(engine: Engine) -> list[Any]:
        found: list[Any] = []
        for start in (0, 2, 20, -1):
            for prompt in prompts:
                options: Fields = asked | {"logprob_start_len": min(start, len(prompt))}
                result = engine.generate(prompt, params, **options)
                again = engine.generate(prompt, {"max_new_tokens": 0}, **options)
                found.append((shown(result), entries(result.logprobs)))
                found.append([entries(r.prompt_logprobs) for r in (result, again)])
        return found

    for options in ({"chunked_prefill_size": 8}, {"chunked_prefill_size": 8, "page_size": 16}):
        both(make_engine, lambda: ScriptedModel(logits=noisy), run, **options)


def joined(chunks: Iterable[Chunk]) -> list[int]:
    return [token for chunk in chunks for token in chunk.token_ids]


def entries(found: Any) -> list[Any]:
    return [(e.token_id, e.logprob, e.top, e.ids) for e in found or []]


@pytest.mark.parametrize("options", [{}, {"page_size": 16}, {"enable_mixed_chunk": False}])
def test_a_real_model_gives_the_same_ids(make_engine: MakeEngine, options: Fields) -> None:
    prompts = [[1] * 20 + [i] for i in range(4)] + [list(range(60))]
    params = {"temperature": 0, "max_new_tokens": 10}
    both(
        *(make_engine, TinyModel, lambda e: [shown(r) for r in e.generate(prompts, params)]),
        **(options | {"device": "cpu", "chunked_prefill_size": 16, "max_running_requests": 3}),
    )


def test_every_token_is_streamed_once_whatever_the_interval(make_engine: MakeEngine) -> None:
    def run(engine: Engine) -> list[Any]:
        found: list[Any] = []
        for interval in (1, 3, 100):
            params = {"max_new_tokens": 20, "stream_interval": interval}
            chunks = list(engine.generate("q", params, stream=True))
            sizes = [len(chunk.token_ids) for chunk in chunks]
            assert all(size >= interval for size in sizes[:-1])
            found.append((joined(chunks), chunks[-1].finish.type))
        return found

    both(make_engine, lambda: ScriptedModel(lambda _: "seventeen letters"), run)


# -- in flight ----------------------------------------------------------------------------------


def test_aborts_in_flight_end_once_and_release_all(make_engine: MakeEngine) -> None:
    engine = make_engine(slow(), enable_overlap=True, page_size=16, chunked_prefill_size=32)
    for wait in range(6):
        streams = [
            engine.start([i + 1] * 50, SamplingParams(max_new_tokens=4000)) for i in range(4)
        ]
        chunks = [iter(stream) for stream in streams]
        for _ in range(wait):
            next(chunks[0])
        for stream in streams:
            stream.abort()
            stream.abort()
        for each in chunks:
            with pytest.raises(RequestAborted):
                list(each)
        engine.check()
    assert engine.stats()["num_aborted"] == 24


def test_a_deadline_in_flight_keeps_the_text_so_far(make_engine: MakeEngine) -> None:
    engine = make_engine(slow(), enable_overlap=True)
    with pytest.raises(DeadlineExceeded) as caught:
        engine.generate("x", ENDLESS, timeout=0.1)
    text = caught.value.data["text"]
    assert text and ("abcdefgh" * 500).startswith(text)
    assert engine.generate("x", {"max_new_tokens": 3}).text == "abc"


def test_control_calls_while_steps_are_in_flight(make_engine: MakeEngine) -> None:
    engine = make_engine(slow(), enable_overlap=True)
    ready = threading.Event()
    found: list[Any] = []

    def stream() -> None:
        for chunk in engine.generate("x", {"max_new_tokens": 120}, stream=True):
            found.extend(chunk.token_ids)
            ready.set()

    thread = threading.Thread(target=stream)
    thread.start()
    assert ready.wait(10)
    for _ in range(10):
        engine.check()
        stats = engine.stats()
        assert stats["queue"]["running"] + stats["queue"]["prefill"] == 1
        with pytest.raises(EngineBusy):
            engine.flush_cache()
    thread.join(20)
    assert bytes(found) == b"abcdefgh" * 15
    engine.flush_cache()
    assert engine.stats()["free_len"] == engine.stats()["total_len"]


def test_closing_while_a_step_is_in_flight_ends_every_stream(make_engine: MakeEngine) -> None:
    engine = make_engine(slow(), enable_overlap=True)
    stream = iter(engine.start([1, 2], SamplingParams(max_new_tokens=4000)))
    next(stream)
    engine.close()
    with pytest.raises(EngineError):
        list(stream)


# -- memory pressure ----------------------------------------------------------------------------


@pytest.mark.parametrize("page_size", [1, 16])
def test_a_retraction_cannot_be_seen(make_engine: MakeEngine, page_size: int) -> None:
    prompts = [[i + 1] * 15 for i in range(8)]
    params = {"temperature": 0.9, "sampling_seed": 1, "max_new_tokens": 40, "ignore_eos": True}
    counts: list[int] = []

    def run(engine: Engine) -> list[Any]:
        found = [shown(r) for r in engine.generate(prompts, params)]
        counts.append(engine.stats()["num_retractions"])
        return found

    both(
        *(make_engine, lambda: ScriptedModel(logits=noisy), run),
        max_total_tokens=192,
        page_size=page_size,
    )
    assert min(counts) > 0


def test_a_preempted_request_goes_on_as_if_nothing_had_happened(make_engine: MakeEngine) -> None:
    engine = make_engine(
        slow(), enable_overlap=True, schedule_policy="priority", max_running_requests=1
    )
    low = engine.start([1] * 20, SamplingParams(max_new_tokens=60))
    chunks = iter(low)
    got = next(chunks).token_ids
    high = engine.start([2] * 20, SamplingParams(max_new_tokens=9), CallOptions(priority=5))
    assert bytes(joined(high)) == b"abcdefgha"
    last = None
    for chunk in chunks:
        got, last = got + chunk.token_ids, chunk
    assert bytes(got) == (b"abcdefgh" * 8)[:60]
    assert last is not None and last.usage is not None and last.usage.num_retractions == 1


@pytest.mark.parametrize("overlap", [True, False])
def test_a_preempted_request_leaves_no_kv_that_was_never_computed(
    make_engine: MakeEngine, overlap: bool
) -> None:
    engine = make_engine(
        slow(), enable_overlap=overlap, schedule_policy="priority", max_running_requests=1
    )
    prompt = [1] * 20
    low = engine.start(prompt, SamplingParams(max_new_tokens=400))
    chunks = iter(low)
    got: list[int] = []
    while len(got) < 10:
        got += next(chunks).token_ids
    high = iter(engine.start([2] * 20, SamplingParams(max_new_tokens=60), CallOptions(priority=5)))
    next(high)  # low waits now, and is never resumed
    low.abort()
    with pytest.raises(RequestAborted):
        for chunk in chunks:
            got += chunk.token_ids
    list(high)
    # The scripted executor checks that what is read from the cache was stored there.
    assert engine.generate([*prompt, *got, 7], {"max_new_tokens": 2}).text == "ab"


# -- forks and errors ---------------------------------------------------------------------------


@pytest.mark.parametrize("chunk", [64, 512])
def test_an_announced_prefix_is_computed_once(make_engine: MakeEngine, chunk: int) -> None:
    prefix = [1] * 200

    def run(engine: Engine) -> list[Any]:
        fork_id, announcement = engine.announce(prefix, 4)
        options = CallOptions(fork_id=fork_id)
        params = SamplingParams(max_new_tokens=6)
        streams = [engine.start([*prefix, i, i], params, options) for i in range(3)]
        found: list[Any] = [[(c.token_ids, c.finish) for c in announcement]]
        for stream in streams:
            last = list(stream)[-1]
            assert last.usage is not None
            found.append((last.usage.cached_tokens, last.usage.computed_tokens))
        engine.close_branches(fork_id, 1)
        return found

    found = both(
        *(make_engine, lambda: ScriptedModel(lambda _: "branch"), run), chunked_prefill_size=chunk
    )
    assert found[1:] == [(200, 2)] * 3


def test_an_error_row_fails_alone(make_engine: MakeEngine) -> None:
    def run(engine: Engine) -> list[Any]:
        found = engine.generate(
            ["good", "bad", "also good"], {"max_new_tokens": 12}, raise_errors=False
        )
        return [type(r) if isinstance(r, RtlangError) else r.text for r in found]

    def script(prompt: str) -> Reply:
        error = NumericalError("no number") if "bad" in prompt else None
        return Reply("fine, thanks", error=error)

    found = both(make_engine, lambda: ScriptedModel(script), run)
    assert found == ["fine, thanks", NumericalError, "fine, thanks"]


# -- lost steps, without an engine --------------------------------------------------------------


def new_scheduler() -> Scheduler:
    config = EngineConfig(debug=True).resolve("cpu")
    return Scheduler(config, num_slots=320, width=128, clock=lambda: 0.0)


def add(scheduler: Scheduler, rid: str, prompt: list[int]) -> None:
    params = SamplingParams(max_new_tokens=4).resolve()
    ids = array("i", prompt)
    scheduler.add(Req(rid, b"c", ids, len(prompt), params, 0, len(prompt) + 4))


def plan(scheduler: Scheduler) -> Batch:
    batch = scheduler.next_batch()
    assert batch is not None
    return batch


def test_a_step_lost_while_the_next_is_in_flight_ends_its_requests_once() -> None:
    scheduler = new_scheduler()
    add(scheduler, "a", [1] * 50)
    add(scheduler, "b", [2] * 50)
    first, second = plan(scheduler), plan(scheduler)
    assert [r.rid for r in first.reqs] == [r.rid for r in second.reqs] == ["a", "b"]
    scheduler.fail_batch(first, "engine_error", "boom")
    scheduler.check()
    assert not scheduler.has_work and scheduler.next_batch() is None
    scheduler.commit(second, BatchResult(np.zeros(2, np.int32)))
    scheduler.check()
    assert scheduler.counters.num_failed == 2
    assert scheduler.kv.available_len == scheduler.allocator.total_len
    assert scheduler.cache.total_len == 0


def test_nobody_reads_what_a_lost_step_did_not_store() -> None:
    """As the worker does it: whoever runs may rest on the lost step, and what is in flight is read
    before anyone else is planned."""
    scheduler = new_scheduler()
    add(scheduler, "a", [1] * 50)
    first = plan(scheduler)
    add(scheduler, "b", [1] * 50 + [2])
    second = plan(scheduler)  # b begins after the prefix of a
    scheduler.fail_batch(first, "engine_error", "boom")
    scheduler.fail_all("engine_error", "others rested on it")
    scheduler.commit(second, BatchResult(np.zeros(len(second.sample_rows), np.int32)))
    scheduler.forget()
    assert scheduler.counters.num_failed == 2 and scheduler.cache.total_len == 0
    add(scheduler, "c", [1] * 50 + [3])
    third = plan(scheduler)
    assert [r.rid for r in third.reqs] == ["c"] and third.extend_lens.tolist() == [51]


def test_a_step_that_cannot_be_read_ends_what_runs_and_the_engine_goes_on(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(ScriptedModel([Reply("x" * 200, eos=False)] * 8), enable_overlap=True)
    params = {"max_new_tokens": 100, "ignore_eos": True}
    read = DoneStep.read
    together = 0

    def fail_once(self: DoneStep) -> BatchResult:
        nonlocal together
        together += len(self.result.next_ids) == 2  # both run
        if together == 5:
            together += 1
            raise RuntimeError("lost")
        return read(self)

    monkeypatch.setattr(DoneStep, "read", fail_once)
    results = engine.generate(["a", "b"], params, raise_errors=False)
    assert [r.code for r in results] == ["engine_error", "engine_error"]
    assert len(engine.generate("a", params).token_ids) == 100
