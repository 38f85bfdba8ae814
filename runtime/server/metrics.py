"""Metrics of calls, for Prometheus; each is defined in ``docs/metrics.md``."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    values,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rtlang.errors import ServerUnavailable
from rtlang.runtime.chunk import Chunk
from rtlang.runtime.messages import Timings
from rtlang.runtime.server.engine_metrics import AskEngine, EngineCollector
from rtlang.runtime.server.record import CallRecord, now

if TYPE_CHECKING:  # it knows the engine, which takes seconds to import
    from rtlang.runtime.server.state import ServerState

logger = logging.getLogger(__name__)

#: Upper bounds of histograms, in seconds: of whole calls and their stages, and of single tokens.
CALL_BUCKETS = (
    .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500
)  # fmt: skip
TOKEN_BUCKETS = (
    .0005, .001, .002, .003, .005, .0075, .01, .015, .02, .03, .05, .075, .1, .2, .5, 1, 2.5
)  # fmt: skip


def _no_engine() -> Mapping[str, Any]:
    raise ServerUnavailable("the model is being loaded")


@dataclasses.dataclass(slots=True)
class _Sequence:
    """One sequence of a streamed call. A delta is visible if it has text."""

    num_tokens: int = 0
    num_seen: int = 0  # of these, up to the last visible delta,
    last: float = 0.0  # which came then
    num_first: int = 0  # up to the first one,
    first: float | None = None  # which came then


@dataclasses.dataclass(frozen=True, slots=True)
class _Make:
    """Metrics of one registry (None: of the files that several processes share)."""

    registry: CollectorRegistry | None

    def counter(self, name: str, help: str, labels: tuple[str, ...] = ()) -> Counter:
        return Counter(name, help, labels, registry=self.registry)

    def gauge(self, name: str, help: str) -> Gauge:
        return Gauge(name, help, registry=self.registry, multiprocess_mode="livesum")

    def histogram(
        self,
        name: str,
        help: str,
        labels: tuple[str, ...] = (),
        buckets: tuple[float, ...] = CALL_BUCKETS,
    ) -> Histogram:
        return Histogram(name, help, labels, registry=self.registry, buckets=buckets)


@dataclasses.dataclass(slots=True)
class _Call:
    record: CallRecord
    itl: Histogram  # of its route: looked up once, since each delta needs it
    sequences: dict[tuple[int, int], _Sequence] = dataclasses.field(default_factory=dict)
    has_text: bool = False


class Metrics:
    """A ``Sink``. Made by ``make_metrics``; one event loop calls it, any thread may scrape."""

    def __init__(
        self, ask: AskEngine, metrics_dir: str | None, clock: Callable[[], float] = now
    ) -> None:
        self._clock = clock
        self._calls: dict[int, _Call] = {}  # by the record's identity
        self.registry = CollectorRegistry()
        # Several processes: each metric is a file, and only the sum over the files is shown.
        own = None if metrics_dir is not None else self.registry
        if metrics_dir is not None:
            MultiProcessCollector(self.registry, metrics_dir)  # type: ignore[no-untyped-call]
        self.registry.register(EngineCollector(ask))
        self._make = _Make(own)
        self._define_calls()
        self._define_latencies()
        self._define_stages()

    def _define_calls(self) -> None:
        make = self._make
        self.responses = make.counter(
            "rtlang_http_responses_total",
            "HTTP answers by path and status, refusals included; paths that do not exist are other",
            ("route", "status"),
        )
        self.requests = make.counter(
            "rtlang_requests_total",
            "Calls that generate, when they end: ok, or the code of the error that ended them",
            ("route", "outcome"),
        )
        self.running = make.gauge(
            "rtlang_requests_running",
            "Calls that were given to the scheduler and have not ended",
        )
        self.sequences = make.counter(
            "rtlang_sequences_total",
            "Sequences that ended well, by why: stop or length",
            ("finish_reason",),
        )
        self.usage_lost = make.counter(
            "rtlang_usage_rows_lost_total",
            "Usage rows that could not be written and were given up",
        )
        self.usage_retries = make.counter(
            "rtlang_usage_retries_total",
            "Times that writing usage rows failed and was tried again",
        )

    def _define_latencies(self) -> None:
        make = self._make
        self.ttft = make.histogram(
            "rtlang_time_to_first_token_seconds",
            "Streamed calls: from the arrival of the request to its first delta with text",
            ("route",),
        )
        self.itl = make.histogram(
            "rtlang_inter_token_latency_seconds",
            "Streamed calls: time between two deltas with text of one sequence, divided by the "
            "number of tokens that came after the first of them, and counted once for each",
            ("route",),
            TOKEN_BUCKETS,
        )
        self.tpot = make.histogram(
            "rtlang_time_per_output_token_seconds",
            "Streamed calls: of one sequence, the time from its first delta with text to its end, "
            "divided by the number of tokens after that delta; a single token has none",
            ("route",),
            TOKEN_BUCKETS,
        )
        self.duration = make.histogram(
            "rtlang_request_duration_seconds",
            "Calls that ended well: from the arrival of the request to the end of its sequences",
            ("route",),
        )

    def _define_stages(self) -> None:
        make = self._make
        self.queued = make.histogram(
            "rtlang_queue_time_seconds",
            "Time of one sequence in the scheduler's queue, after retractions too",
        )
        self.stages = make.histogram(
            "rtlang_stage_time_seconds",
            "Time by stage: prepare (from arrival to the scheduler, of a call); then of one "
            "sequence compile (its constraint), prefill (out of the queue, the next token not "
            "known yet), decode (between tokens)",
            ("stage",),
        )
        self.first_token = make.histogram(
            "rtlang_engine_first_token_seconds",
            "Any sequence: from its arrival at the scheduler until its first token was known",
        )

    def scrape(self, accept: str) -> tuple[bytes, str]:
        """The page in a form that the header ``Accept`` allows, and its content type. Blocks
        while the scheduler is asked."""
        encode, content_type = choose_encoder(accept)
        return encode(self.registry), content_type

    def answered(self, route: str, status: int) -> None:
        self.responses.labels(route, str(status)).inc()

    # -- Sink -------------------------------------------------------------------------------

    def started(self, record: CallRecord) -> None:
        self._calls[id(record)] = _Call(record, self.itl.labels(record.route))
        self.running.set(len(self._calls))

    def tokens(self, record: CallRecord, chunk: Chunk, gap: float | None) -> None:
        if not record.stream:
            return
        call, time = self._calls[id(record)], self._clock()
        sequence = call.sequences.get(key := (chunk.index, chunk.choice))
        if sequence is None:
            sequence = call.sequences[key] = _Sequence()
        sequence.num_tokens += len(chunk.token_ids)
        if chunk.text:
            self._visible(call, sequence, time)
        if chunk.finish is not None and sequence.first is not None:
            later = sequence.num_tokens - sequence.num_first
            if later > 0:
                self.tpot.labels(record.route).observe((time - sequence.first) / later)

    def _visible(self, call: _Call, sequence: _Sequence, time: float) -> None:
        if not call.has_text:
            call.has_text = True
            self.ttft.labels(call.record.route).observe(time - call.record.received)
        if sequence.first is None:
            sequence.first, sequence.num_first = time, sequence.num_tokens
        else:
            num_new = max(1, sequence.num_tokens - sequence.num_seen)
            each = (time - sequence.last) / num_new
            for _ in range(num_new):
                call.itl.observe(each)
        sequence.last, sequence.num_seen = time, sequence.num_tokens

    def ended(self, record: CallRecord) -> None:
        self._calls.pop(id(record), None)  # a call that was refused never started
        self.running.set(len(self._calls))
        outcome = "ok" if record.error is None else record.error.code
        self.requests.labels(record.route, outcome).inc()
        for reason in record.finish_reasons:
            self.sequences.labels(reason).inc()
        if record.error is None and record.finished is not None:
            self.duration.labels(record.route).observe(record.finished - record.received)
        if record.sent is not None:
            self.stages.labels("prepare").observe(record.sent - record.received)
        for timings in record.timings:
            self._observe(timings)

    def _observe(self, timings: Timings) -> None:
        self.queued.observe(timings.queued_s)
        self.stages.labels("prefill").observe(timings.prefill_s)
        self.stages.labels("decode").observe(timings.decode_s)
        if timings.compiling_s:
            self.stages.labels("compile").observe(timings.compiling_s)
        if timings.first_token_s is not None:
            self.first_token.observe(timings.first_token_s)


def make_metrics(metrics_dir: str | None = None, ask: AskEngine = _no_engine) -> Metrics:
    """``ask``: for the engine's statistics. ``metrics_dir``: where the processes of one server
    keep their counts; their environment had it as PROMETHEUS_MULTIPROC_DIR when they began."""
    if metrics_dir is not None:
        shared = values.ValueClass is not values.MutexValue
        assert shared, "PROMETHEUS_MULTIPROC_DIR must be set before prometheus_client is imported"
    # Else there is a time stamp beside each number, which nobody reads.
    disable_created_metrics()  # type: ignore[no-untyped-call]
    return Metrics(ask, metrics_dir)


def forget_process(metrics_dir: str, pid: int) -> None:
    """A frontend has ended: its gauges go, its counters stay in the sums."""
    mark_process_dead(pid, metrics_dir)  # type: ignore[no-untyped-call]


class CountAnswers:
    """ASGI middleware: every HTTP answer is counted, whoever gave it."""

    def __init__(self, app: ASGIApp, state: ServerState) -> None:
        self._app = app
        self._state = state
        self._broken = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status: int | None = None

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                self._count(scope, message["status"])
            await send(message)

        try:
            await self._app(scope, receive, sending)
        except Exception:
            if status is None:  # whoever is outside of this answers
                self._count(scope, 500)
            raise

    def _count(self, scope: Scope, status: int) -> None:
        found = self._state.observability
        if found is None:
            return
        try:
            found.metrics.answered(getattr(scope.get("route"), "path", "other"), status)
        except Exception:
            if not self._broken:
                self._broken = True
                logger.exception("counting answers failed; further failures are not logged")
