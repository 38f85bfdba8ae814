"""The scheduler's loop: receive, step, send."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import random
import secrets
import socket
import statistics
import time
import traceback
from collections import deque
from typing import Any

import torch
import zmq

from rtlang.grammar.service import GrammarService
from rtlang.grammar.vocab import Vocab
from rtlang.runtime.batch import Batch, BatchResult, ForwardMode
from rtlang.runtime.config import EngineConfig
from rtlang.runtime.constraints import Constraints
from rtlang.runtime.executor import Executor, Step
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

#: A client that lets so many answers pile up is taken for dead.
SEND_HWM = 100_000


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
        if not self.scheduler.has_work and self._inflight is None:
            deadline = self.scheduler.next_deadline()
            timeout = None
            if deadline is not None:
                timeout = int(max(0.0, deadline - time.monotonic()) * 1000) + 1
            if not self._poller.poll(timeout):
                return
        if self.scheduler.compiling:
            self._take_compiled()
        while not self._stopping:
            try:
                client, data = self._inbox.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
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
        self._land()  # what is asked for is a state between steps
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

    def _step(self) -> None:
        """Launch the next step, then read the one before it (overlapped) or this one."""
        start, self._waited_s = time.perf_counter(), 0.0
        batch = self.scheduler.next_batch() if self.scheduler.has_work else None
        step: Step | None = None
        failure: Exception | None = None
        if batch is not None:
            try:
                step = self.executor.launch(batch)
            except Exception as error:
                failure = error
        elif not self.scheduler.has_work:
            self.scheduler.expire()
        lost = not self._land()
        if batch is not None and step is not None and batch.masked:
            failure, step = self._mask(batch, step)
        if step is not None and self._profiler is not None:
            self._profiler.step()
        if batch is not None and step is not None:
            self._inflight = batch, step
            if lost or not self._overlap:
                self._land()
        elif batch is not None and failure is not None:
            self._lose(batch, failure)
        if lost:
            self.scheduler.forget()
        for client, response in self.scheduler.outbox.take():
            self._send(client, response)
        if batch is not None and batch.mode is ForwardMode.DECODE:
            self._host_s.append(time.perf_counter() - start - self._waited_s)

    def _mask(self, batch: Batch, step: Step) -> tuple[Exception | None, Step | None]:
        """Say what may be sampled while the step computes: the one before it has been read."""
        for req, error in self._constraints.fill(batch, self.executor.bitmask):
            self.scheduler.fail(req, error)
        try:
            step.sample()
        except Exception as error:
            return error, None
        return None, step

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
            self.scheduler.fail_all("engine_error", "a step that others rested on was lost")
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
