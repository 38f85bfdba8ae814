"""The scheduler's loop: receive, step, send.

Overlapped, a step is launched before the one before it is read, so that the device never waits:

    launch N+1, read and commit N, (answers go out,) plan N+2, launch N+2, ...

A step with constrained rows is sampled under masks that only the step before it tells. What its
sampling waits for comes while its forward pass runs, and so does the host's part of the step after
it, of which little but the launch is left when the sampling has been launched:

    launch N+1's forward pass, send answers, read and commit N, plan and prepare N+2,
    fill N+1's masks, launch its sampling, (messages,) launch N+2's forward pass, ...
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import random
import secrets
import socket
import statistics
import time
import traceback
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

import torch
import zmq

from rtlang.grammar.service import GrammarService
from rtlang.grammar.vocab import Vocab
from rtlang.runtime.batch import Batch, BatchResult, ForwardMode
from rtlang.runtime.config import EngineConfig
from rtlang.runtime.constraints import Constraints
from rtlang.runtime.executor import Executor, Launch, Step
from rtlang.runtime.jump import forced_ids
from rtlang.runtime.mem.snapshot import tree_snapshot
from rtlang.runtime.messages import (
    Abort,
    CloseBranches,
    Control,
    Died,
    Generate,
    Hello,
    Reply,
    Response,
    decode_request,
    encode,
    unpack_ids,
)
from rtlang.runtime.profiling import StepProfiler
from rtlang.runtime.req import Req, ReqState
from rtlang.runtime.scheduler import Scheduler
from rtlang.runtime.stops import StopChecker
from rtlang.runtime.tokenizer import Tokenizer

logger = logging.getLogger(__name__)
T = TypeVar("T")

#: A client that lets so many answers pile up is taken for dead.
SEND_HWM = 100_000
#: Why what a lost step was needed for fails: code and message.
RESTED = "engine_error", "a step that others rested on was lost"


@dataclasses.dataclass(frozen=True, slots=True)
class Planned:
    """A step that the scheduler counts among those in flight, and that was not launched yet."""

    batch: Batch
    launch: Launch


class Worker:
    """Owns the scheduler, the executor and the sockets. One thread runs it from start to end."""

    def __init__(
        self,
        config: EngineConfig,
        executor: Executor,
        tokenizer: Tokenizer | None,
        context: zmq.Context[zmq.Socket[bytes]],
        endpoint: str,
    ) -> None:
        self.config = config
        self.executor = executor
        self.tokenizer = tokenizer
        info = executor.info
        self.scheduler = Scheduler(
            config, num_slots=info.max_total_tokens, width=info.context_length, jump=self._jump
        )
        executor.init_pools(self.scheduler.allocator.tensor_len, self.scheduler.pool)
        seed = secrets.randbits(63) if config.random_seed is None else config.random_seed
        self._seeds = random.Random(seed)
        self._woken, self._wake = socket.socketpair()
        self._woken.setblocking(False)
        self._wake.setblocking(False)
        self._constraints = Constraints(self._make_grammar_service, self._wake_up)
        self._context = context
        self._inbox = context.socket(zmq.PULL)
        self._inbox.setsockopt(zmq.RCVHWM, 0)
        self._inbox.bind(endpoint)
        self._poller = zmq.Poller()
        self._poller.register(self._inbox, zmq.POLLIN)
        self._poller.register(self._woken, zmq.POLLIN)
        self._clients: dict[bytes, zmq.Socket[bytes]] = {}
        self._stopping = False
        overlap = config.enable_overlap
        self._overlap = executor.overlaps if overlap is None else overlap
        self._inflight: tuple[Batch, Step] | None = None
        self._planned: Planned | None = None  # behind the one in flight
        self._waited_s = 0.0  # for the result, in the step that is being made
        self._host_s: deque[float] = deque(maxlen=256)  # of the last decode steps, beside that
        self._profiler: StepProfiler | None = None

    def run(self) -> None:
        """Serve until a shutdown message; every client hears of the end, however it comes."""
        message = "the engine was closed"
        try:
            while True:
                self._receive()
                if self._stopping:
                    break
                self._step()
        except BaseException:
            message = f"the scheduler died: {traceback.format_exc()}"
            logger.exception("the scheduler died")
            raise
        finally:
            for client in list(self._clients):
                self._send(client, Died(message))
            for each in [self._inbox, *self._clients.values()]:
                each.close(linger=500)
            self._constraints.close()
            self._woken.close()
            self._wake.close()
            self.executor.close()

    def _make_grammar_service(self) -> GrammarService:
        assert self.tokenizer is not None, "the client refuses constraints without a tokenizer"
        config, info, tokenizer = self.config, self.executor.info, self.tokenizer

        def vocab() -> Vocab:
            return Vocab.build(
                tokenizer.token_bytes,
                info.vocab_size,
                stop_ids=info.eos_ids,
                special_ids=tokenizer.special_ids,
            )

        return GrammarService(
            vocab,
            backend=config.grammar_backend,
            cache_bytes=config.grammar_cache_mib << 20,
            budget_s=config.grammar_timeout_s,
        )

    def _wake_up(self) -> None:
        """From any thread: something was compiled."""
        # A full buffer wakes the loop too; a closed one has no loop to wake.
        with contextlib.suppress(BlockingIOError, OSError):
            self._wake.send(b"x")

    def _jump(self, req: Req) -> list[int]:
        assert self.tokenizer is not None
        return forced_ids(req, self.tokenizer)

    def _receive(self) -> None:
        """Take all messages that are there; with nothing to do, sleep until one comes."""
        assert self._planned is None or self._inflight is not None
        if not self.scheduler.has_work and self._inflight is None:
            deadline = self.scheduler.next_deadline()
            timeout = None
            if deadline is not None:
                timeout = int(max(0.0, deadline - time.monotonic()) * 1000) + 1
            if not self._poller.poll(timeout):
                return
            self._take_compiled()  # of ended requests, too: it would wake the loop again else
        elif self.scheduler.compiling:
            self._take_compiled()
        # Asking first costs less than the exception of an empty queue.
        while not self._stopping and int(self._inbox.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            client, data = self._inbox.recv_multipart(zmq.NOBLOCK)
            self._handle(client, data)

    def _take_compiled(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._woken.recv(4096):
                pass
        for found in self._constraints.ready():
            if found.error is not None:
                self.scheduler.fail(found.req, found.error)
            elif found.matcher is not None:
                self.scheduler.compiled(found.req, found.matcher)

    def _handle(self, client: bytes, data: bytes) -> None:
        message = decode_request(data)
        match message:
            case Generate():
                req = self._make_req(client, message)
                self.scheduler.add(req)
                if req.state is ReqState.COMPILING:
                    self._constraints.submit(req)
            case Abort():
                self.scheduler.abort(client, message.rid)
            case CloseBranches():
                self.scheduler.holds.closed(message.fork_id, message.count)
            case Control():
                self._control(client, message)
            case Hello():
                answers = self._context.socket(zmq.PUSH)
                answers.setsockopt(zmq.SNDHWM, SEND_HWM)
                answers.connect(message.endpoint)
                self._clients[client] = answers
                self._send(client, Reply(message.call_id, self._hello()))

    def _hello(self) -> dict[str, Any]:
        info = self.executor.info
        return {
            "info": {**dataclasses.asdict(info), "eos_ids": sorted(info.eos_ids)},
            "context_length": info.context_length,
            "limit_len": self.scheduler.limit_len,
            "pool": self.scheduler.allocator.total_len,
        }

    def _make_req(self, client: bytes, message: Generate) -> Req:
        ids, params = unpack_ids(message.input_ids), message.params
        limit = self.scheduler.limit_len
        if params.max_new_tokens is not None:
            limit = min(limit, len(ids) + params.max_new_tokens)
        eos = frozenset() if params.ignore_eos else self.executor.info.eos_ids
        seed = params.sampling_seed
        req = Req(
            rid=message.rid,
            client=client,
            ids=ids,
            prompt_len=len(ids),
            params=params,
            seed=self._seeds.randrange(-(2**63), 2**63) if seed is None else seed,
            limit_len=limit,
            logprobs=message.logprobs,
            interval=message.interval,
            hold_s=message.hold_ms / 1000,
            namespace=message.namespace,
            priority=message.priority,
            fork_id=message.fork_id,
            announce=message.announce,
            stop_ids=eos | frozenset(params.stop_token_ids),
        )
        if params.grammar is not None and params.max_new_tokens != 0:
            req.state = ReqState.COMPILING
            mode = params.jump_forward or self.config.jump_forward
            req.jumps = mode == "canonical"
        if message.timeout_s is not None:
            req.deadline = time.monotonic() + message.timeout_s
        if message.logprobs is not None and message.logprobs.start_len >= 0:
            req.want_prompt_logprobs(message.logprobs.start_len)
        if params.stop or params.stop_regex:
            assert self.tokenizer is not None, "the client refuses stop strings without a tokenizer"
            req.stops = StopChecker(self.tokenizer, params)
        return req

    def _control(self, client: bytes, message: Control) -> None:
        scheduler = self.scheduler
        self._settle()  # what is asked for is a state between steps
        value: Any = None
        error: tuple[str, str] | None = None
        if message.op == "stats":
            value = {**stats(scheduler), **self._constraints.stats(), **self.executor.stats()}
            spent = statistics.median(self._host_s) if self._host_s else 0.0
            value["host_us_per_decode_step"] = spent * 1e6
        elif message.op == "check":
            scheduler.check()
        elif message.op == "tree":
            value = tree_snapshot(scheduler.cache, **message.args)
        elif message.op == "flush":
            counts = scheduler.counts()
            if scheduler.has_work:
                text = ", ".join(f"{n} {state}" for state, n in counts.items() if n)
                error = ("engine_busy", f"the cache is in use: {text} request(s)")
            else:
                scheduler.flush()
        elif message.op == "profile":
            if self._profiler is not None:
                error = ("engine_busy", "a profile is being taken already")
            else:
                self._profiler = StepProfiler(**message.args)
        elif message.op == "finish_profile":
            if self._profiler is None:
                error = ("engine_busy", "no profile is being taken")
            else:
                value = self._profiler.finish()
                self._profiler = None
        elif message.op == "leave":
            scheduler.drop_client(client)
        else:
            assert message.op == "shutdown", message.op
            self._stopping = True
        self._send(client, Reply(message.call_id, value, error))

    def _step(self, *, ahead: bool = True) -> None:
        """Launch the next step, then read the one before it (overlapped) or this one. ``ahead``:
        the step after it may be planned meanwhile."""
        start, self._waited_s = time.perf_counter(), 0.0
        planned, self._planned = self._planned or self._plan(), None
        if planned is None:
            self._rest()
            return
        batch = planned.batch
        step, failure = _try(planned.launch)
        self._send_answers()
        lost = not self._land()
        if step is not None and batch.masked:
            if ahead and self._overlap and not lost:
                self._planned = self._plan()
            failure = self._mask(batch, step)
        if failure is not None:
            self._lose(batch, failure)
            lost |= self._abandon_planned()
        elif step is not None:
            self._inflight = batch, step
            if lost or not self._overlap:
                self._land()
            if self._profiler is not None:
                self._profiler.step()
        if lost:
            self.scheduler.forget()
        if self._planned is None:  # else its launch comes first
            self._send_answers()
        if batch.mode is ForwardMode.DECODE:
            self._host_s.append(time.perf_counter() - start - self._waited_s)

    def _rest(self) -> None:
        """Nothing can be planned, maybe until the step in flight has been read."""
        if not self.scheduler.has_work:
            self.scheduler.expire()
        self._drain()

    def _drain(self) -> None:
        """Read the step in flight, if there is one, and send what is to be sent."""
        if not self._land():
            self.scheduler.forget()
        self._send_answers()

    def _plan(self) -> Planned | None:
        """A step and the host's part of it, if there is one to be planned now."""
        batch = self.scheduler.next_batch() if self.scheduler.has_work else None
        if batch is None:
            return None
        try:
            return Planned(batch, self.executor.prepare(batch))
        except Exception as error:
            return Planned(batch, functools.partial(_fail, error))

    def _abandon_planned(self) -> bool:
        """What is planned behind a lost step rests on it. True: there was something."""
        planned, self._planned = self._planned, None
        if planned is None:
            return False
        self.scheduler.fail_all(*RESTED)
        self.scheduler.fail_batch(planned.batch, *RESTED)
        return True

    def _settle(self) -> None:
        """Until no step is planned or in flight, and all answers are on their way."""
        while self._planned is not None:
            self._step(ahead=False)
        self._drain()

    def _mask(self, batch: Batch, step: Step) -> Exception | None:
        """Say what may be sampled while the step computes: the one before it has been read. An
        exception loses the step."""
        for req, error in self._constraints.fill(batch, self.executor.bitmask):
            self.scheduler.fail(req, error)
        return _try(step.sample)[1]

    def _land(self) -> bool:
        """Read the step in flight, if there is one, and commit it. False: it could not be read."""
        if self._inflight is None:
            return True
        (batch, step), self._inflight = self._inflight, None
        start = time.perf_counter()
        try:
            result: BatchResult = step.read()
        except Exception as error:
            self._lose(batch, error)
            self.scheduler.fail_all(*RESTED)
            return False
        finally:
            self._waited_s += time.perf_counter() - start
        self.scheduler.commit(batch, result)
        return True

    def _lose(self, batch: Batch, error: Exception) -> None:
        """The step is lost; the engine is not, unless the device is."""
        if isinstance(error, torch.AcceleratorError):
            raise error
        logger.error("a step failed; its requests are lost", exc_info=error)
        self.scheduler.fail_batch(batch, "engine_error", f"{type(error).__name__}: {error}")

    def _send_answers(self) -> None:
        for client, response in self.scheduler.outbox.take():
            self._send(client, response)

    def _send(self, client: bytes, response: Response) -> None:
        answers = self._clients.get(client)
        if answers is None:
            return
        try:
            answers.send(encode(response), zmq.NOBLOCK)
        except zmq.Again:
            logger.error("client %r does not read its answers; dropped", client)
            answers.close(linger=0)
            del self._clients[client]
            self.scheduler.drop_client(client)


def _try(call: Callable[[], T]) -> tuple[T | None, Exception | None]:
    """What it returns, or what it raises: a step that fails is lost, and the loop goes on."""
    try:
        return call(), None
    except Exception as error:
        return None, error


def _fail(error: Exception) -> Step:
    """Launches nothing: the step could not be prepared."""
    raise error


def stats(scheduler: Scheduler) -> dict[str, Any]:
    """Counters, queue states and memory, as ``Engine.stats()`` returns them."""
    kv, cache = scheduler.kv, scheduler.cache
    return {
        **{f: getattr(scheduler.counters, f) for f in scheduler.counters.__slots__},
        "queue": scheduler.counts(),
        "total_len": kv.allocator.total_len,
        "free_len": kv.allocator.free_len,
        "evictable_len": cache.evictable_len,
        "locked_len": cache.locked_len,
        "private_len": kv.private_len,
        "num_rows_used": scheduler.pool.num_rows - scheduler.pool.num_free,
        "num_holds": len(scheduler.holds),
        "evicted_tokens": cache.evicted_tokens,
    }
