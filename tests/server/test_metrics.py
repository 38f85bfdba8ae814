"""Metrics: what each one measures, that they add up, and that they harm nobody."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from conftest import MakeEngine
from observed_server import (
    Samples,
    call,
    generate,
    make_state,
    mixed_calls,
    mixed_script,
    observed,
    parse,
    scraped,
    value,
)
from project_tree import ROOT
from prometheus_client.core import Metric

from rtlang.errors import DeadlineExceeded, EngineError, RequestAborted
from rtlang.runtime.chunk import Chunk
from rtlang.runtime.messages import FinishReason, Timings, Usage
from rtlang.runtime.server.app import create_app
from rtlang.runtime.server.engine_metrics import ENGINE_METRICS, UP
from rtlang.runtime.server.metrics import Metrics, make_metrics
from rtlang.runtime.server.observability import attach_observability
from rtlang.runtime.stage_clock import StageClock
from rtlang.testing import Reply, ScriptedModel

STOP = FinishReason("stop", 0, "eos")
HIDDEN = {"attention_decode", "attention_extend"}  # statistics that are words


def own(metrics: Metrics) -> Samples:
    return parse(metrics.scrape("")[0].decode())


# -- definitions, on a clock of the test's own ----------------------------------------------


class Replay:
    """Feeds one call to metrics: ``at(time, text, tokens)``, then ``end``."""

    def __init__(self, **changes: Any) -> None:
        self.time = 0.0
        self.metrics = Metrics(lambda: {}, None, lambda: self.time)
        self.record = call(**changes)
        self.metrics.started(self.record)

    def at(
        self, time: float, text: str, tokens: int, *, last: bool = False, choice: int = 0
    ) -> None:
        self.time = time
        chunk = Chunk(text=text, token_ids=[1] * tokens, choice=choice)
        if last:
            chunk.finish, chunk.usage = STOP, Usage(completion_tokens=tokens)
        self.metrics.tokens(self.record, chunk, None)

    def read(self, name: str, **labels: str) -> tuple[float, float]:
        """(count, sum) of a histogram."""
        samples = own(self.metrics)
        count, total = (value(samples, f"{name}_{part}", **labels) for part in ("count", "sum"))
        return count, total


def test_time_to_first_token_is_from_arrival_to_the_first_delta_with_text() -> None:
    replay = Replay()
    replay.at(101, "", 1)  # half a character: nobody sees it
    replay.at(103, "é", 1)
    replay.at(107, "x", 1)
    assert replay.read("rtlang_time_to_first_token_seconds", route="/generate") == (1, 3.0)


def test_inter_token_latency_counts_a_gap_once_for_each_token_in_it() -> None:
    replay = Replay()
    replay.at(101, "a", 1)
    replay.at(102, "b", 1)  # one gap of 1 s
    replay.at(103, "", 1)
    replay.at(106, "cd", 1)  # 4 s, two tokens: two gaps of 2 s
    assert replay.read("rtlang_inter_token_latency_seconds", route="/generate") == (3, 5.0)


def test_time_per_output_token_is_of_what_follows_the_first_delta() -> None:
    replay = Replay()
    replay.at(101, "a", 1)
    replay.at(102, "b", 1)
    replay.at(105, "c", 1)
    replay.at(107, "", 1, last=True)  # end of sequence
    assert replay.read("rtlang_time_per_output_token_seconds", route="/generate") == (1, 2.0)


def test_a_single_token_has_no_time_per_output_token() -> None:
    replay = Replay()
    replay.at(101, "a", 1, last=True)
    assert replay.read("rtlang_time_per_output_token_seconds", route="/generate") == (0, 0.0)
    assert replay.read("rtlang_time_to_first_token_seconds", route="/generate") == (1, 1.0)


def test_siblings_have_gaps_of_their_own_and_one_first_delta() -> None:
    replay = Replay(num_sequences=2)
    for start, choice in ((101, 0), (102, 1)):
        replay.at(start, "a", 1, choice=choice)
        replay.at(start + 4, "b", 1, choice=choice, last=True)
    assert replay.read("rtlang_time_to_first_token_seconds", route="/generate") == (1, 1.0)
    assert replay.read("rtlang_inter_token_latency_seconds", route="/generate") == (2, 8.0)
    assert replay.read("rtlang_time_per_output_token_seconds", route="/generate") == (2, 8.0)


def test_a_call_that_is_not_streamed_has_no_times_of_deltas() -> None:
    replay = Replay(stream=False)
    replay.at(105, "all of it", 9, last=True)
    assert replay.read("rtlang_time_to_first_token_seconds", route="/generate") == (0, 0.0)


def test_stages_and_duration_are_read_when_a_call_ends() -> None:
    replay = Replay()
    replay.record.finished = 109.0
    replay.record.timings = [
        Timings(compiling_s=1, queued_s=2, prefill_s=3, decode_s=4, first_token_s=6)
    ]
    replay.metrics.ended(replay.record)
    assert replay.read("rtlang_request_duration_seconds", route="/generate") == (1, 9.0)
    assert replay.read("rtlang_queue_time_seconds") == (1, 2.0)
    assert replay.read("rtlang_engine_first_token_seconds") == (1, 6.0)
    stages = {
        stage: replay.read("rtlang_stage_time_seconds", stage=stage)
        for stage in ("prepare", "compile", "prefill", "decode")
    }
    assert stages == {
        "prepare": (1, 0.5), "compile": (1, 1), "prefill": (1, 3), "decode": (1, 4)
    }  # fmt: skip


def test_the_running_gauge_survives_calls_that_never_started_or_end_twice() -> None:
    metrics = make_metrics()
    first, second = call(), call()
    metrics.started(first)
    metrics.started(second)
    assert value(own(metrics), "rtlang_requests_running") == 2
    second.error = RequestAborted("left")
    for record in (first, second, second, call()):
        metrics.ended(record)
    samples = own(metrics)
    assert value(samples, "rtlang_requests_running") == 0
    aborted = value(samples, "rtlang_requests_total", route="/generate", outcome="aborted")
    assert aborted == 2


# -- times by the scheduler's clock ---------------------------------------------------------


def test_stages_of_a_request_add_up_to_its_whole_time() -> None:
    clock = StageClock()
    clock.arrive(10.0, compiling=True)
    clock.queue(11.0)
    clock.prefill(13.0)
    clock.token(16.0)
    clock.queue(20.0)  # retracted
    clock.prefill(25.0)
    clock.token(31.0)
    found = clock.read(40.0)
    expected = Timings(compiling_s=1, queued_s=7, prefill_s=9, decode_s=13, first_token_s=6)
    assert found == expected
    assert found.total_s == 30.0


def test_a_token_that_is_forced_in_the_queue_is_the_first_one_and_leaves_it_there() -> None:
    clock = StageClock()
    clock.arrive(10.0, compiling=True)
    clock.queue(12.0)
    clock.token(12.0)
    clock.prefill(15.0)
    clock.token(16.0)
    expected = Timings(compiling_s=2, queued_s=3, prefill_s=1, decode_s=4, first_token_s=2)
    assert clock.read(20.0) == expected


def timings_of(chunks: list[Chunk]) -> Timings:
    found = [chunk.timings for chunk in chunks if chunk.timings is not None]
    assert len(found) == 1 and chunks[-1].timings is found[0]
    return found[0]


def test_the_last_chunk_tells_how_long_each_stage_was(make_engine: MakeEngine) -> None:
    step = 0.01
    model = ScriptedModel(lambda _: "abcdefgh", step_s=step)
    engine = make_engine(model, max_running_requests=1)
    params = {"max_new_tokens": 8}
    start = time.monotonic()
    first = engine.generate("first", params, stream=True)
    second = engine.generate("second", params, stream=True)
    one, two = timings_of(list(first)), timings_of(list(second))
    spent = time.monotonic() - start
    for found in (one, two):
        assert found.prefill_s >= step and found.decode_s >= 7 * step
        assert found.first_token_s == pytest.approx(found.queued_s + found.prefill_s)
        assert found.compiling_s == 0 and found.total_s <= spent
    assert two.queued_s >= 7 * step > 0  # the first one had the only row
    nothing = timings_of(list(engine.generate("x", {"max_new_tokens": 0}, stream=True)))
    assert nothing.first_token_s is None and nothing.prefill_s >= step


def test_a_constraint_is_compiled_in_a_stage_of_its_own(make_engine: MakeEngine) -> None:
    engine = make_engine(ScriptedModel(lambda _: "12"))
    found = timings_of(list(engine.generate("x", {"regex": "[0-9]{2}"}, stream=True)))
    assert found.compiling_s > 0 and found.decode_s >= 0


def test_an_error_carries_the_times_so_far(make_engine: MakeEngine) -> None:
    engine = make_engine(ScriptedModel(lambda _: Reply(error=EngineError("broken"))))
    with pytest.raises(EngineError) as raised:
        engine.generate("x")
    assert raised.value.data["timings"].prefill_s > 0


# -- a server's ----------------------------------------------------------------------------


def test_h5_time_to_first_token_is_measured() -> None:
    step = 0.01
    with observed(ScriptedModel(lambda _: "abc", step_s=step)) as server:
        assert generate(server, "x", stream=True).status_code == 200
        server.wait_idle()
        samples = scraped(server)
    first = "rtlang_time_to_first_token_seconds"
    assert value(samples, f"{first}_count", route="/generate") == 1
    assert value(samples, f"{first}_sum", route="/generate") >= step
    assert value(samples, "rtlang_inter_token_latency_seconds_count", route="/generate") == 2
    assert value(samples, "rtlang_engine_first_token_seconds_sum") >= step


def test_h5_counters_never_decrease_and_gauges_return_to_zero() -> None:
    with observed(ScriptedModel(mixed_script, step_s=0.001)) as server:
        before = scraped(server)
        for _ in range(2):
            mixed_calls(server)
            after = scraped(server)
            fallen = {
                key: (before[key], after.get(key))
                for key in before
                if key[0].endswith(("_total", "_count", "_sum", "_bucket"))
                and after.get(key, 0.0) < before[key]
            }
            assert fallen == {}
            before = after
        assert value(after, "rtlang_requests_running") == 0
        states = {key: number for key, number in after.items() if key[0] == "rtlang_queue_requests"}
        assert len(states) == 5 and set(states.values()) == {0.0}
        kv = {dict(key[1])["state"]: n for key, n in after.items() if key[0] == "rtlang_kv_tokens"}
        assert kv["locked"] == kv["private"] == 0
        assert kv["free"] + kv["evictable"] == value(after, "rtlang_kv_total_tokens")
        outcomes = {
            dict(key[1])["outcome"]: n
            for key, n in after.items()
            if key[0] == "rtlang_requests_total"
        }
        assert outcomes == {"ok": 6, "engine_error": 6, "deadline_exceeded": 2, "aborted": 4}


def test_h5_a_duplicate_id_moves_no_gauge() -> None:
    with observed(ScriptedModel(mixed_script, step_s=0.002)) as server:
        body: dict[str, Any] = {"text": "endless", "rid": "mine", "stream": True}
        body["sampling_params"] = {"max_new_tokens": 4000}
        with httpx.stream("POST", server.url + "/generate", json=body, timeout=30) as reply:
            lines = reply.iter_lines()
            next(lines)
            assert value(scraped(server), "rtlang_requests_running") == 1
            assert generate(server, "x", rid="mine").status_code == 400
            assert value(scraped(server), "rtlang_requests_running") == 1
        server.wait_idle()
        samples = scraped(server)
        assert value(samples, "rtlang_requests_running") == 0
        assert value(samples, "rtlang_http_responses_total", route="/generate", status="400") == 1


def test_h5_a_bug_in_metrics_fails_no_request(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with observed(ScriptedModel(mixed_script)) as server:
        observability = server.state.observability
        assert observability is not None
        for name in ("ttft", "requests", "responses", "running"):
            monkeypatch.setattr(observability.metrics, name, None)
        for _ in range(3):
            assert generate(server, "x").json()["text"] == "fine answer"
            assert generate(server, "x", stream=True).text.endswith("data: [DONE]\n\n")
    broken = [record for record in caplog.records if record.exc_info]
    assert len(broken) == 4, [record.message for record in broken]  # each place once


def test_a_negative_delta_is_refused_and_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    state = make_state()
    close = attach_observability(state)
    record = call(sent=99.0, timings=[Timings(decode_s=-1.0)])
    with caplog.at_level(logging.ERROR):
        state.tell("ended", record)
    assert state.observability is not None
    with pytest.raises(ValueError, match="non-negative"):
        state.observability.metrics.usage_lost.inc(-1)
    close()


def test_a_scrape_answers_while_the_scheduler_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    with observed(ScriptedModel(mixed_script)) as server:
        generate(server, "x")
        server.wait_idle()
        assert value(scraped(server), "rtlang_up") == 1

        def silent(timeout: float | None = None) -> dict[str, Any]:
            assert timeout is not None and timeout > 0
            raise DeadlineExceeded("no answer")

        with monkeypatch.context() as patch:
            patch.setattr(server.engine, "stats", silent)
            samples = scraped(server)
        assert samples["rtlang_up", ()] == 0
        assert value(samples, "rtlang_requests_total", route="/generate", outcome="ok") == 1
        assert not any(name.startswith("rtlang_kv") for name, _ in samples)
        assert value(scraped(server), "rtlang_up") == 1


async def _scrape_while_loading() -> Samples:
    state = make_state()
    close = attach_observability(state)
    transport = httpx.ASGITransport(create_app(state))
    async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
        reply = await client.get("/metrics")
    close()
    assert reply.status_code == 200
    return parse(reply.text)


def test_a_scrape_answers_while_the_model_is_loaded() -> None:
    assert asyncio.run(_scrape_while_loading())["rtlang_up", ()] == 0


def test_answers_are_counted_by_path_and_status() -> None:
    with observed(ScriptedModel(mixed_script)) as server:
        generate(server, "x")
        generate(server, "x", nonsense=1)
        for path in ("/health", "/no/such/path", "/neither"):
            httpx.get(server.url + path)
        server.wait_idle()
        samples = scraped(server)
    counted = {
        (labels["route"], labels["status"]): number
        for key, number in samples.items()
        if key[0] == "rtlang_http_responses_total" and (labels := dict(key[1]))
    }
    assert counted == {
        ("/generate", "200"): 1, ("/generate", "400"): 1, ("/health", "200"): 1, ("other", "404"): 2
    }  # fmt: skip


def test_tokens_are_the_engine_s_own_counts() -> None:
    with observed(ScriptedModel(mixed_script, step_s=0.001)) as server:
        mixed_calls(server)
        stats, samples = server.engine.stats(), scraped(server)
    for name, key in {
        "prompt": "prompt_tokens", "cached": "cached_tokens", "computed": "computed_tokens",
        "generated": "completion_tokens", "forced": "forced_tokens",
        "recomputed": "recomputed_tokens",
    }.items():  # fmt: skip
        assert value(samples, f"rtlang_{name}_tokens_total") == stats[key]
    assert stats["cached_tokens"] > 0 and stats["completion_tokens"] > 0
    assert value(samples, "rtlang_steps_total", mode="decode") == stats["num_decode_steps"] > 0


def test_every_statistic_of_the_engine_is_a_metric(make_engine: MakeEngine) -> None:
    stats = make_engine(ScriptedModel(["a"])).stats()
    read = {key for metric in ENGINE_METRICS for key in metric.keys.values()}
    read |= {metric.table for metric in ENGINE_METRICS if metric.table}
    assert set(stats) - read - HIDDEN == set()


def test_a_scraper_may_ask_for_openmetrics() -> None:
    page, content_type = make_metrics(ask=lambda: {"num_requests": 3}).scrape(
        "application/openmetrics-text; version=1.0.0"
    )
    assert content_type.startswith("application/openmetrics-text")
    assert b"rtlang_engine_requests_total 3.0" in page and page.endswith(b"# EOF\n")


def test_statistics_of_a_gpu_become_metrics() -> None:
    stats = {
        "num_graph_replays": 7, "eager_steps[many prompt tokens]": 3, "eager_steps[x]": 1,
        "memory": {"weights": 10, "KV pool": 20}, "grammar_mask_us": 40.0,
    }  # fmt: skip
    samples = own(make_metrics(ask=lambda: stats))
    assert value(samples, "rtlang_graph_replays_total") == 7
    assert value(samples, "rtlang_graph_fallbacks_total", reason="many prompt tokens") == 3
    assert value(samples, "rtlang_graph_fallbacks_total", reason="x") == 1
    assert value(samples, "rtlang_gpu_memory_bytes", part="KV pool") == 20
    assert value(samples, "rtlang_grammar_mask_seconds") == pytest.approx(4e-5)


# -- several frontends ----------------------------------------------------------------------

ONE_FRONTEND = """
import sys
from rtlang.errors import EngineError
from rtlang.runtime.chunk import Chunk
from rtlang.runtime.server.metrics import make_metrics
from rtlang.runtime.server.record import CallRecord
metrics = make_metrics(sys.argv[1], ask=lambda: {"num_requests": 5})
for number in range(int(sys.argv[2])):
    record = CallRecord(request_id="x", route="/generate", key="", model="m", stream=True,
                        num_sequences=1, received=100.0, sent=100.0, finished=103.0)
    metrics.started(record)
    metrics._clock = lambda: 102.0
    metrics.tokens(record, Chunk(text="a", token_ids=[1]), None)
    if number:
        metrics.ended(record)
