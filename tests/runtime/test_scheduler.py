"""The scheduler as a simulator: no model, no torch, a clock that the test moves."""

from __future__ import annotations

import subprocess
import sys
from array import array
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtlang.runtime.batch import Batch, BatchResult
from rtlang.runtime.config import EngineConfig
from rtlang.runtime.messages import Failed, Outputs
from rtlang.runtime.req import Req
from rtlang.runtime.sampling_params import SamplingParams
from rtlang.runtime.scheduler import Scheduler

Token = Callable[[Req], int]


class Sim:
    """Drives a scheduler; the "model" answers with a function of the request alone."""

    def __init__(
        self, num_slots: int = 512, width: int = 256, *, overlap: bool = False, **config: Any
    ) -> None:
        """``overlap``: a step is planned before the one before it is committed."""
        self.now = 0.0
        self.config = EngineConfig(debug=True, **config).resolve("cpu")
        self.scheduler = Scheduler(
            self.config, num_slots=num_slots, width=width, clock=lambda: self.now
        )
        self.outputs: dict[str, list[int]] = {}
        self.ended: dict[str, str] = {}
        self.usages: dict[str, Any] = {}
        self.batches: list[Batch] = []
        self.computed: list[list[tuple[str, int]]] = []  # per step: (rid, tokens)
        self.overlap = overlap
        self.inflight: tuple[Batch, BatchResult] | None = None

    def add(self, rid: str, prompt: list[int], new: int = 8, **fields: Any) -> None:
        params = SamplingParams(max_new_tokens=new).resolve()
        limit = min(len(prompt) + new, self.scheduler.limit_len)
        req = Req(rid, b"c", array("i", prompt), len(prompt), params, 0, limit, **fields)
        self.scheduler.add(req)

    def step(self) -> Batch | None:
        batch = self.scheduler.next_batch()
        if batch is not None:
            assert batch.num_tokens <= (self.config.chunked_prefill_size or 0)
            self.batches.append(batch)
            self.computed.append(
                [(r.rid, int(n)) for r, n in zip(batch.reqs, batch.extend_lens, strict=True)]
            )
        self.land()
        if batch is not None:
            self.inflight = batch, self.result(batch)
            if not self.overlap:
                self.land()
        self.scheduler.check()
        self.collect()
        return batch

    def result(self, batch: Batch) -> BatchResult:
        """What the "model" answers; it leaves the ids in the row tables, as an executor does."""
        rows, lens = batch.rows[batch.sample_rows], batch.seq_lens[batch.sample_rows]
        tables = batch.pool.token_ids
        ids = [token_after(tables[r, :n].tolist()) for r, n in zip(rows, lens, strict=True)]
        tables[rows, lens] = ids
        return BatchResult(np.array(ids, np.int32))

    def land(self) -> None:
        if self.inflight is not None:
            (batch, result), self.inflight = self.inflight, None
            self.scheduler.commit(batch, result)

    def collect(self) -> None:
        for _, response in self.scheduler.outbox.take():
            if isinstance(response, Failed):
                self.ended[response.rid], self.usages[response.rid] = response.code, response.usage
            elif isinstance(response, Outputs):
                for output in response.outputs:
                    self.outputs.setdefault(output.rid, []).extend(output.ids)
                    if output.finish is not None:
                        self.ended[output.rid] = output.finish.type
                        self.usages[output.rid] = output.usage

    def run(self, limit: int = 5000) -> None:
        for _ in range(limit):
            if not self.scheduler.has_work:
                self.land()
                self.scheduler.check()
                self.collect()
                return
            self.step()
        raise AssertionError(f"not done after {limit} steps: {self.scheduler.counts()}")


def token_of(req: Req) -> int:
    """A function of the request's own ids: the same whatever else runs."""
    return token_after(req.ids.tolist())


def token_after(ids: list[int]) -> int:
    return (sum(ids) * 31 + len(ids)) % 50


def alone(prompt: list[int], new: int) -> list[int]:
    ids = list(prompt)
    for _ in range(new):
        ids.append((sum(ids) * 31 + len(ids)) % 50)
    return ids[len(prompt) :]


