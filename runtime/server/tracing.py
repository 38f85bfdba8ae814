"""Traces by OpenTelemetry: one span a call, with its stages as children; no prompts."""

from __future__ import annotations

import logging
import threading
import time
import urllib.parse
from collections.abc import Iterator
from typing import Any

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from rtlang.errors import ConfigError
from rtlang.runtime.chunk import Chunk
from rtlang.runtime.messages import Timings
from rtlang.runtime.sampling_params import SamplingParams
from rtlang.runtime.server.record import CallRecord, now

logger = logging.getLogger(__name__)

#: Stages of more sequences than these get no spans of their own.
MAX_SEQUENCES = 16
#: Seconds that ``close`` waits for spans to leave.
CLOSE_S = 3.0
#: Seconds for one attempt to send spans.
SEND_S = 3

#: Paths whose operation is a chat; the others complete a text.
_CHATS = frozenset({"/v1/chat/completions", "/v1/messages", "/v1/responses"})
#: GenAI semantic conventions: attribute -> sampling parameter.
_PARAMS = {
    "gen_ai.request.max_tokens": "max_new_tokens",
    "gen_ai.request.temperature": "temperature",
    "gen_ai.request.top_p": "top_p",
    "gen_ai.request.top_k": "top_k",
    "gen_ai.request.frequency_penalty": "frequency_penalty",
    "gen_ai.request.presence_penalty": "presence_penalty",
    "gen_ai.request.seed": "sampling_seed",
}


class Tracing:
    """A ``Sink``. A call's spans are made when it has ended, from its times."""

    def __init__(self, processor: SpanProcessor) -> None:
        self._provider = TracerProvider(
            resource=Resource.create({"service.name": "rtlang"}), shutdown_on_exit=False
        )
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("rtlang.server")
        self._propagator = TraceContextTextMapPropagator()

    def started(self, record: CallRecord) -> None:
        """Nothing, until the call has ended."""

    def tokens(self, record: CallRecord, chunk: Chunk, gap: float | None) -> None:
        """Nothing, likewise."""

    def ended(self, record: CallRecord) -> None:
        end = now() if record.finished is None else record.finished
        offset = time.time_ns() - int(now() * 1e9)  # of the monotonic clock, which has no date

        def wall(at: float) -> int:
            return offset + int(at * 1e9)

        operation = "chat" if record.route in _CHATS else "text_completion"
        span = self._tracer.start_span(
            f"{operation} {_writable(record.model)}",
            self._parent(record),
            SpanKind.SERVER,
            _attributes(record, operation),
            start_time=wall(record.received),
        )
        if record.error is not None:
            span.set_status(Status(StatusCode.ERROR, record.error.code))
        inside = trace.set_span_in_context(span)
        for name, attributes, start, stop in _stages(record):
            child = self._tracer.start_span(
                name, inside, attributes=attributes, start_time=wall(start)
            )
            child.end(wall(min(stop, end)))
        span.end(wall(end))

    def close(self) -> None:
        """Send what is left, for ``CLOSE_S`` seconds at most."""
        ending = threading.Thread(target=self._provider.shutdown, daemon=True)
        ending.start()
        ending.join(CLOSE_S)
        if ending.is_alive():
            logger.error("the last spans did not reach the collector in time and are lost")

    def _parent(self, record: CallRecord) -> Context:
        """The client's span, where it named one in W3C's headers; else the call begins a trace."""
        headers = {"traceparent": record.traceparent, "tracestate": record.tracestate}
        return self._propagator.extract({k: v for k, v in headers.items() if v}, Context())


def _attributes(record: CallRecord, operation: str) -> dict[str, Any]:
    usage = record.usage
    found: dict[str, Any] = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": "rtlang",
        "gen_ai.request.model": _writable(record.model),
        "gen_ai.response.model": _writable(record.model),
        "gen_ai.request.stream": record.stream,
        "gen_ai.usage.input_tokens": usage.cached_tokens + usage.computed_tokens,
        "gen_ai.usage.output_tokens": usage.completion_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens,
        "http.route": record.route,
        "rtlang.request_id": record.request_id,
        "rtlang.key": record.key,
        "rtlang.sequences": record.num_sequences,
        "rtlang.forced_tokens": usage.forced_tokens,
        "rtlang.retractions": usage.num_retractions,
    }
    if record.finish_reasons:
        found["gen_ai.response.finish_reasons"] = list(record.finish_reasons)
    if record.first_token is not None:
        first = record.first_token - record.received
        found["gen_ai.response.time_to_first_chunk"] = first
    if record.error is not None:
        found["error.type"] = record.error.code
    if record.params is not None:
        found |= _request_attributes(record.params)
    return found


def _writable(text: str) -> str:
    """Without halves of surrogate pairs, which a client's JSON can spell."""
    return text.encode("utf-8", "replace").decode()


def _request_attributes(params: SamplingParams) -> dict[str, Any]:
    given = {name: getattr(params, field) for name, field in _PARAMS.items()}
    if params.n > 1:
        given["gen_ai.request.choice.count"] = params.n
    return {name: value for name, value in given.items() if value is not None}


def _stages(record: CallRecord) -> Iterator[tuple[str, dict[str, int], float, float]]:
    """(name, attributes, start, end) of each. Of a sequence that was retracted each stage stands
    as one span, as long as all its parts."""
    if record.sent is None:
        return
    yield "prepare", {}, record.received, record.sent
    for number, timings in enumerate(record.timings[:MAX_SEQUENCES]):
        at = record.sent
        for name, seconds in _durations(timings):
            if seconds > 0:
                yield name, {"rtlang.sequence": number}, at, at + seconds
            at += seconds


def _durations(timings: Timings) -> tuple[tuple[str, float], ...]:
    return (
        ("compile", timings.compiling_s),
        ("queue", timings.queued_s),
        ("prefill", timings.prefill_s),
        ("decode", timings.decode_s),
    )


def make_tracing(endpoint: str) -> Tracing:
    """``endpoint``: of a collector, OTLP over HTTP; without a path, the usual one. Raises
    ``ConfigError`` for what is no such URL."""
    url = urllib.parse.urlsplit(endpoint)
    if url.scheme not in ("http", "https") or not url.netloc:
        raise ConfigError(f"otlp_endpoint must be an http(s) URL, got {endpoint!r}")
    if url.path in ("", "/"):
        endpoint = urllib.parse.urlunsplit(url._replace(path="/v1/traces"))
    return Tracing(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint, timeout=SEND_S)))