print(metrics.scrape("")[0].decode())
"""


def one_frontend(folder: Path, num_calls: int) -> Samples:
    env = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(folder)}
    command = [sys.executable, "-c", ONE_FRONTEND, str(folder), str(num_calls)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True, cwd=ROOT)
    return parse(done.stdout)


def test_counts_of_several_frontends_add_up_and_the_engine_s_stand_once(tmp_path: Path) -> None:
    one = one_frontend(tmp_path, 3)
    two = one_frontend(tmp_path, 4)
    ok = {"route": "/generate", "outcome": "ok"}
    assert value(one, "rtlang_requests_total", **ok) == 2
    assert value(two, "rtlang_requests_total", **ok) == 2 + 3
    first = "rtlang_time_to_first_token_seconds"
    assert value(two, f"{first}_count", route="/generate") == 3 + 4
    assert value(two, f"{first}_sum", route="/generate") == 14.0
    assert value(two, f"{first}_bucket", route="/generate", le="2.5") == 7
    assert value(two, "rtlang_requests_running") == 2
    assert value(two, "rtlang_engine_requests_total") == 5
    assert value(two, "rtlang_up") == 1


# -- the documentation ----------------------------------------------------------------------

ROW = re.compile(r"^\| `(rtlang_\w+)` \| (\w+) \| (.*?) \| (.*) \|$", re.MULTILINE)


def registered() -> list[Metric]:
    families = [f for f in make_metrics().registry.collect() if f.name != "rtlang_up"]
    return [*families, *(metric.family({}) for metric in (UP, *ENGINE_METRICS))]


def name_of(family: Metric) -> str:
    return family.name + ("_total" if family.type == "counter" else "")


def labels_of(name: str) -> tuple[str, ...]:
    for metric in (UP, *ENGINE_METRICS):
        if metric.name == name:
            return (metric.label,) if metric.label else ()
    metrics = make_metrics()
    for found in vars(metrics).values():
        if getattr(found, "_name", None) == name.removesuffix("_total"):
            return tuple(found._labelnames)
    raise AssertionError(name)


def test_the_documentation_says_what_the_registry_says() -> None:
    described = {
        name: (kind, labels, text)
        for name, kind, labels, text in ROW.findall((ROOT / "docs" / "metrics.md").read_text())
    }
    expected = {}
    for family in registered():
        name = name_of(family)
        labels = ", ".join(f"`{label}`" for label in labels_of(name))
        expected[name] = (family.type, labels, family.documentation)
    assert described == expected


def test_every_expression_of_the_dashboard_names_metrics_that_exist() -> None:
    board = json.loads((ROOT / "docs" / "grafana.json").read_text())
    suffixes = {"histogram": ("_bucket", "_sum", "_count")}
    series = {
        name_of(f) + suffix: labels_of(name_of(f)) + (("le",) if suffix == "_bucket" else ())
        for f in registered()
        for suffix in suffixes.get(f.type, ("",))
    }
    expressions = [
        target["expr"] for panel in board["panels"] for target in panel.get("targets", ())
    ]
    assert len(expressions) > 20 and len(board["panels"]) > 10
    used = {name for text in expressions for name in re.findall(r"\brtlang_\w+", text)}
    assert used - set(series) == set()
    for text in expressions:
        by = {label for group in re.findall(r"by \(([^)]*)\)", text) for label in group.split(", ")}
        known = {label for name in re.findall(r"\brtlang_\w+", text) for label in series[name]}
        assert by <= known | {"instance"}, text
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids))
