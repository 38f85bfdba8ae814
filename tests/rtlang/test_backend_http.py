"""``HTTP``: the server as a backend. What programs do over it, ``test_acceptance`` says too."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from fake_server import FakeServer, event, fake_server, head, json_answer
from project_tree import run_python
from server_harness import serving

import rtlang as rt
from rtlang import loop
from rtlang.backends.base import Call
from rtlang.backends.http import HTTP
from rtlang.backends.wire import constraint_of, sampling_of
from rtlang.errors import (
    ConfigError,
    EngineBusy,
    EngineError,
    InvalidParameter,
    NotAuthenticated,
    NumericalError,
    PromptTooLong,
    QueueFull,
    RequestAborted,
    RequestError,
    ServerUnavailable,
    ServerUnreachable,
    Unsupported,
)
from rtlang.grammar.spec import GrammarSpec
from rtlang.runtime.sampling_params import SamplingParams
from rtlang.testing import ByteTokenizer, Reply, ScriptedModel


@rt.function
def say(s: rt.ProgramState, text: str, **options: Any) -> None:
    s += text + rt.gen("x", **options)


def alphabet(tokens: list[int]) -> Mapping[int, float]:
    """Ten letters, and which is likely depends on how far the text has come."""
    return {ord("a") + i: float((i * 7 + len(tokens)) % 5) for i in range(10)}


# -- nothing is lost on the wire ----------------------------------------------------------------

SPECS = [
    GrammarSpec.json_schema({"type": "object", "properties": {"a": {}}}, whitespace=3),
    GrammarSpec.json_schema(True, additional="closed"),
    GrammarSpec.any_json(),
    GrammarSpec.regex("a+|b"),
    GrammarSpec.ebnf('root ::= "x" | "y"'),
    GrammarSpec.choice(["yes", 'n"o', "ünsure"]),
    GrammarSpec.structural_tag(
        {"type": "structural_tag", "format": {"type": "const_string", "value": "x"}}, whitespace=0
    ),
]


@pytest.mark.parametrize("spec", SPECS, ids=lambda s: s.kind)
def test_a_constraint_arrives_as_the_same_one(spec: GrammarSpec) -> None:
    assert GrammarSpec.of(constraint_of(spec)) == spec


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(max_new_tokens=None, temperature=0.0, top_p=0.5, top_k=3, min_p=0.1),
        SamplingParams(stop=("a",), stop_token_ids=(1, 2), stop_regex=("c+",), min_new_tokens=2),
        SamplingParams(logit_bias={5: -1.5, 6: 100.0}, sampling_seed=-(2**63), ignore_eos=True),
        SamplingParams(frequency_penalty=1.0, presence_penalty=-1.0, repetition_penalty=1.5),
        SamplingParams(no_stop_trim=True, skip_special_tokens=False, grammar=SPECS[0]),
        SamplingParams(grammar=SPECS[5], jump_forward="canonical", stream_interval=7),
    ],
    ids=lambda p: next(iter(sampling_of(p))),
)
def test_parameters_arrive_as_the_same_ones(params: SamplingParams) -> None:
    assert SamplingParams.parse(sampling_of(params)) == params


def test_every_field_of_a_call_is_sent() -> None:
    with fake_server(lambda path, body: [head(), *answer("ok")]) as server, HTTP(server.url) as b:
        call = Call(
            input_ids=[1, 2],
            params=SamplingParams(max_new_tokens=3),
            namespace="n",
            priority=4,
            timeout_s=50.0,
            choice=2,
            stream=True,
            chat=True,
        )
        read_all(b, call)
    ((_, _, body),) = server.requests
    assert 0 < body.pop("timeout") <= 50.0
    assert body.pop("rid")
    assert body.pop("sampling_params")["stream_interval"] == 1
    assert body == {
        "input_ids": [1, 2], "stream": True, "incremental": True, "chat": True, "choice": 2,
        "priority": 4, "extra_key": "n",
    }  # fmt: skip


# -- the same as in the process -----------------------------------------------------------------


def test_seeds_logprobs_and_usage_are_those_of_the_engine() -> None:
    options: dict[str, Any] = {
        "n": 3, "seed": 7, "max_tokens": 5, "return_logprob": True, "logprob_start_len": 0,
        "top_logprobs_num": 2, "return_text_in_logprobs": True,
    }  # fmt: skip
    runs = []
    with serving(ScriptedModel(logits=alphabet)) as server, HTTP(server.url) as backend:
        for target in (server.engine, backend):
            server.engine.flush_cache()
            runs.append(say.bind(**options).run("hello", backend=target))
    here, there = runs
    assert here["x"] == there["x"] and len(set(here["x"])) == 3
    assert here.get_meta_info("x") == there.get_meta_info("x")
    assert here.token_ids() == there.token_ids()
    # Which of three equal prompts is the first to be computed is nobody's choice.
    assert here.usage.computed_tokens == there.usage.computed_tokens


def test_forced_tokens_are_counted() -> None:
    schema = {"const": "a long text that is forced"}
    with serving(ScriptedModel([])) as server, HTTP(server.url) as backend:
        run = say.run("x", json_schema=schema, jump_forward="canonical", backend=backend)
        assert run["x"] == '"a long text that is forced"'
        assert run.usage.forced_tokens == server.engine.stats()["forced_tokens"] > 0


def test_namespaces_share_no_prefix() -> None:
    def call(namespace: str) -> Call:
        params = SamplingParams(max_new_tokens=1)
        return Call(input_ids=list(range(50)), params=params, namespace=namespace)

    with serving(ScriptedModel(lambda _: "a")) as server, HTTP(server.url) as backend:
        cached = [read_all(backend, call(n))[-1].usage.cached_tokens for n in "aabab"]
    assert cached == [0, 49, 0, 49, 49]


def test_branches_that_never_call_let_go_of_their_prefix() -> None:
    @rt.function
    def program(s: rt.ProgramState) -> None:
        s += "p" * 50
        forks = s.fork(3)
        forks[0].__iadd__(rt.gen("x"))

    with serving(ScriptedModel(lambda _: "a")) as server:
        with HTTP(server.url) as backend:
            run = program.run(backend=backend)
        # The client has said all it had to say when it is closed.
        assert server.engine.stats()["num_holds"] == 0
        assert [c.kind for c in run.usage.calls] == ["fork", "gen"]


def test_an_async_program_streams() -> None:
    @rt.function
    async def program(s: rt.ProgramState) -> list[str]:
        s += "tell: " + rt.gen("x", max_tokens=None)
        return [chunk async for chunk in s.text_async_iter("x")]

    with serving(ScriptedModel(["grüße 🙂"])) as server, HTTP(server.url) as backend:
        run = program.run(backend=backend, stream=True)
        assert "".join(run.value) == "grüße 🙂" and len(run.value) > 3


def test_flush_cache_forgets_or_says_that_it_is_busy() -> None:
    gate = threading.Event()

    def script(prompt: str) -> Reply:
        if prompt == "slow":
            gate.set()
            return Reply("s" * 4000)
        return Reply("a")

    with serving(ScriptedModel(script, step_s=0.001)) as server, HTTP(server.url) as backend:
        say.run("hello", backend=backend)
        rt.flush_cache(backend)
        assert say.run("hello", backend=backend).usage.cached_tokens == 0
        run = say.run("slow", max_tokens=4000, backend=backend, stream=True)
        assert gate.wait(30)
        with pytest.raises(EngineBusy):
            backend.flush_cache()
        run.cancel()
        with pytest.raises(RequestAborted):
            run.sync()


# -- errors -------------------------------------------------------------------------------------


def test_g4_errors_surface_at_their_own_place_in_a_batch() -> None:
    @rt.function
    def program(s: rt.ProgramState, number: int) -> str:
        s += f"number {number}: "
        s += rt.gen("x", logit_bias={99_999: 1.0} if number == 7 else None)
        if number == 12:
            raise ValueError("twelve")
        text: str = s["x"]
        return text

    with serving(ScriptedModel(lambda p: f"said {p}")) as server, HTTP(server.url) as backend:
        runs = program.run_batch([{"number": i} for i in range(20)], backend=backend)
    assert len(runs) == 20
    for number, run in enumerate(runs):
        if number not in (7, 12):
            assert run.error is None and run.value == f"said number {number}: "
    refused, raised = runs[7].error, runs[12].error
    assert isinstance(refused, InvalidParameter) and refused.param == "logit_bias"
    assert isinstance(raised, ValueError) and str(raised) == "twelve"
    with pytest.raises(InvalidParameter) as again:
        runs[7]["x"]
    assert again.value is refused


def test_an_error_has_its_class_and_its_data() -> None:
    model = ScriptedModel(lambda _: "a", context_length=64)
    with serving(model) as server, HTTP(server.url) as backend:
        with pytest.raises(PromptTooLong) as raised:
            say.run("x" * 100, backend=backend)
        with pytest.raises(PromptTooLong) as here:
            say.run("x" * 100, backend=server.engine)
    assert raised.value.message == here.value.message
    assert raised.value.data.get("limit") == here.value.data.get("limit")


@pytest.mark.parametrize("delay_s", [0.0, 0.05], ids=["status", "event"])
def test_what_a_failed_call_has_cost_is_told(delay_s: float) -> None:
    """Both ways to fail: before the first token, and in the middle of a stream."""
    reply = Reply(error=NumericalError("NaN"), delay_s=delay_s)
    with serving(ScriptedModel([reply], step_s=0.001)) as server:
        with HTTP(server.url) as backend:
            run = say.run("hello", max_tokens=4000, backend=backend, stream=True)
            assert isinstance(run.error, NumericalError)
        stats = server.engine.stats()
    (call,) = run.usage.calls
    assert call.tokens is not None and run.usage.num_unknown == 0
    assert call.prompt_tokens == call.computed_tokens == stats["computed_tokens"] == 5
    assert call.completion_tokens == stats["completion_tokens"]
    assert (call.completion_tokens > 0) is (delay_s > 0)


def test_what_an_aborted_call_has_cost_is_told() -> None:
    with serving(ScriptedModel([Reply("x" * 4000)], step_s=0.001)) as server:
        with HTTP(server.url) as backend:
            run = say.run("hello", max_tokens=4000, backend=backend, stream=True)
            assert next(run.text_iter("x"))
            run.cancel()
            assert isinstance(run.error, RequestAborted)
        stats = server.engine.stats()
    (call,) = run.usage.calls
    assert call.prompt_tokens == 5
    assert call.completion_tokens == stats["completion_tokens"] > 0


def test_keys_are_sent() -> None:
    with (
        fake_server(lambda path, body: json_answer({}, 401)) as server,
        HTTP(server.url, api_key="secret") as backend,
        pytest.raises(NotAuthenticated),
    ):
        read_all(backend, Call(params=SamplingParams()))
    assert server.requests[0][1]["authorization"] == "Bearer secret"


@pytest.mark.parametrize("url", ["", "localhost:1", "ftp://x", "http://", "http://x:port", "/x"])
def test_what_is_no_address_is_refused_at_once(url: str) -> None:
    with pytest.raises(ConfigError, match="address"):
        HTTP(url)


def test_a_server_of_another_kind_is_named_as_such() -> None:
    with (
        fake_server(lambda path, body: json_answer({"detail": "Not Found"}, 404)) as server,
        HTTP(server.url) as backend,
        pytest.raises(ConfigError, match="no rtlang server"),
    ):
        say.run("x", backend=backend)


def test_a_tokenizer_that_cannot_be_sent_can_be_given() -> None:
    class Own(ByteTokenizer):
        pass

    with serving(ScriptedModel(lambda _: "a", tokenizer=Own())) as server:
        with HTTP(server.url) as backend, pytest.raises(Unsupported, match="tokenizer="):
            say.run("x", backend=backend)
        with HTTP(server.url, tokenizer=Own()) as backend:
            assert say.run("x", backend=backend)["x"] == "a"


# -- a server that fails ------------------------------------------------------------------------


def answer(text: str) -> list[bytes]:
    meta = {"finish_reason": {"type": "stop", "matched": 256, "detail": "eos"}}
    return [
        event({"text": text, "output_ids": list(text.encode()), "meta_info": {}}),
        event({"text": "", "output_ids": [256], "meta_info": meta}),
        event("[DONE]"),
    ]


def read_all(backend: HTTP, call: Call) -> list[Any]:
    """A call's chunks, read in the background loop as programs do."""

    async def read() -> list[Any]:
        return [chunk async for chunk in backend.start(call)]

    return asyncio.run_coroutine_threadsafe(read(), background()).result(30)