def test_the_scheduler_needs_no_torch() -> None:
    code = (
        "import sys, rtlang.runtime.scheduler; "
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("policy", ["fcfs", "lpm", "priority"])
@pytest.mark.parametrize("mixed", [True, False])
@pytest.mark.parametrize("overlap", [True, False])
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_every_request_ends_once_with_its_own_tokens_under_random_load(
    page_size: int, policy: str, mixed: bool, overlap: bool, data: st.DataObject
) -> None:
    sim = Sim(
        num_slots=160, width=128, overlap=overlap, page_size=page_size, schedule_policy=policy,
        enable_mixed_chunk=mixed, max_running_requests=6, chunked_prefill_size=24,
        radix_eviction_policy=data.draw(st.sampled_from(["lru", "lfu", "slru"])),
        disable_radix_cache=data.draw(st.booleans()),
    )  # fmt: skip
    prompts: dict[str, tuple[list[int], int]] = {}
    aborted: set[str] = set()
    for i in range(data.draw(st.integers(3, 14))):
        base = data.draw(st.sampled_from([[1] * 40, [1] * 20 + [2] * 30, [3] * 5]))
        prompt = [*base[: data.draw(st.integers(1, len(base)))], data.draw(st.integers(0, 3))]
        prompts[str(i)] = (prompt, data.draw(st.integers(1, 40)))
        sim.add(str(i), prompt, prompts[str(i)][1], priority=data.draw(st.integers(0, 2)))
        for _ in range(data.draw(st.integers(0, 4))):
            sim.step()
        if data.draw(st.integers(0, 5)) == 0:
            victim = data.draw(st.sampled_from(sorted(prompts)))
            sim.scheduler.abort(b"c", victim)
            aborted.add(victim)
            sim.scheduler.check()
    sim.run()
    for rid, (prompt, new) in prompts.items():
        if sim.ended[rid] == "aborted":
            assert rid in aborted
            continue
        assert sim.outputs[rid] == alone(prompt, min(new, 128 - len(prompt))), rid
        usage = sim.usages[rid]
        assert usage.cached_tokens + usage.computed_tokens == len(prompt), (rid, usage)
    assert set(sim.ended) == set(prompts)
    stats = sim.scheduler
    assert stats.kv.available_len == stats.allocator.total_len
    assert stats.counters.prompt_tokens == sum(
        u.cached_tokens + u.computed_tokens for u in sim.usages.values()
    )


def test_b5_a_stream_gets_a_token_in_every_step_while_long_prompts_arrive() -> None:
    sim = Sim(num_slots=8192, width=4096, chunked_prefill_size=256)
    sim.add("stream", [1] * 10, 200)
    sim.step()
    for i in range(6):
        sim.add(f"long{i}", [2 + i] * 3000, 1)
        before = len(sim.outputs.get("stream", []))
        for _ in range(12):
            sim.step()
        assert len(sim.outputs["stream"]) - before == 12


def test_b5_without_mixed_steps_prefill_only_steps_are_few_in_a_row() -> None:
    sim = Sim(num_slots=8192, width=4096, chunked_prefill_size=256, enable_mixed_chunk=False)
    sim.add("stream", [1] * 10, 50)
    sim.step()
    sim.add("long", [2] * 3000, 1)
    got = []
    for _ in range(12):
        sim.step()
        got.append(len(sim.outputs["stream"]))
    streaks = [b - a for a, b in zip(got, got[3:], strict=False)]
    assert min(streaks) >= 1, got


def test_b5_a_newcomer_passes_a_long_prompt_that_is_being_computed() -> None:
    sim = Sim(num_slots=8192, width=4096, chunked_prefill_size=256)
    sim.add("long", [2] * 3000, 1)
    sim.step()
    sim.add("short", [3] * 10, 1)
    sim.step()
    assert sim.ended.get("short") == "length"
    assert "long" not in sim.ended


def test_rows_of_one_step_share_a_prefix_at_once() -> None:
    sim = Sim(num_slots=2048, width=512)
    for i in range(4):
        sim.add(str(i), [7] * 200 + [i], 2)
    sim.step()
    assert sorted(n for _, n in sim.computed[0]) == [1, 1, 1, 201]


def test_a_twin_waits_while_more_than_32_shared_tokens_are_being_computed() -> None:
    sim = Sim(num_slots=2048, width=512, chunked_prefill_size=64)
    sim.add("first", [7] * 200 + [1], 2)
    sim.step()
    sim.add("twin", [7] * 200 + [2], 2)
    sim.run()
    # At most 32 shared tokens are not worth waiting for; whoever has them first shares them.
    assert sim.usages["twin"].computed_tokens <= 1 + 32
    assert sim.usages["first"].computed_tokens + sim.usages["twin"].computed_tokens == 202


def test_the_next_twin_takes_over_when_the_first_is_aborted() -> None:
    sim = Sim(num_slots=2048, width=512, chunked_prefill_size=64)
    sim.add("first", [7] * 200 + [1], 2)
    sim.step()
    sim.add("twin", [7] * 200 + [2], 2)
    sim.add("third", [7] * 200 + [3], 2)
    sim.step()
    sim.scheduler.abort(b"c", "first")
    sim.run()
    assert sim.usages["twin"].cached_tokens >= 64
    computed = [sim.usages[r].computed_tokens for r in ("first", "twin", "third")]
    assert 202 <= sum(computed) <= 202 + 2 * 32


def test_lpm_prefers_hits_but_ages_the_others() -> None:
    sim = Sim(num_slots=4096, width=512, max_running_requests=1)
    sim.add("seed", [1] * 300, 1)
    sim.run()
    sim.add("cold", [2] * 100, 1)
    sim.add("hit", [1] * 300 + [5], 1)
    order: list[str] = []
    for i in range(40):
        sim.add(f"hit{i}", [1] * 300 + [6, i], 1)
        sim.step()
        order += [rid for rid, _ in sim.computed[-1]]
    assert order[0] == "hit"
    assert "cold" in order, "a request without a hit starved"


def test_larger_priority_is_admitted_first_and_preempts_with_the_priority_policy() -> None:
    sim = Sim(num_slots=256, width=200, max_running_requests=1, schedule_policy="priority")
    sim.add("low", [1] * 20, 60)
    sim.step()
    sim.add("high", [2] * 20, 5, priority=5)
    sim.run()
    assert list(sim.ended) == ["high", "low"]
    assert sim.usages["low"].num_retractions >= 1
    assert sim.outputs["low"] == alone([1] * 20, 60)


def test_b7_a_retraction_is_counted_in_pages_and_cannot_be_seen() -> None:
    sim = Sim(num_slots=192, width=128, page_size=16, max_running_requests=10)
    prompts = {str(i): [i + 1] * 15 for i in range(10)}
    for rid, prompt in prompts.items():
        sim.add(rid, prompt, 30)
    sim.run()
    assert sim.scheduler.counters.num_retractions > 0
    for rid, prompt in prompts.items():
        assert sim.outputs[rid] == alone(prompt, 30)
        usage = sim.usages[rid]
        assert usage.cached_tokens + usage.computed_tokens == len(prompt)


def test_b2_the_last_one_standing_ends_with_length_at_the_pool_s_end() -> None:
    sim = Sim(num_slots=64, width=256)
    sim.add("greedy", [1] * 20, 200)
    sim.run()
    assert sim.ended["greedy"] == "length"
    assert len(sim.outputs["greedy"]) == 44
    sim.add("next", [2] * 20, 4)
    sim.run()
    assert sim.outputs["next"] == alone([2] * 20, 4)


@pytest.mark.parametrize("steps", range(6))
def test_b4_abort_after_each_chunk_inside_a_page(steps: int) -> None:
    sim = Sim(num_slots=256, width=128, page_size=16, chunked_prefill_size=24)
    sim.add("victim", [1] * 100, 5)
    sim.add("other", [2] * 30, 5)
    for _ in range(steps):
        sim.step()
    sim.scheduler.abort(b"c", "victim")
    sim.scheduler.check()
    sim.run()
    assert sim.outputs["other"] == alone([2] * 30, 5)
    assert sim.scheduler.kv.available_len == 256


def test_deadlines_end_waiting_and_running_requests() -> None:
    sim = Sim(num_slots=256, width=128, max_running_requests=1)
    sim.add("running", [1] * 10, 100, deadline=5.0)
    sim.add("waiting", [2] * 10, 5, deadline=3.0)
    sim.step()
    sim.now = 4.0
    sim.step()
    assert sim.ended == {"waiting": "deadline_exceeded"}
    sim.now = 6.0
    sim.step()
    assert sim.ended["running"] == "deadline_exceeded"
    assert not sim.scheduler.has_work


def test_a_full_queue_refuses_at_once() -> None:
    sim = Sim(max_running_requests=1, max_queued_requests=2)
    for i in range(4):
        sim.add(str(i), [i + 1] * 5, 3)
    sim.run()
    assert [r for r, code in sim.ended.items() if code == "queue_full"] == ["2", "3"]


def test_each_request_is_in_exactly_one_state() -> None:
    sim = Sim(num_slots=1024, width=512, max_running_requests=2, chunked_prefill_size=64)
    for i in range(4):
        sim.add(str(i), [i + 1] * 150, 5)
    seen: set[str] = set()
    while sim.scheduler.has_work:
        sim.step()
        counts = sim.scheduler.counts()
        assert sum(counts.values()) + len(sim.ended) == 4
        seen |= {state for state, n in counts.items() if n}
    assert {"waiting", "prefill", "running"} <= seen


# -- announced forks ------------------------------------------------------------------------


def announce(sim: Sim, prompt: list[int], branches: int) -> None:
    sim.add("announcement", prompt, 0, fork_id="f", announce=branches)


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 0, 1]])
def test_an_announced_prefix_is_computed_once_and_held_until_the_branches_came(
    order: list[int],
) -> None:
    sim = Sim(num_slots=1024, width=512)
    announce(sim, [1] * 200, 3)
    for i in order:
        sim.add(str(i), [1] * 200 + [10 + i] * 5, 2, fork_id="f")
    sim.run()
    assert sim.usages["announcement"].computed_tokens == 200
    assert [sim.usages[str(i)].computed_tokens for i in range(3)] == [5, 5, 5]
    assert len(sim.scheduler.holds) == 0


