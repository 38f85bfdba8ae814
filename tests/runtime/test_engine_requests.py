"""Areas b and d, bad input, and the ways to call: at the engine's surface."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from typing import Any

import numpy as np
import pytest
from conftest import MakeEngine, assert_balanced

from rtlang.errors import (
    ConfigError,
    DeadlineExceeded,
    DuplicateRequestId,
    EngineClosed,
    EngineError,
    InvalidParameter,
    InvalidPrompt,
    ModelLoadError,
    NumericalError,
    PromptTooLong,
    RequestAborted,
    RequestError,
    SchedulerDied,
    Unsupported,
)
from rtlang.runtime.engine import Engine
from rtlang.testing import Reply, ScriptedModel, TinyModel

SLOW: dict[str, Any] = {"step_s": 0.005}


def slow_model() -> ScriptedModel:
    return ScriptedModel(lambda _: Reply("abcdefgh" * 500, eos=False), **SLOW)


def fast_model() -> ScriptedModel:
    return ScriptedModel(lambda _: "fine")


# -- refusals -----------------------------------------------------------------------------------


def test_b1_what_can_never_fit_is_refused_at_once_with_both_numbers(
    make_engine: MakeEngine,
) -> None:
    engine = make_engine(TinyModel(max_position_embeddings=4096), max_total_tokens=512)
    with pytest.raises(PromptTooLong, match=r"context 4096.*512"):
        engine.generate([1] * 700)
    long = engine.generate([1] * 300, {"max_new_tokens": 1000, "ignore_eos": True})
    assert (long.finish_reason.type, long.finish_reason.detail) == ("length", "context")
    assert len(long.token_ids) == 212
    assert engine.generate([1, 2, 3], {"max_new_tokens": 3, "ignore_eos": True}).token_ids


@pytest.mark.parametrize(
    ("prompt", "error"),
    [
        ("", InvalidPrompt),
        ([], InvalidPrompt),
        ([1, 264], InvalidPrompt),
        ([-1], InvalidPrompt),
        ([1.5], InvalidPrompt),
        (17, InvalidPrompt),
        ([{"content": "no role"}], InvalidPrompt),
        ([{"role": "user", "content": [{"type": "image_url"}]}], InvalidPrompt),
    ],
)
def test_bad_prompts(make_engine: MakeEngine, prompt: Any, error: type[RequestError]) -> None:
    engine = make_engine(fast_model())
    with pytest.raises(error):
        engine.generate(prompt)
    assert engine.generate("x").text == "fine"


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": math.nan},
        {"temperature": math.inf},
        {"temperature": -1},
        {"top_p": 1.5},
        {"top_p": 0},
        {"min_p": math.nan},
        {"repetition_penalty": 0},
        {"logit_bias": {"999999": 5}},
        {"logit_bias": {"-1": 5}},
        {"logit_bias": {"abc": 1}},
        {"logit_bias": {"1": 101}},
        {"stop_token_ids": [999999]},
        {"min_new_tokens": 9, "max_new_tokens": 3},
        {"stop_regex": "("},
        {"no_such": 1},
        {"n": 0},
    ],
)
def test_d4_d7_bad_parameters_are_refused_by_name(
    make_engine: MakeEngine, params: dict[str, Any]
) -> None:
    engine = make_engine(fast_model())
    with pytest.raises(InvalidParameter) as caught:
        engine.generate("x", params)
    assert caught.value.param in params
    assert engine.generate("x").text == "fine"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("priority", "high"),
        ("priority", 2**63),
        ("priority", True),
        ("timeout", "5"),
        ("timeout", math.inf),
        ("timeout", math.nan),
        ("timeout", 0),
        ("top_logprobs_num", "2"),
        ("logprob_start_len", 1.5),
        ("token_ids_logprob", ["a"]),
        ("cache_salt", ""),
        ("no_such", 1),
    ],
)
def test_bad_options_are_refused_before_they_reach_the_scheduler(
    make_engine: MakeEngine, name: str, value: Any
) -> None:
    engine = make_engine(fast_model())
    logprob = {"return_logprob": True} if "logprob" in name else {}
    with pytest.raises(InvalidParameter) as caught:
        engine.generate("x", **logprob, **{name: value})
    assert caught.value.param == name
    assert engine.generate("x").text == "fine"


def test_a_random_seed_of_zero_is_a_seed(make_engine: MakeEngine) -> None:
    params = {"max_new_tokens": 12, "ignore_eos": True}
    runs = [
        make_engine(ScriptedModel(logits=noisy), random_seed=0).generate("p", params).token_ids
        for _ in range(2)
    ]
    assert runs[0] == runs[1]


def test_a_process_that_does_not_start_leaves_no_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(ModelLoadError):
        Engine("process_models:no_such", scheduler_process=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["beam_width", "custom_params"])
def test_what_is_not_built_is_refused_by_name(make_engine: MakeEngine, name: str) -> None:
    with pytest.raises(Unsupported, match=name):
        make_engine(fast_model()).generate("x", {name: "1"})


@pytest.mark.parametrize(
    "options",
    [
        {"tp_size": 2},
        {"quantization": "awq"},
        {"trust_remote_code": True},
        {"page_size": 5},
        {"no_such_option": 1},
        {"mem_fraction_static": math.nan},
        {"schedule_policy": "random"},
    ],
)
def test_wrong_engine_options_are_refused_by_name(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        Engine(fast_model(), **options)


def test_a_context_longer_than_the_model_s_is_refused() -> None:
    with pytest.raises(ConfigError, match="2048"):
        Engine(TinyModel(), context_length=4096)


def test_an_unknown_model_says_what_was_tried() -> None:
    with pytest.raises(ModelLoadError, match="no-such-model"):
        Engine("no-such-model")


def test_a_batch_is_refused_as_a_whole_and_names_the_item(make_engine: MakeEngine) -> None:
    engine = make_engine(fast_model())
    with pytest.raises(InvalidPrompt) as caught:
        engine.generate(["good", ""])
    assert caught.value.index == 1
    assert engine.stats()["num_requests"] == 0


# -- ends ---------------------------------------------------------------------------------------


def test_b3_leaving_a_stream_early_aborts_it(make_engine: MakeEngine) -> None:
    engine = make_engine(slow_model())
    stream = engine.generate("hello", {"max_new_tokens": 1000}, stream=True)
    next(stream)
    stream.close()
    other = engine.generate("other", {"max_new_tokens": 3})
    assert len(other.token_ids) == 3
    wait_until(lambda: sum(engine.stats()["queue"].values()) == 0)
    assert engine.stats()["num_aborted"] == 1


def test_abort_by_id_is_exact(make_engine: MakeEngine) -> None:
    engine = make_engine(slow_model())
    params = {"max_new_tokens": 60}
    one = engine.generate("a", params, stream=True, rid="req-1")
    ten = engine.generate("b", params, stream=True, rid="req-10")
    next(one)
    next(ten)
    engine.abort("req-1")
    with pytest.raises(RequestAborted):
        list(one)
    assert sum(len(c.token_ids) for c in ten) == 59


def test_b6_duplicate_ids(make_engine: MakeEngine) -> None:
    engine = make_engine(slow_model())
    stream = engine.generate("a", {"max_new_tokens": 30}, stream=True, rid="x")
    with pytest.raises(DuplicateRequestId):
        engine.generate("b", rid="x")
    text = "".join(c.text for c in stream)
    again = engine.generate("a", {"max_new_tokens": 30}, rid="x")
    assert again.text == text == ("abcdefgh" * 4)[:30]


def test_a_timeout_ends_the_request_with_its_partial_text(make_engine: MakeEngine) -> None:
    engine = make_engine(slow_model())
    with pytest.raises(DeadlineExceeded) as caught:
        engine.generate("a", {"max_new_tokens": 4000}, timeout=0.2)
    assert caught.value.text.startswith("abcdefgh")


def test_a_scripted_error_belongs_to_its_request(make_engine: MakeEngine) -> None:
    script: dict[str, Reply | str] = {"bad": Reply(error=EngineError("boom")), "good": "fine"}
    engine = make_engine(ScriptedModel(script))
    bad, good = engine.generate(["bad", "good"], raise_errors=False)
    assert isinstance(bad, EngineError) and bad.message == "boom" and bad.index == 0
    assert good.text == "fine"
    with pytest.raises(EngineError, match="boom"):
        engine.generate(["good", "bad"])


def test_nan_ends_only_its_request_and_is_not_cached(make_engine: MakeEngine) -> None:
    def logits(ids: list[int]) -> Any:
        value = math.nan if ids[0] == ord("n") else 1.0
        return np.full(264, value, np.float32)

    engine = make_engine(ScriptedModel(logits=logits))
    params = {"max_new_tokens": 4, "temperature": 0, "ignore_eos": True}
    bad, good = engine.generate(["nan here", "fine"], params, raise_errors=False)
    assert isinstance(bad, NumericalError)
    assert good.token_ids == [0, 0, 0, 0]
    assert engine.stats()["evictable_len"] == 4 + 3


# -- sampling -----------------------------------------------------------------------------------


def noisy(ids: list[int]) -> Any:
    rng = np.random.default_rng(len(ids) * 1000 + ids[-1])
    return rng.standard_normal(264).astype(np.float32)


def test_d2_a_seed_gives_the_same_tokens_alone_and_among_others(
    make_engine: MakeEngine,
) -> None:
    engine = make_engine(ScriptedModel(logits=noisy))
    seeded = {"max_new_tokens": 20, "temperature": 0.8, "sampling_seed": 42, "ignore_eos": True}
    alone = engine.generate("prompt", seeded).token_ids
    free = {"max_new_tokens": 20, "ignore_eos": True}
    params = [free, seeded, {**seeded, "sampling_seed": 7}, {**free, "top_p": 0.5}]
    results = engine.generate(["prompt"] * 4, params)
    assert results[1].token_ids == alone
    assert len({tuple(r.token_ids) for r in results}) == 4
    tight = make_engine(ScriptedModel(logits=noisy), max_total_tokens=60)
    retracted = tight.generate(["prompt"] * 4, seeded)
    assert tight.stats()["num_retractions"] > 0
    assert all(r.token_ids == alone for r in retracted)


def test_d2_siblings_differ_and_unseeded_runs_differ(make_engine: MakeEngine) -> None:
    engine = make_engine(ScriptedModel(logits=noisy))
    params = {"max_new_tokens": 12, "n": 4, "sampling_seed": 42, "ignore_eos": True}
    first, again = engine.generate("p", params), engine.generate("p", params)
    assert len({tuple(r.token_ids) for r in first}) == 4
    assert [r.token_ids for r in first] == [r.token_ids for r in again]
    del params["sampling_seed"]
    assert engine.generate("p", params)[0].token_ids != engine.generate("p", params)[0].token_ids


def test_d3_presence_penalty_counts_output_only(make_engine: MakeEngine) -> None:
    engine = make_engine(ScriptedModel(logits=lambda _: {7: 1.0, 8: 0.5}))
    params = {"max_new_tokens": 3, "temperature": 0, "ignore_eos": True}
    penalised = {**params, "presence_penalty": 2.0, "frequency_penalty": 2.0}
    assert engine.generate([7] * 10, penalised).token_ids == [7, 8, 7]
    repeated = {**params, "repetition_penalty": 2.0, "max_new_tokens": 1}
    assert engine.generate([8, 7], repeated).token_ids == [7]
    assert engine.generate([7, 9], {**repeated, "repetition_penalty": 1.99}).token_ids == [7]


def test_d5_min_tokens_hold_back_every_end(make_engine: MakeEngine) -> None:
    engine = make_engine(ScriptedModel(logits=lambda _: {256: 9.0, 65: 5.0, 66: 1.0}))
    params = {"temperature": 0, "min_new_tokens": 20, "max_new_tokens": 40, "stop_token_ids": [65]}
    result = engine.generate([1] * 50, params)
    assert result.token_ids == [66] * 20 + [256]
    assert result.finish_reason.type == "stop"


@pytest.mark.parametrize("chunk", [16, 512])
def test_d6_prompt_logprobs_cold_warm_and_chunked(make_engine: MakeEngine, chunk: int) -> None:
    engine = make_engine(TinyModel(), chunked_prefill_size=chunk, max_running_requests=4)
    prompt = list(b"a prompt of exactly forty tokens, namely")
    options: dict[str, Any] = {
        "return_logprob": True,
        "logprob_start_len": 0,
        "top_logprobs_num": 2,
    }
    greedy = {"max_new_tokens": 4, "temperature": 0, "ignore_eos": True}
    cold, warm = (engine.generate(prompt, greedy, **options) for _ in range(2))
    reference = make_engine(TinyModel(), disable_radix_cache=True).generate(
        prompt, greedy, **options
    )
    for result in (cold, warm):
        assert result.prompt_logprobs is not None and reference.prompt_logprobs is not None
        assert [e.token_id for e in result.prompt_logprobs] == prompt
        assert result.prompt_logprobs[0].logprob is None
        for got, want in zip(
            result.prompt_logprobs[1:], reference.prompt_logprobs[1:], strict=True
        ):
            assert got.logprob == pytest.approx(want.logprob, abs=1e-4)
        assert result.logprobs is not None and len(result.logprobs) == 4
    assert engine.generate(prompt, greedy).usage.cached_tokens == 39


def test_d1_logprobs_are_finite_where_tokens_are_impossible(make_engine: MakeEngine) -> None:
    engine = make_engine(ScriptedModel(logits=lambda _: {65: 1.0, 66: 1.0}))
    params = {"max_new_tokens": 2, "top_k": 1}
    result = engine.generate("x", params, return_logprob=True, top_logprobs_num=5)
    assert result.logprobs is not None
    values = [v for entry in result.logprobs for _, v in entry.top]
    assert len(values) == 10 and all(math.isfinite(v) for v in values)


# -- ways to call -------------------------------------------------------------------------------


def test_works_inside_a_running_event_loop_and_from_several_threads(
    make_engine: MakeEngine,
) -> None:
    engine = make_engine(fast_model())

    async def inside() -> list[str]:
        one = engine.generate("sync inside a loop").text
        results = await asyncio.gather(*[engine.async_generate(f"{i}") for i in range(8)])
        stream = await engine.async_generate("s", stream=True)
        return [one, *[r.text for r in results], "".join([c.text async for c in stream])]

    assert asyncio.run(inside()) == ["fine"] * 10
    texts: list[str] = []
    threads = [
        threading.Thread(target=lambda: texts.append(engine.generate("t").text)) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert texts == ["fine"] * 8


def test_closing_fails_every_waiter_at_once(make_engine: MakeEngine) -> None:
    engine = make_engine(slow_model())
    stream = engine.generate("a", {"max_new_tokens": 4000}, stream=True)
    next(stream)
    threading.Timer(0.1, engine.close).start()
    with pytest.raises(EngineClosed):
        list(stream)
    with pytest.raises(EngineClosed):
        engine.generate("b")


def test_a_dead_scheduler_thread_fails_every_waiter_at_once(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    engine = make_engine(slow_model())
    stream = engine.generate("a", {"max_new_tokens": 4000}, stream=True)
    next(stream)
    monkeypatch.setattr(
        "rtlang.runtime.scheduler.Scheduler.next_batch",
        lambda _: 1 / 0,  # our own bug
    )
    with pytest.raises(SchedulerDied, match="ZeroDivisionError"):
        list(stream)
    with pytest.raises(SchedulerDied):
        engine.generate("b")
    engine.close()  # joins the thread, while its exception is still expected


def test_its_own_process_gives_the_same_and_its_death_is_told() -> None:
    engine = Engine("process_models:slow", scheduler_process=True)
    try:
        assert engine.generate("a", {"max_new_tokens": 10}).text == "abcdefghab"
        stream = engine.generate("a", {"max_new_tokens": 4000}, stream=True)
        next(stream)
        os.kill(engine._launched.pid, signal.SIGKILL)
        start = time.monotonic()
        with pytest.raises(SchedulerDied, match="exit code"):
            list(stream)
        assert time.monotonic() - start < 5
        with pytest.raises(SchedulerDied):
            engine.stats()
    finally:
        engine.close()


def test_a_model_that_cannot_load_is_told_from_its_process() -> None:
    with pytest.raises(ModelLoadError, match="no_such"):
        Engine("process_models:no_such", scheduler_process=True)


def test_a_script_without_a_main_guard_and_the_child_ends_with_its_parent(tmp_path: Any) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            """
            from rtlang.runtime.engine import Engine
            engine = Engine("process_models:slow", scheduler_process=True)
            text = engine.generate("a", {"max_new_tokens": 3}).text
            print(text, engine._launched.pid, flush=True)
            import os; os._exit(0)  # no goodbye
            """
        )
    )
    here = os.path.dirname(__file__)
    paths = [os.path.dirname(here), os.path.dirname(os.path.dirname(here))]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, env=env, timeout=60
    )
    text, pid = done.stdout.split()
    assert text == "abc", done.stderr
    wait_until(lambda: not os.path.exists(f"/proc/{pid}"))


@pytest.mark.usefixtures("interruptible")
def test_interrupting_a_call_aborts_it(make_engine: MakeEngine) -> None:
    engine = make_engine(slow_model())
    main = threading.get_ident()
    threading.Timer(0.3, signal.pthread_kill, (main, signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        engine.generate(["a", "b"], {"max_new_tokens": 4000})
    wait_until(lambda: sum(engine.stats()["queue"].values()) == 0)
    assert_balanced(engine)


def wait_until(ready: Any, timeout: float = 10.0) -> None:
    end = time.monotonic() + timeout
    while not ready():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)