def background() -> asyncio.AbstractEventLoop:
    return loop._get().loop


def ask(server: FakeServer, **options: Any) -> str:
    with HTTP(server.url, tokenizer=ByteTokenizer(), **options) as backend:
        text: str = say.run("x", backend=backend)["x"]
        return text


def plays(*answers: Sequence[bytes | threading.Event]) -> Any:
    """The answers to the first, second, … request."""
    rest = iter(answers)
    return lambda path, body: next(rest)


def test_an_answer_that_breaks_off_is_an_error_and_not_asked_for_again() -> None:
    with (
        fake_server(plays([head(), answer("part")[0]])) as server,
        pytest.raises(ServerUnreachable, match="in the middle") as raised,
    ):
        ask(server)
    assert raised.value.sent is True and len(server.requests) == 1


def test_a_connection_that_is_closed_without_a_word_is_an_error() -> None:
    with fake_server(plays([])) as server, pytest.raises(ServerUnreachable) as raised:
        ask(server)
    assert raised.value.sent is True and len(server.requests) == 1


def test_a_server_that_falls_silent_is_an_error() -> None:
    silence = threading.Event()
    with fake_server(plays([head(), answer("part")[0], silence])) as server:
        try:
            with pytest.raises(ServerUnreachable, match=r"nothing for 0\.2 s"):
                ask(server, timeout=0.2)
        finally:
            silence.set()