def test_a_held_prefix_survives_pressure_and_closing_releases_it() -> None:
    sim = Sim(num_slots=400, width=300)
    announce(sim, [1] * 150, 2)
    sim.run()
    sim.add("pressure", [2] * 240, 2)
    sim.run()
    sim.add("0", [1] * 150 + [5], 2, fork_id="f")
    sim.run()
    assert sim.usages["0"].cached_tokens == 150
    assert sim.scheduler.cache.locked_len == 150
    sim.scheduler.holds.closed("f")
    assert sim.scheduler.cache.locked_len == 0


def test_holds_expire_and_give_way_to_running_requests() -> None:
    sim = Sim(num_slots=400, width=390, fork_hold_s=10.0)
    announce(sim, [1] * 150, 2)
    sim.run()
    sim.now = 11.0
    sim.step()
    assert len(sim.scheduler.holds) == 0
    announce(sim, [3] * 150, 2)
    sim.run()
    sim.add("big", [2] * 380, 4)
    sim.run()
    assert sim.ended["big"] == "length"
    assert len(sim.scheduler.holds) == 0


def test_holds_are_capped_by_their_share_of_the_pool() -> None:
    sim = Sim(num_slots=400, width=300, fork_hold_fraction=0.25)
    announce(sim, [1] * 150, 2)
    sim.run()
    assert sim.scheduler.cache.locked_len == 0
    assert sim.scheduler.cache.evictable_len == 150


