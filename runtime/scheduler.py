"""Scheduler: decides what each step runs. Plain Python on ints and numpy; touches no device.

``add`` / ``abort`` any time between steps; ``next_batch`` plans a step and takes its slots;
``commit`` takes the step's result. A step may be planned while the one before it is still in
flight: its rows' newest tokens then have a place, and no id yet. Every request ends exactly once,
in ``_end``; what it holds is released when no step in flight has it any more.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from rtlang.errors import EngineError, GrammarDesync, RtlangError
from rtlang.grammar.matcher import Matcher
from rtlang.runtime.batch import Batch, BatchResult, Int32s
from rtlang.runtime.batch_maker import BatchMaker
from rtlang.runtime.config import EngineConfig
from rtlang.runtime.counters import Counters
from rtlang.runtime.deadlines import Deadlines
from rtlang.runtime.forks import ForkHolds
from rtlang.runtime.mem.kv_manager import KVManager
from rtlang.runtime.mem.radix_cache import RadixCache
from rtlang.runtime.mem.rows import ReqToTokenPool
from rtlang.runtime.mem.slots import SlotAllocator
from rtlang.runtime.messages import FinishReason, TokenLogprobs
from rtlang.runtime.outbox import Outbox
from rtlang.runtime.policy import order_waiting
from rtlang.runtime.req import Req, ReqState

#: A request waits for another that computes the same prefix only if it saves more tokens.
TWIN_TOKENS = 32
#: Prompts that may be partly computed at once: one long one, and one that came after it.
MAX_PARTIAL = 2
#: Prefill-only steps in a row while something decodes (without mixed steps).
MAX_PREFILL_STREAK = 2
#: Expected share of a running request's remaining length: falls while nothing is retracted.
RATIO_START, RATIO_FLOOR, RATIO_DECAY, RATIO_CLIP = 0.4, 0.05, 0.995, 4096
_NO_ROWS = np.zeros(0, np.int32)


class Scheduler:
    """Continuous batching over one KV pool. Not thread-safe: one loop owns it."""

    def __init__(
        self,
        config: EngineConfig,
        *,
        num_slots: int,
        width: int,
        clock: Callable[[], float] = time.monotonic,
        jump: Callable[[Req], list[int]] = lambda req: [],
    ) -> None:
        """``num_slots``: size of the KV pool in tokens; ``width``: longest sequence in tokens;
        ``jump``: the tokens that a request's constraint forces next."""
        self.config = config = config.resolve("cpu")
        self.clock = clock
        assert config.max_running_requests is not None and config.chunked_prefill_size is not None
        self._budget: int = config.chunked_prefill_size  # tokens of a step
        self.max_rows = min(config.max_running_requests, self._budget)
        self.pool = ReqToTokenPool(self.max_rows, width + config.page_size)
        self.allocator = SlotAllocator(num_slots, config.page_size, debug=config.debug)
        self.cache = RadixCache(
            self.allocator,
            policy=config.radix_eviction_policy,
            enabled=not config.disable_radix_cache,
        )
        self.kv = KVManager(self.allocator, self.cache, self.pool)
        held = int(config.fork_hold_fraction * self.allocator.total_len)
        self._maker = BatchMaker(self.pool)
        self.holds = ForkHolds(self.cache, max_held_len=held, hold_s=config.fork_hold_s)
        self.counters = Counters()
        self.outbox = Outbox()
        self._jump = jump
        self.compiling: list[Req] = []
        self.waiting: list[Req] = []
        self.prefilling: list[Req] = []
        self.running: list[Req] = []
        self._reqs: dict[tuple[bytes, str], Req] = {}
        self._deadlines = Deadlines()
        self._now = clock()  # of the last commit
        self.num_inflight = 0  # steps planned and not committed
        self._preempted: list[Req] = []  # to be retracted before the next step is planned
        self._ending: dict[Req, bool] = {}  # ended while in flight -> whether to publish it
        self._rows = np.zeros(0, np.int32)  # of ``running``, in order
        self._rows_stale = False
        self._arrivals = 0
        self._prefill_streak = 0
        self._new_token_ratio = RATIO_START

    # -- requests come and go ---------------------------------------------------------------

    @property
    def limit_len(self) -> int:
        """Longest sequence that can ever run: the context or the pool, whichever is smaller."""
        return min(self.pool.width - self.config.page_size, self.allocator.total_len)

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or self.prefilling or self.running)

    def counts(self) -> dict[str, int]:
        """Requests in each state (``finished`` ones are gone)."""
        retracted = sum(req.state is ReqState.RETRACTED for req in self.waiting)
        return {
            "compiling": len(self.compiling),
            "waiting": len(self.waiting) - retracted,
            "retracted": retracted,
            "prefill": len(self.prefilling),
            "running": len(self.running),
        }

    def add(self, req: Req) -> None:
        """Queue a request; one that the queue has no room for fails at once. One whose constraint
        is being compiled (``ReqState.COMPILING``) is in no queue until ``compiled``."""
        key = (req.client, req.rid)
        assert key not in self._reqs, f"{req.rid} is running already"
        assert 0 < len(req.ids) <= self.limit_len, (len(req.ids), self.limit_len)
        self.counters.num_requests += 1
        self.counters.num_announced += bool(req.announce)
        self._arrivals += 1
        req.arrive(self._arrivals, self.counters.num_steps, self.clock())
        self._reqs[key] = req
        limit = self.config.max_queued_requests
        if limit is not None and len(self.waiting) + len(self.compiling) >= limit:
            self._fail(req, "queue_full", f"{limit} requests are waiting already")
            return
        if req.announce:
            self.holds.announce(req)
        self._deadlines.add(req)
        (self.compiling if req.state is ReqState.COMPILING else self.waiting).append(req)

    def compiled(self, req: Req, matcher: Matcher) -> None:
        """The request's constraint is ready, if the request still wants it."""
        if req.state is ReqState.COMPILING:
            self.compiling.remove(req)
            req.matcher, req.state, self._now = matcher, ReqState.WAITING, self.clock()
            req.clock.queue(self._now)
            self.waiting.append(req)
            if req.jumps:
                self._append_forced(req)

    def abort(self, client: bytes, rid: str) -> None:
        """End a request now, wherever it is; unknown ids are ignored (it may have just ended)."""
        req = self._reqs.get((client, rid))
        if req is not None:
            self.counters.num_aborted += 1
            self._fail(req, "aborted", "the request was aborted")

    def drop_client(self, client: bytes) -> None:
        """A client is gone: abort all its requests and release its forks."""
        for key in [k for k in self._reqs if k[0] == client]:
            self.abort(*key)
        self.holds.drop_client(client)
        self.outbox.drop_client(client)

    def flush(self) -> None:
        """Forget every cached prefix. The caller has checked that nothing runs or waits."""
        assert not self.has_work
        while self.holds.drop_oldest():
            pass
        self.cache.reset()

    def next_deadline(self) -> float | None:
        """When something must happen even if no message comes, on the scheduler's clock."""
        times = [t for t in (self.holds.next_expiry(), self._deadlines.first()) if t is not None]
        return min(times, default=None)

    # -- planning ---------------------------------------------------------------------------

    def next_batch(self) -> Batch | None:
        """Plan one step, or None when there is nothing to compute now, or nothing before the
        steps in flight (``num_inflight``) are committed."""
        self.expire()
        if not self._retract_preempted():
            return None
        chunks = self._plan_prefill_only() if not self.config.enable_mixed_chunk else None
        if chunks:
            return self._make_batch([], _NO_ROWS, chunks)
        decoding = self._make_room_for_decode()
        if decoding is None:
            return None
        decode, rows = decoding
        if self.num_inflight and not (self.waiting or self.prefilling) and _all_may_jump(decode):
            return None
        if decode:
            self.kv.extend_decode(decode, rows)
        if chunks is None:
            chunks = self._plan_prefill(self._budget - len(decode))
        if not decode and not chunks:
            return None
        return self._make_batch(decode, rows, chunks)

    def _decoding(self) -> tuple[list[Req], Int32s]:
        """Who computes its last token in the next step: not those that end with the step in
        flight, as far as that is known beforehand."""
        rows = self._running_rows()
        going = self.pool.lens[rows] < self.pool.limit_lens[rows]
        if going.all():
            return self.running, rows
        reqs = [self.running[i] for i in np.flatnonzero(going).tolist()]
        return reqs, rows[going]

    def _plan_prefill_only(self) -> list[tuple[Req, int]]:
        """Chunks for a step without decode rows; none when it is the decode rows' turn."""
        if self.running and self._prefill_streak >= MAX_PREFILL_STREAK:
            self._prefill_streak = 0
            return []
        chunks = self._plan_prefill(self._budget)
        self._prefill_streak = self._prefill_streak + 1 if chunks else 0
        return chunks

    def _plan_prefill(self, budget: int) -> list[tuple[Req, int]]:
        """(request, tokens) of this step's chunks. Newcomers get at least half of the budget, so
        that a long prompt does not hold them up; what they leave goes to the long one."""
        chunks: list[tuple[Req, int]] = []
        started = list(self.prefilling)
        pending = sum(req.extend_len for req in started)
        left = budget - self._admit(budget - min(pending, budget // 2), chunks)
        for req in started:
            launched = req.num_inflight and req.computed_len == len(req.ids)
            if req.state is ReqState.PREFILL and left > 0 and not launched:
                left -= self._plan_chunk(req, left, chunks)
        if not chunks and not self.running and self.prefilling and not self.num_inflight:
            self._free_stuck_prefill()
        return chunks

    def _admit(self, budget: int, chunks: list[tuple[Req, int]]) -> int:
        """Move waiting requests into rows, in the policy's order; returns tokens planned."""
        if not self.waiting or budget <= 0:
            return 0
        planned = 0
        order = order_waiting(
            self.waiting,
            self.config.schedule_policy,
            self.counters.num_steps,
            self.cache.version,
            lambda req: self.cache.peek_len(req.ids, req.namespace, limit=self.kv.hit_limit(req)),
        )
        for req in order:
            if planned >= budget:
                break
            if req.state is ReqState.FINISHED or self._waits_for_other(req):
                continue
            if not self._take_row(req):
                break  # nobody overtakes who needs the memory first
            if req.extend_len > budget - planned and len(self.prefilling) >= MAX_PARTIAL:
                self.kv.release(req)
                continue
            self._start(req)
            planned += self._plan_chunk(req, budget - planned, chunks)
        self.waiting = [r for r in self.waiting if r.row < 0 and r.state is not ReqState.FINISHED]
        return planned

    def _waits_for_other(self, req: Req) -> bool:
        """Whether someone is computing a prefix that ``req`` would else compute a second time."""
        if self.holds.is_pending(req):
            return True
        if not self.cache.enabled:
            return False
        hit = -1
        for other in self.prefilling:
            if other.namespace != req.namespace or other.computed_len >= len(other.ids):
                continue
            limit = self.kv.hit_limit(req)
            shared = min(self.kv.shared_len(req.ids, other.ids), limit)
            if shared <= other.computed_len:
                continue
            if hit < 0:
                hit = self.cache.peek_len(req.ids, req.namespace, limit=limit)
            if shared - hit > TWIN_TOKENS:
                return True
        return False

    def _take_row(self, req: Req) -> bool:
        """Attach ``req`` if a row and enough memory are there, or can be had for it."""
        while True:
            if self.pool.num_free:
                self.kv.attach(req)
                need = self.kv.need(req, len(req.ids))
                if self.kv.available_len >= need + self._reserve(req):
                    return True
                self.kv.release(req)
                idle = not (self.running or self.prefilling or self.num_inflight)
                if idle and self.holds.drop_oldest():
                    continue
            self._preempt_for(req)
            return False

    def _reserve(self, req: Req) -> int:
        """Tokens to keep free: what started prompts still need, and expected growth."""
        if not (self.running or self.prefilling):
            return 0
        pending = sum(self.kv.need(r, len(r.ids)) for r in self.prefilling)
        growth = sum(min(r.limit_len - len(r.ids), RATIO_CLIP) for r in self.running)
        growth += min(req.limit_len - len(req.ids), RATIO_CLIP)
        return pending + int(growth * self._new_token_ratio)

    def _preempt_for(self, req: Req) -> None:
        """The least important request makes room before the next step. Not in this one: its next
        token may be planned already."""
        if self.config.schedule_policy == "priority":
            victim = self._victim()
            if victim is not None and victim.priority < req.priority:
                self._preempted.append(victim)

    def _retract_preempted(self) -> bool:
        """False: a step in flight must be read first."""
        victims = [r for r in self._preempted if r.state in (ReqState.RUNNING, ReqState.PREFILL)]
        if victims and self.num_inflight:
            return False
        for victim in victims:
            self._retract(victim)
        self._preempted = []
        return True

    def _start(self, req: Req) -> None:
        """``req`` has its row: account for its hit, tell its fork."""
        if req.state is ReqState.WAITING and req.fork_id and not req.announce:
            self.holds.closed(req.fork_id)
        req.start(self.clock())
        self.prefilling.append(req)

    def _plan_chunk(self, req: Req, budget: int, chunks: list[tuple[Req, int]]) -> int:
        skipped = self.kv.catch_up(req)
        if skipped:
            end = min(req.computed_len, req.prompt_len)
            req.usage.cached_tokens += max(0, end - max(req.high_water, end - skipped))
            req.high_water = max(req.high_water, req.computed_len)
        start = req.computed_len
        end = min(len(req.ids), start + budget)
        if start == len(req.ids):  # all of it is cached and nothing is sampled
            self._prompt_done(req)
            return 0
        if not self.kv.extend(req, end):
            return 0
        req.usage.recomputed_tokens += max(0, min(end, req.high_water) - start)
        fresh = max(start, req.high_water)
        req.usage.computed_tokens += max(0, min(end, req.prompt_len) - fresh)
        req.high_water = max(req.high_water, end)
        self.kv.publish(req)
        chunks.append((req, end - start))
        return end - start

    def _make_batch(
        self, decode: list[Req], decode_rows: Int32s, chunks: list[tuple[Req, int]]
    ) -> Batch:
        sampled: list[int] = []
        for i, (req, _) in enumerate(chunks, len(decode)):
            if req.computed_len == len(req.ids) and req.params.max_new_tokens != 0:
                sampled.append(i)
        batch = self._maker.make(decode, decode_rows, chunks, sampled)
        for i in sampled:
            self.prefilling.remove(batch.reqs[i])
            self._run(batch.reqs[i])
        self.counters.count_step(batch.mode, len(self.running) + len(self.prefilling))
        self._new_token_ratio = max(self._new_token_ratio * RATIO_DECAY, RATIO_FLOOR)
        self.num_inflight += 1
        return batch

    # -- memory pressure --------------------------------------------------------------------

    def _make_room_for_decode(self) -> tuple[list[Req], Int32s] | None:
        """Release holds, then retract, until every running request can compute one more token.
        Returns those of ``_decoding``; None: what is in flight must be read before anyone can be
        retracted."""
        while self.running:
            decode, rows = self._decoding()
            if self.kv.decode_need(rows) <= self.kv.available_len:
                return decode, rows
            if self.holds.drop_oldest():
                continue
            if self.num_inflight:
                return None
            victim = self._victim()
            assert victim is not None
            assert len(self.running) + len(self.prefilling) > 1, "one request must always fit"
            self._retract(victim)
        return [], _NO_ROWS

    def _free_stuck_prefill(self) -> None:
        """No started prompt can get its next slots: make room at the newest one's expense."""
        if self.holds.drop_oldest() or len(self.prefilling) < 2:
            return
        self._retract(max(self.prefilling, key=lambda r: (-r.priority, r.arrival)))

    def _victim(self) -> Req | None:
        """Who is retracted first: lowest priority, then the latest to arrive."""
        return max(
            [*self.running, *self.prefilling], key=lambda r: (-r.priority, r.arrival), default=None
        )

    def _retract(self, req: Req) -> None:
        """Take a request's memory away; it continues later as if nothing had happened."""
        if req.held_ids and req.hold_s > 0:
            self.outbox.send_held(req, self._now)
        self.kv.release(req)
        self._leave(req)
        req.retract(self.clock())
        self.counters.num_retractions += 1
        self._new_token_ratio = min(self._new_token_ratio + 0.2, 1.0)
        self.waiting.append(req)

    # -- results ----------------------------------------------------------------------------

    def commit(self, batch: Batch, result: BatchResult) -> None:
        """Take a step's result: append tokens, end what is finished, queue what clients see."""
        self._landed(batch)
        self._now = self.clock()
        for i, entries in result.prompt_logprobs.items():
            req = batch.reqs[i]
            req.pending_prompt_logprobs.extend(entries)
            req.logprob_from += len(entries)
        for i, (code, message) in result.errors.items():
            req = batch.reqs[i]
            if req.state is not ReqState.FINISHED and not req.knows_sample:
                self._fail(req, code, message, publish=False)
        for i in range(batch.num_decode, len(batch.reqs)):
            req = batch.reqs[i]
            if req.state is ReqState.PREFILL and batch.seq_lens[i] == len(req.ids):
                self._prompt_done(req)
        batch.store_ids(result)
        logprobs = result.logprobs
        for j, (i, token) in enumerate(
            zip(batch.sample_rows.tolist(), result.next_ids.tolist(), strict=True)
        ):
            req = batch.reqs[i]
            known, req.knows_sample = req.knows_sample, False
            if known or req.state is not ReqState.RUNNING:
                continue  # forced in the meantime; or ended or failed in this very step
            self._append(req, token, logprobs[j] if logprobs else None)
            if req.jumps and req.state is ReqState.RUNNING:
                self._append_forced(req)
        self._release_ended()
        if self.config.debug:
            self.check()

    def _append(self, req: Req, token: int, logprob: TokenLogprobs | None) -> None:
        """One more token: sampled, or forced by the request's constraint."""
        req.ids.append(token)
        self.counters.output_tokens += 1
        if req.clock.awaits_token:
            req.clock.token(self._now)
        try:
            if req.matcher is not None and not req.matcher.accept(token):
                raise GrammarDesync(f"token {token} at {req.output_len - 1} breaks the constraint")
            finish = req.finish_after(token)
        except EngineError as error:  # a stop regex that takes too long is its sender's, too
            self._fail(req, error.code, error.message)
            return
        if finish is not None:
            self._end(req, finish=finish)
        self.outbox.emit(req, [token], [logprob], self._now)

    def _append_forced(self, req: Req) -> None:
        """What can only follow is computed like a prompt, and sampled is what comes after it. A
        step in flight, which computes the token before it, may only sample its first token."""
        assert req.num_inflight <= 1 and not req.knows_sample, req
        assert req.matcher is not None
        start, forced = len(req.ids), self._jump(req)
        req.matcher.native.note_jump(bool(forced))
        for token in forced:
            if req.state is ReqState.FINISHED:
                return
            req.usage.forced_tokens += 1
            logprob = None if req.logprobs is None else TokenLogprobs(token, 0.0)
            self._append(req, token, logprob)
        if req.state is ReqState.RUNNING and len(req.ids) > start:
            self.kv.set_ids(req, start)
            req.knows_sample = req.num_inflight > 0
            self._leave(req)
            req.state = ReqState.PREFILL
            self.prefilling.append(req)

    def _landed(self, batch: Batch) -> None:
        """The step is no longer in flight."""
        self.num_inflight -= 1
        for req in batch.reqs:
            req.num_inflight -= 1

    def _release_ended(self) -> None:
        for req in [r for r in self._ending if not r.num_inflight]:
            self.kv.release(req, publish=self._ending.pop(req))

    def fail_batch(self, batch: Batch, code: str, message: str) -> None:
        """The step was lost: so are its requests, and what they had published of it."""
        self._landed(batch)
        for req in batch.reqs:
            if req.state is not ReqState.FINISHED:
                self._fail(req, code, message, publish=False)
        self._release_ended()
        # Whatever this step had put into the tree is unlocked now; the rest is collateral.
        self.cache.evict(self.cache.evictable_len)

    def fail_all(self, code: str, message: str) -> None:
        """A step could not be read, or not be sampled: what anyone's KV holds is unknown."""
        for req in [*self.running, *self.prefilling]:
            self._fail(req, code, message, publish=False)

    def forget(self) -> None:
        """Drop every prefix that nobody uses, and every announced one."""
        while self.holds.drop_oldest():
            pass
        self.cache.evict(self.cache.evictable_len)

    def _prompt_done(self, req: Req) -> None:
        """All of the prompt is computed (or cached) and nothing is sampled: end it."""
        assert req.params.max_new_tokens == 0, req
        if req.announce:
            self.holds.computed(req, self.clock())
        self._end(req, finish=FinishReason("length", None, "max_new_tokens"))
        self.outbox.emit(req, [], None, self.clock())

    def _run(self, req: Req) -> None:
        req.state = ReqState.RUNNING
        self.running.append(req)
        self._rows_stale = True

    def fail(self, req: Req, error: RtlangError) -> None:
        """End a request with an error of its own, unless it has ended."""
        if req.state is not ReqState.FINISHED:
            self._fail(req, error.code, error.message, data=error.data)

    def _fail(
        self, req: Req, code: str, message: str, *, data: Any = None, publish: bool = True
    ) -> None:
        if req.announce:
            self.holds.lost(req)
        self._end(req, failed=True, publish=publish)
        self.outbox.fail(req, code, message, data or {}, self.clock())

    def _end(
        self,
        req: Req,
        *,
        finish: FinishReason | None = None,
        failed: bool = False,
        publish: bool = True,
    ) -> None:
        """The one way out: release, leave all queues, count."""
        assert req.state is not ReqState.FINISHED, req
        queued = req.state in (ReqState.WAITING, ReqState.COMPILING)
        if queued and req.fork_id and not req.announce:
            self.holds.closed(req.fork_id)
        req.usage.completion_tokens = req.output_len
        if req.num_inflight:
            self._ending[req] = publish
        else:
            self.kv.release(req, publish=publish)
        self._leave(req)
        req.state, req.finish = ReqState.FINISHED, finish
        del self._reqs[req.client, req.rid]
        self.counters.count_end(req.usage, failed=failed)

    def _leave(self, req: Req) -> None:
        """Out of whichever list the request's state says."""
        if req.state is ReqState.RUNNING:
            if req in self.running:
                self.running.remove(req)
                self._rows_stale = True
        elif req.state is ReqState.PREFILL:
            self.prefilling.remove(req)
        else:
            queue = self.compiling if req.state is ReqState.COMPILING else self.waiting
            if req in queue:  # not if there was no room for it
                queue.remove(req)

    # -- helpers ----------------------------------------------------------------------------

    def check(self) -> None:
        """The memory law, and that each request is in exactly one list. For tests and debug."""
        self.kv.check()
        rows = {*self.running, *self.prefilling, *self._ending}
        assert rows == self.kv.reqs, "a row without a state that owns it"
        lists = (self.compiling, self.waiting, self.prefilling, self.running)
        assert len(self._reqs) == sum(map(len, lists))

    def _running_rows(self) -> Int32s:
        if self._rows_stale:
            self._rows = np.array([req.row for req in self.running], np.int32)
            self._rows_stale = False
        return self._rows

    def expire(self) -> None:
        """End what has passed its deadline, release what was held too long."""
        now = self.clock()
        self.holds.expire(now)
        for req in self._deadlines.passed(now):
            self._fail(req, "deadline_exceeded", "the request's timeout passed")


def _all_may_jump(reqs: list[Req]) -> bool:
    """Of all of them the step in flight probably decides more than one token. A step behind it
    would compute that one alone; the wait for it is shorter than such a step."""
    return bool(reqs) and all(
        req.jumps and req.matcher is not None and req.matcher.native.expects_jump() for req in reqs
    )
