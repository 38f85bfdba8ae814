"""Traces: one span a call, its stages inside it, in the client's own trace; no prompts."""

from __future__ import annotations

import contextlib
import http.server
import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from observed_server import call, generate, leave_early, make_state, mixed_script, observed
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.trace import SpanContext, SpanKind, StatusCode
from project_tree import run_python
from server_harness import RunningServer

from rtlang.errors import ConfigError, EngineError
from rtlang.runtime.messages import Timings, Usage
from rtlang.runtime.sampling_params import SamplingParams
from rtlang.runtime.server.observability import attach_observability
from rtlang.runtime.server.tracing import MAX_SEQUENCES, Tracing, make_tracing
from rtlang.testing import ScriptedModel

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def context(span: ReadableSpan) -> SpanContext:
    found: SpanContext | None = span.context
    assert found is not None
    return found


class Traced:
    """A ``Tracing`` whose spans stay here."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.tracing = Tracing(SimpleSpanProcessor(self._exporter))

    @property
    def spans(self) -> tuple[ReadableSpan, ...]:
        return self._exporter.get_finished_spans()

    @property
    def calls(self) -> list[ReadableSpan]:
        return [span for span in self.spans if span.kind is SpanKind.SERVER]

    def stages(self, parent: ReadableSpan) -> dict[str, ReadableSpan]:
        found = [
            span
            for span in self.spans
            if span.parent is not None and span.parent.span_id == context(parent).span_id
        ]
        assert len({span.name for span in found}) == len(found)
        return {span.name: span for span in found}


@contextlib.contextmanager
def traced(**options: Any) -> Iterator[tuple[RunningServer, Traced]]:
    with observed(ScriptedModel(mixed_script, step_s=0.002), **options) as server:
        found = Traced()
        server.state.sinks.append(found.tracing)
        yield server, found
        server.wait_idle()


def seconds(span: ReadableSpan) -> float:
    assert span.start_time is not None and span.end_time is not None
    return (span.end_time - span.start_time) / 1e9


def test_a_call_is_a_span_with_its_stages_inside() -> None:
    with traced() as (server, found):
        before = time.time_ns()
        reply = generate(server, "hello", sampling_params={"temperature": 0.5, "top_p": 0.9})
        server.wait_idle()
        (span,) = found.calls
        stages = found.stages(span)
    assert list(stages) == ["prepare", "queue", "prefill", "decode"]
    assert span.start_time is not None and span.end_time is not None
    assert before <= span.start_time <= span.end_time <= time.time_ns()
    for stage in stages.values():
        assert stage.start_time is not None and stage.end_time is not None
        assert span.start_time <= stage.start_time <= stage.end_time <= span.end_time
    assert seconds(stages["decode"]) >= 10 * 0.002  # "fine answer" and its end
    assert sum(map(seconds, stages.values())) <= seconds(span)
    assert span.name == "text_completion ScriptedModel"
    attributes = dict(span.attributes or {})
    usage = reply.json()["meta_info"]
    assert attributes["gen_ai.usage.input_tokens"] == usage["prompt_tokens"] == 5
    assert attributes["gen_ai.usage.output_tokens"] == usage["completion_tokens"] == 12
    assert attributes["gen_ai.request.temperature"] == 0.5
    assert attributes["gen_ai.request.top_p"] == 0.9
    assert attributes["gen_ai.request.max_tokens"] == 64
    assert attributes["gen_ai.response.finish_reasons"] == ("stop",)
    assert attributes["rtlang.request_id"] == reply.headers["x-request-id"]
    assert span.status.status_code is StatusCode.UNSET and "error.type" not in attributes


def test_the_client_s_trace_goes_on() -> None:
    with traced() as (server, found):
        body = {"text": "x", "sampling_params": {"max_new_tokens": 2}}
        for flags in ("01", "00"):
            headers = {"traceparent": f"00-{TRACE}-{SPAN}-{flags}", "tracestate": "vendor=1"}
            httpx.post(server.url + "/generate", json=body, headers=headers, verify=False)
        server.wait_idle()
        (span,) = found.calls  # the second one is not sampled, as its client said
        assert context(span).trace_id == int(TRACE, 16)
        assert span.parent is not None and span.parent.span_id == int(SPAN, 16)
        assert context(span).trace_state.get("vendor") == "1"
        assert {context(stage).trace_id for stage in found.spans} == {int(TRACE, 16)}


@pytest.mark.parametrize("header", ["", "nonsense", f"00-{'0' * 32}-{SPAN}-01", "00-ü"])
def test_a_header_that_names_no_trace_begins_one(header: str) -> None:
    found = Traced()
    found.tracing.ended(call(traceparent=header, finished=101.0))
    (span,) = found.calls
    assert span.parent is None and context(span).trace_id != 0


def test_errors_are_marked_by_their_codes_alone() -> None:
    with traced() as (server, found):
        generate(server, "my secret is broken")
        leave_early(server, "my secret is endless")
        server.wait_idle()
        spans = found.calls
    assert [(s.attributes or {})["error.type"] for s in spans] == ["engine_error", "aborted"]
    assert {span.status.status_code for span in spans} == {StatusCode.ERROR}


def test_no_prompt_and_no_answer_is_in_a_trace() -> None:
    with traced(log_prompts=True) as (server, found):
        for text in ("my secret", "my secret broken"):
            generate(server, text, stream=True, sampling_params={"stop": ["secret stop"]})
        server.wait_idle()
        told = "".join(span.to_json() for span in found.spans)
    assert len(found.calls) == 2
    assert "secret" not in told and "fine answer" not in told


def test_attributes_have_the_names_of_the_conventions() -> None:
    known = {v for k, v in vars(gen_ai_attributes).items() if k.startswith("GEN_AI_")}
    found = Traced()
    params = SamplingParams(n=2, top_k=3, sampling_seed=4, frequency_penalty=0.5)
    record = call(params=params, first_token=100.25, finished=101.0, finish_reasons=["stop"])
    found.tracing.ended(record)
    attributes = dict(found.calls[0].attributes or {})
    ours = {name for name in attributes if name.startswith("gen_ai.")}
    assert ours - known == set() and len(ours) >= 15
    assert attributes["gen_ai.response.time_to_first_chunk"] == 0.25
    assert attributes["gen_ai.request.choice.count"] == 2


def test_each_sequence_has_stages_up_to_a_number() -> None:
    found = Traced()
    many = [Timings(compiling_s=0.1, queued_s=0.1, prefill_s=0.1, decode_s=0.1)] * 40
    found.tracing.ended(call(timings=many, finished=101.0, num_sequences=40))
    compiles = [span for span in found.spans if span.name == "compile"]
    numbers = [(span.attributes or {})["rtlang.sequence"] for span in compiles]
    assert numbers == list(range(MAX_SEQUENCES))
    assert (found.calls[0].attributes or {})["rtlang.sequences"] == 40


def test_a_call_that_was_refused_has_a_span_without_stages() -> None:
    found = Traced()
    found.tracing.ended(call(sent=None, error=EngineError("x"), finished=100.1))
    assert len(found.spans) == 1


def test_chats_are_chats() -> None:
    found = Traced()
    for route in ("/v1/chat/completions", "/v1/messages", "/v1/responses", "/v1/completions"):
        found.tracing.ended(call(route=route, finished=101.0, usage=Usage(), model="\ud800"))
    names = [span.name for span in found.calls]
    assert names == ["chat ?", "chat ?", "chat ?", "text_completion ?"]


# -- on their way to a collector ------------------------------------------------------------


class Collector(http.server.BaseHTTPRequestHandler):
    """Keeps what it is sent, by path."""

    got: list[tuple[str, ExportTraceServiceRequest]]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.got.append((self.path, ExportTraceServiceRequest.FromString(body)))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@pytest.mark.parametrize(("path", "expected"), [("", "/v1/traces"), ("/own", "/own")])
def test_spans_reach_a_collector_when_the_server_ends(path: str, expected: str) -> None:
    Collector.got = []
    with http.server.HTTPServer(("127.0.0.1", 0), Collector) as collector:
        thread = threading.Thread(target=collector.serve_forever)
        thread.start()
        state = make_state(otlp_endpoint=f"http://127.0.0.1:{collector.server_port}{path}")
        close = attach_observability(state)
        state.tell("ended", call(finished=101.0))
        close()
        collector.shutdown()
        thread.join()
    ((where, sent),) = Collector.got
    assert where == expected
    resource = sent.resource_spans[0]
    assert resource.scope_spans[0].spans[0].name in ("prepare", "text_completion m")
    names = {each.key: each.value.string_value for each in resource.resource.attributes}
    assert names["service.name"] == "rtlang"


def test_closing_does_not_wait_for_a_collector_that_is_gone() -> None:
    with http.server.HTTPServer(("127.0.0.1", 0), Collector) as collector:
        port = collector.server_port
    state = make_state(otlp_endpoint=f"http://127.0.0.1:{port}")
    close = attach_observability(state)
    state.tell("ended", call(finished=101.0))
    start = time.monotonic()
    close()
    assert time.monotonic() - start < 20  # it would try for a minute


@pytest.mark.parametrize("endpoint", ["collector:4318", "http://", "grpc://host:4317"])
def test_an_endpoint_that_is_no_url_is_a_configuration_error(endpoint: str) -> None:
    with pytest.raises(ConfigError, match="otlp_endpoint"):
        make_tracing(endpoint)
    with pytest.raises(ConfigError, match="otlp_endpoint"):
        attach_observability(make_state(otlp_endpoint=endpoint))


def test_traces_and_rows_load_nothing_unless_asked_for() -> None:
    code = (
        "import json, sys\n"
        "import rtlang.runtime.server.observability\n"
        "names = ('opentelemetry.sdk', 'sqlalchemy')\n"
        "print(json.dumps([name for name in names if name in sys.modules]))"
    )
    assert json.loads(run_python(code)) == []