def test_an_error_in_the_middle_is_the_one_that_the_server_had() -> None:
    failed = event({"error": {"code": "numerical_error", "message": "NaN", "param": None}})
    with (
        fake_server(plays([head(), answer("part")[0], failed, event("[DONE]")])) as server,
        pytest.raises(EngineError, match="NaN") as raised,
    ):
        ask(server)
    assert raised.value.code == "numerical_error"


@pytest.mark.parametrize("data", ["no json", '{"text": 5}', '{"output_ids": ["x"]}'])
def test_what_is_not_understood_is_an_error(data: str) -> None:
    with (
        fake_server(plays([head(), event(data)])) as server,
        pytest.raises(EngineError, match="not understood"),
    ):
        ask(server)


def test_lines_end_with_line_feeds_alone_however_they_are_cut() -> None:
    said = "a\u2028b\u0085c\x0cd"
    parts = [bytes([byte]) for byte in b"".join(answer(said)).replace(b"\n", b"\r\n")]
    with fake_server(plays([head(), *parts])) as server:
        assert ask(server) == said


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with (
        HTTP(f"http://127.0.0.1:{port}", tokenizer=ByteTokenizer(), retries=1) as backend,
        pytest.raises(ServerUnreachable, match="no connection") as raised,
    ):
        say.run("x", backend=backend)
    assert raised.value.sent is False