def test_aborting_an_announcement_frees_its_branches() -> None:
    sim = Sim(num_slots=1024, width=512, chunked_prefill_size=64)
    announce(sim, [1] * 200, 1)
    sim.add("0", [1] * 200 + [5], 2, fork_id="f")
    sim.step()
    sim.scheduler.abort(b"c", "announcement")
    sim.run()
    assert sim.ended["0"] == "length"
    assert sim.outputs["0"] == alone([1] * 200 + [5], 2)


def test_a_failed_step_loses_its_requests_and_their_kv_only() -> None:
    sim = Sim(num_slots=1024, width=512, enable_mixed_chunk=False)
    sim.add("old", [1] * 50, 20)
    sim.step()
    sim.add("new", [2] * 50, 20)
    batch = sim.scheduler.next_batch()
    assert batch is not None and [r.rid for r in batch.reqs] == ["new"]
    sim.scheduler.fail_batch(batch, "engine_error", "boom")
    sim.scheduler.check()
    sim.run()
    assert sim.ended["new"] == "engine_error"
    assert sim.outputs["old"] == alone([1] * 50, 20)
    sim.add("again", [2] * 50, 3)
    sim.run()
    assert sim.usages["again"].cached_tokens == 0


def test_a_row_in_error_keeps_its_kv_out_of_the_tree() -> None:
    sim = Sim(num_slots=1024, width=512)
    sim.add("bad", [2] * 50, 20)
    batch = sim.scheduler.next_batch()
    assert batch is not None
    result = BatchResult(np.zeros(1, np.int32), errors={0: ("numerical_error", "NaN")})
    sim.scheduler.commit(batch, result)
    assert sim.scheduler.cache.total_len == 0
    sim.scheduler.check()
