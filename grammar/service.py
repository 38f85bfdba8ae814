"""Compiling constraints off the caller's thread: each once, within bounds of time and memory."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import logging
import math
import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial

from rtlang.errors import (
    ConfigError,
    EngineClosed,
    EngineError,
    GrammarBusy,
    GrammarError,
    GrammarTimeout,
    RtlangError,
)
from rtlang.grammar import llg_backend
from rtlang.grammar.compile_cache import CompileCache
from rtlang.grammar.matcher import Compiled
from rtlang.grammar.spec import GrammarSpec
from rtlang.grammar.vocab import Vocab

logger = logging.getLogger(__name__)

#: With so many threads lost in a compile, nothing new is compiled.
_MAX_LEAKED = 2

Watch = Callable[[], contextlib.AbstractContextManager[None]]
#: Compiles one constraint; what cannot be interrupted it does within ``watch()``.
Compile = Callable[[GrammarSpec, Watch], Compiled]


@dataclasses.dataclass(eq=False)
class _Job:
    spec: GrammarSpec
    future: Future[Compiled] = dataclasses.field(default_factory=Future)
    deadline: float = math.inf
    seconds: float = 0.0  # of watched work
    leaked: bool = False  # its time was up: its future is done, its thread is replaced


@dataclasses.dataclass
class ServiceStats:
    """compiles  constraints that were compiled or refused, each counted once
    hits       requests that found, or joined, a compile of another
    seconds    of translating and compiling
    """

    compiles: int = 0
    hits: int = 0
    negative_hits: int = 0
    timeouts: int = 0
    leaked: int = 0
    cached_bytes: int = 0
    seconds_sum: float = 0.0
    seconds_max: float = 0.0


class GrammarService:
    """Compiled constraints for one vocabulary. Thread-safe.

    Its threads start with the first constraint and never keep the interpreter from ending.
    """

    def __init__(
        self,
        vocab: Vocab | Callable[[], Vocab],
        *,
        backend: str = "auto",
        workers: int = 2,
        cache_bytes: int = 256 << 20,
        budget_s: float = 10.0,
        compile: Compile | None = None,
    ) -> None:
        """vocab: or what makes it, called once, in a thread of the service.

        backend: "auto" leaves schemas that ours refuses to llguidance, if it is installed.

        budget_s: for translating and for compiling a constraint, each. compile: instead of the
        engines', for tests. Raises ``ConfigError`` for an unknown backend.
        """
        if backend not in ("auto", "xgrammar"):
            raise ConfigError(f"unknown grammar backend {backend!r}: auto and xgrammar are built")
        self._vocab = vocab
        self._use_llguidance = backend == "auto" and llg_backend.available()
        self._workers = workers
        self._budget_s = budget_s
        self._compile = compile
        self._close_compile: Callable[[], None] = lambda: None
        self._load_lock = threading.Lock()
        self._changed = threading.Condition()  # guards everything below
        self._stats = ServiceStats()
        self._cache = CompileCache(cache_bytes)
        self._jobs: dict[str, _Job] = {}  # queued and running, by key
        self._queue: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._started = self._closed = False

    def submit(self, spec: GrammarSpec) -> Future[Compiled]:
        """The compiled constraint, to come; it cannot be cancelled, since others may wait for it.

        It may fail with a ``GrammarError``, ``GrammarBusy`` (compiles are stuck), ``EngineError``
        (a bug of ours), ``EngineClosed``.
        """
        with self._changed:
            if self._closed:
                return _failed(EngineClosed("the engine was closed"))
            found = self._known(spec.key)
            if found is not None:
                return found
            if self._stats.leaked >= _MAX_LEAKED:
                return _failed(GrammarBusy("constraints that take too long are being compiled"))
            job = _Job(spec)
            job.future.set_running_or_notify_cancel()
            self._jobs[spec.key] = job
            self._start()
        self._queue.put(job)
        return job.future

    def _known(self, key: str) -> Future[Compiled] | None:
        error = self._cache.get_error(key)
        if error is not None:
            self._stats.negative_hits += 1
            return _failed(copy.copy(error))  # each has a traceback of its own
        compiled, job = self._cache.get(key), self._jobs.get(key)
        if compiled is None and job is None:
            return None
        self._stats.hits += 1
        if compiled is None:
            assert job is not None
            return job.future
        future: Future[Compiled] = Future()
        future.set_result(compiled)
        return future

    def stats(self) -> ServiceStats:
        with self._changed:
            return dataclasses.replace(self._stats, cached_bytes=self._cache.size_bytes)

    def close(self) -> None:
        """Fails what is not done yet and waits for nothing: a compile cannot be interrupted."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            jobs = list(self._jobs.values())
            self._changed.notify_all()
        for _ in range(self._workers):
            self._queue.put(None)
        self._close_compile()
        for job in jobs:
            job.future.set_exception(EngineClosed("the engine was closed"))

    def _start(self) -> None:
        if not self._started:
            self._started = True
            for _ in range(self._workers):
                self._start_thread(self._work)
            self._start_thread(self._watch)

    def _start_thread(self, target: Callable[[], None]) -> None:
        threading.Thread(target=target, name="rtlang-grammar", daemon=True).start()

    def _work(self) -> None:
        while (job := self._queue.get()) is not None:
            outcome: Compiled | Exception
            try:
                outcome = self._loaded()(job.spec, partial(self._watched, job))
            except Exception as error:  # of this constraint alone
                outcome = error
            if not self._finish(job, outcome):
                return

    def _loaded(self) -> Compile:
        """The engines, loaded by the first constraint: seconds that count for none."""
        with self._load_lock:
            if self._compile is None:
                from rtlang.grammar.compiler import Compiler  # noqa: PLC0415  loads torch

                vocab = self._vocab() if callable(self._vocab) else self._vocab
                compiler = Compiler(
                    vocab, use_llguidance=self._use_llguidance, budget_s=self._budget_s
                )
                self._compile, self._close_compile = compiler, compiler.close
            return self._compile

    @contextlib.contextmanager
    def _watched(self, job: _Job) -> Iterator[None]:
        started = time.monotonic()
        with self._changed:
            job.deadline = started + self._budget_s
            self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                job.deadline = math.inf
                job.seconds += time.monotonic() - started

    def _finish(self, job: _Job, outcome: Compiled | Exception) -> bool:
        """Hands out what became of a job. False: this thread is not needed any more."""
        key = job.spec.key
        with self._changed:
            if not isinstance(outcome, Exception):
                self._cache.put(key, outcome)  # late or not
            elif isinstance(outcome, GrammarError) and not job.leaked:
                self._cache.put_error(key, outcome)
            if job.leaked:
                self._stats.leaked -= 1
                return False
            if self._closed:
                return False  # close() hands out
            del self._jobs[key]
            self._stats.compiles += 1
            self._stats.seconds_sum += job.seconds
            self._stats.seconds_max = max(self._stats.seconds_max, job.seconds)
        if not isinstance(outcome, Exception):
            job.future.set_result(outcome)
        elif isinstance(outcome, RtlangError):
            job.future.set_exception(outcome)
        else:
            logger.error("a constraint of kind %s failed", job.spec.kind, exc_info=outcome)
            error = EngineError(f"compiling the constraint failed: {outcome!r}")
            error.__cause__ = outcome
            job.future.set_exception(error)
        return True

    def _watch(self) -> None:
        """Gives up on jobs whose time is up, and replaces their threads."""
        while True:
            with self._changed:
                if self._closed:
                    return
                now = time.monotonic()
                late = [job for job in self._jobs.values() if job.deadline <= now]
                for job in late:
                    self._leak(job)
                if not late:
                    nearest = min((job.deadline for job in self._jobs.values()), default=math.inf)
                    self._changed.wait(None if nearest == math.inf else nearest - now)
            for job in late:
                job.future.set_exception(_timeout())

    def _leak(self, job: _Job) -> None:
        job.leaked = True
        del self._jobs[job.spec.key]
        self._stats.compiles += 1
        self._stats.timeouts += 1
        self._stats.leaked += 1
        self._cache.put_error(job.spec.key, _timeout())
        self._start_thread(self._work)


def _timeout() -> GrammarTimeout:
    return GrammarTimeout("the constraint takes too long to compile")


def _failed(error: Exception) -> Future[Compiled]:
    future: Future[Compiled] = Future()
    future.set_exception(error)
    return future