REFUSED = {"error": {"code": "queue_full", "message": "full"}}


def test_a_refusal_that_says_when_to_come_back_is_tried_again() -> None:
    refusal = json_answer(REFUSED, 503, Retry_After="0")
    with fake_server(plays(refusal, refusal, [head(), *answer("at last")])) as server:
        assert ask(server) == "at last"
    assert len(server.requests) == 3
    assert len({body["rid"] for _, _, body in server.requests}) == 1


def test_tries_are_bounded() -> None:
    refusal = json_answer(REFUSED, 503, Retry_After="0")
    with fake_server(lambda path, body: refusal) as server, pytest.raises(QueueFull, match="full"):
        ask(server, retries=2)
    assert len(server.requests) == 3


@pytest.mark.parametrize(
    ("status", "headers", "error"),
    [
        (503, {}, ServerUnavailable),
        (503, {"Retry_After": "Wed, 21 Oct 2015 07:28:00 GMT"}, ServerUnavailable),
        (503, {"Retry_After": "86400"}, ServerUnavailable),
        (500, {"Retry_After": "0"}, EngineError),
        (400, {"Retry_After": "0"}, RequestError),
    ],
)
def test_other_refusals_are_final(status: int, headers: dict[str, str], error: Any) -> None:
    refusal = [head(status, **headers), b"<html>no json</html>"]
    with (
        fake_server(lambda path, body: refusal) as server,
        pytest.raises(error, match=f"HTTP {status}: <html>"),
    ):
        ask(server)
    assert len(server.requests) == 1


def test_a_cancelled_call_waits_for_no_retry() -> None:
    asked = threading.Event()

    def play(path: str, body: Any) -> list[bytes]:
        asked.set()
        return json_answer(REFUSED, 503, Retry_After="60")

    with fake_server(play) as server, HTTP(server.url, tokenizer=ByteTokenizer()) as backend:
        run = say.run("x", backend=backend, stream=True)
        assert asked.wait(30)
        run.cancel()
        assert isinstance(run.error, RequestAborted)


def test_a_server_that_does_not_abort_is_left() -> None:
    begun, never = threading.Event(), threading.Event()

    def play(path: str, body: Any) -> list[bytes | threading.Event]:
        if path == "/abort_request":
            return list(json_answer(REFUSED, 503))
        begun.set()
        return [head(), answer("part")[0], never]

    with fake_server(play) as server, HTTP(server.url, tokenizer=ByteTokenizer()) as backend:
        run = say.run("x", backend=backend, stream=True)
        assert next(run.text_iter("x")) == "part"
        run.cancel()
        assert isinstance(run.error, RequestAborted)
        never.set()


def test_branches_wait_for_the_announcement_however_it_ends() -> None:
    def play(path: str, body: Any) -> list[bytes]:
        if "announce" in body:
            return json_answer({"error": {"code": "engine_error", "message": "no"}}, 500)
        return [head(), *answer("fine")]

    @rt.function
    def program(s: rt.ProgramState) -> None:
        s += "prefix"
        forks = s.fork(2)
        forks += rt.gen("x")
        forks[0].sync()

    with (
        fake_server(play) as server,
        HTTP(server.url, tokenizer=ByteTokenizer()) as backend,
        pytest.raises(EngineError, match="no"),
    ):
        program.run(backend=backend)
    first = server.requests[0][2]
    assert first["announce"] == 2 and first["sampling_params"]["max_new_tokens"] == 0


def test_importing_the_language_loads_no_http() -> None:
    shown = "print(*(name in sys.modules for name in ('httpx', 'torch')))"
    code = f"import sys, rtlang; {shown}; rtlang.HTTP; {shown}"
    assert run_python(code).split() == ["False", "False", "True", "False"]
