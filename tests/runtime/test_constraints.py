"""Constraints in the engine: area f, dead ends, minimum length, retraction, jump-forward."""

from __future__ import annotations

import functools
import json
import random
import re
import threading
import time
from typing import Any

import pytest
from conftest import MakeEngine
from constrained_models import FORCED, noisy

from rtlang.errors import (
    ConflictingConstraints,
    EngineError,
    GrammarError,
    GrammarTimeout,
    GrammarUnsatisfiable,
    InvalidEbnf,
    InvalidRegex,
    RtlangError,
    UnsupportedKeyword,
)
from rtlang.grammar.service import GrammarService
from rtlang.grammar.spec import GrammarSpec
from rtlang.grammar.vocab import Vocab
from rtlang.runtime import constraints, worker
from rtlang.testing import ScriptedModel
from rtlang.testing.tiny import TinyModel


@pytest.fixture(params=[False, True], ids=["plain", "overlapped"])
def make_engine(request: pytest.FixtureRequest, make_engine: MakeEngine) -> MakeEngine:
    """Every test here: with steps one after the other, and planned beside each other."""
    return functools.partial(make_engine, enable_overlap=request.param)


CITY: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "population": {"type": "integer", "minimum": 0, "maximum": 999},
        "capital": {"type": "boolean"},
    },
    "required": ["name", "population", "capital"],
    "additionalProperties": False,
}


# -- what is generated ----------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_random_logits_make_valid_json(make_engine: MakeEngine, temperature: float) -> None:
    engine = make_engine(noisy())
    params = {
        "json_schema": CITY, "temperature": temperature, "max_new_tokens": 400, "sampling_seed": 3,
    }  # fmt: skip
    results = engine.generate([f"city {i}" for i in range(12)], params)
    for result in results:
        assert result.finish_reason.type == "stop"
        found = json.loads(result.text)
        assert list(found) == ["name", "population", "capital"]
        assert len(found["name"]) <= 8 and 0 <= found["population"] <= 999
        assert type(found["capital"]) is bool
    assert engine.stats()["grammar_compiles"] == 1


@pytest.mark.parametrize(
    ("params", "pattern"),
    [
        ({"regex": "(yes|no)"}, "yes|no"),
        ({"regex": "[😀-🙏]{3}"}, "[😀-🙏]{3}"),  # F4: a character is several tokens
        ({"regex": "日本.{0,5}"}, "日本.{0,5}"),
        ({"choice": ["John", "John Doe"]}, "John( Doe)?"),
        ({"ebnf": 'root ::= "<" [a-z]+ ">"'}, "<[a-z]+>"),
        ({"grammar": {"regex": "a[0-9]*"}}, "a[0-9]*"),
        ({"grammar": GrammarSpec.regex("x?")}, "x?"),
    ],
)
def test_f4_texts_match(make_engine: MakeEngine, params: dict[str, Any], pattern: str) -> None:
    engine = make_engine(noisy(1))
    for i in range(4):
        result = engine.generate(f"p{i}", {**params, "max_new_tokens": 100, "temperature": 1.0})
        if result.finish_reason.type == "stop":
            assert re.fullmatch(pattern, result.text), result.text
        else:
            assert result.finish_reason.type == "length"


def test_what_the_script_says_stays_where_it_is_allowed(make_engine: MakeEngine) -> None:
    engine = make_engine(ScriptedModel(["no", "maybe"]))
    texts = [engine.generate("p", {"regex": "yes|no|more"}).text for _ in range(2)]
    assert texts == ["no", "more"]


def test_length_ends_inside_a_value(make_engine: MakeEngine) -> None:
    result = make_engine(noisy()).generate("p", {"json_schema": CITY, "max_new_tokens": 4})
    assert result.finish_reason.type == "length" and result.usage.completion_tokens == 4


def test_siblings_have_matchers_of_their_own(make_engine: MakeEngine) -> None:
    engine = make_engine(noisy())
    params = {"regex": "[a-z]{3,9}", "n": 5, "temperature": 1.0, "sampling_seed": 1}
    texts = [result.text for result in engine.generate("p", params)]
    assert len(set(texts)) > 1 and all(re.fullmatch("[a-z]{3,9}", text) for text in texts)
    assert engine.stats()["grammar_compiles"] == 1


def test_f5_free_neighbours_are_as_alone(make_engine: MakeEngine) -> None:
    engine = make_engine(TinyModel(), disable_radix_cache=True)
    free = {"temperature": 0.0, "max_new_tokens": 24, "ignore_eos": True}
    alone = [engine.generate(f"text {i}", free).token_ids for i in range(3)]
    bound = {"regex": "[0-9]{2,40}", "max_new_tokens": 30, "temperature": 0.0}
    lonely = engine.generate("bound", bound).token_ids
    prompts = ["text 0", "bound", "text 1", "bound", "text 2"]
    params = [free, bound, free, {**bound, "max_new_tokens": 7}, free]
    together = [result.token_ids for result in engine.generate(prompts, params)]
    assert together[0::2] == alone
    assert together[1] == lonely and together[3] == lonely[:7]


def test_minimum_length_holds_back_the_end_unless_nothing_else_may_follow(
    make_engine: MakeEngine,
) -> None:
    engine = make_engine(noisy())
    params = {"temperature": 0.0, "min_new_tokens": 20, "max_new_tokens": 60}
    assert engine.generate("p", {**params, "regex": "yes|no"}).text in ("yes", "no")
    assert len(engine.generate("p", {**params, "regex": "[ab]*"}).text) >= 20


def test_a_bias_revives_no_token(make_engine: MakeEngine) -> None:
    engine = make_engine(noisy())
    bias = {ord("b"): 100, ord("y"): -100, ord("n"): -100}
    result = engine.generate("p", {"regex": "yes|no", "logit_bias": bias, "temperature": 0.0})
    assert result.text in ("yes", "no")


# -- errors ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("params", "error"),
    [
        ({"regex": '"(["'}, InvalidRegex),
        ({"ebnf": "root ::= nowhere"}, InvalidEbnf),
        ({"ebnf": 'root ::= root "a"'}, GrammarUnsatisfiable),
        ({"ebnf": "root ::= root"}, GrammarUnsatisfiable),
        ({"json_schema": {"type": "strin"}}, GrammarError),
        ({"json_schema": {"anyOf": [{"$ref": "#"}]}}, GrammarError),
        ({"json_schema": {"$ref": "https://example.com/s.json"}}, UnsupportedKeyword),  # F2
        ({"regex": "(?i)a"}, InvalidRegex),
        ({"regex": r"(a)\1"}, InvalidRegex),
    ],
)
def test_f1_f2_a_bad_grammar_hurts_only_its_sender(
    make_engine: MakeEngine, params: dict[str, Any], error: type[RtlangError]
) -> None:
    engine = make_engine(noisy())
    good = {"temperature": 1.0, "sampling_seed": 1, "regex": "[a-c]{5}"}
    given = [good, {"max_new_tokens": 9, "ignore_eos": True}, params, good]
    results = engine.generate(["p"] * 4, given, raise_errors=False)
    assert isinstance(results[2], error), results[2]
    assert results[0].text == results[3].text and re.fullmatch("[a-c]{5}", results[0].text)
    assert len(results[1].token_ids) == 9
    with pytest.raises(error):  # from the cache of refusals
        engine.generate("again", params)


@pytest.mark.parametrize(
    "params",
    [
        {"regex": "a", "ebnf": 'root ::= "a"'},
        {"regex": "a", "ignore_eos": True},
        {"regex": "a", "grammar": GrammarSpec.regex("a")},
    ],
)
def test_contradictions_are_refused_before_anything_is_sent(
    make_engine: MakeEngine, params: dict[str, Any]
) -> None:
    engine = make_engine(noisy())
    with pytest.raises(ConflictingConstraints):
        engine.generate("p", params)
    assert engine.stats()["num_requests"] == 0


def test_a_dead_end_ends_that_request_alone(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(token_bytes: Any, vocab_size: int, **rest: Any) -> Vocab:
        # The model cannot say digits.
        table = [b"" if data.isdigit() else data for data in token_bytes]
        return original(table, vocab_size, **rest)

    original = Vocab.build
    monkeypatch.setattr(Vocab, "build", staticmethod(build))
    engine = make_engine(noisy())
    good = {"regex": "[a-c]{5}", "temperature": 0.0}
    results = engine.generate(
        ["p", "p"], [{"regex": "ab[0-9]", "temperature": 0.0}, good], raise_errors=False
    )
    assert isinstance(results[0], EngineError) and results[0].code == "grammar_dead_end"
    assert re.fullmatch("[a-c]{5}", results[1].text)


def test_masks_that_take_too_long_end_the_request(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constraints, "MAX_FILL_S", -1.0)
    engine = make_engine(noisy())
    results = engine.generate(["p", "q"], [{"regex": "[ab]{9}"}, {"max_new_tokens": 9}],
                              raise_errors=False)  # fmt: skip
    assert results[0].code == "grammar_too_slow" and len(results[1].token_ids) <= 9


def test_while_one_compiles_others_run_and_it_can_be_given_up(make_engine: MakeEngine) -> None:
    engine = make_engine(noisy(), max_queued_requests=3)
    release = threading.Event()

    class Stuck(GrammarService):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options, compile=self._wait)

        def _wait(self, spec: GrammarSpec, watch: Any) -> Any:
            release.wait(20)
            raise GrammarTimeout("released")

    patch = pytest.MonkeyPatch()
    patch.setattr(worker, "GrammarService", Stuck)
    try:
        streams = [engine.generate(f"p{i}", {"regex": "a"}, stream=True) for i in range(2)]
        timed = engine.generate(["late"], [{"regex": "b"}], timeout=0.05, raise_errors=False)
        assert timed[0].code == "deadline_exceeded"
        assert len(engine.generate("free", {"max_new_tokens": 5, "ignore_eos": True}).text) > 0
        assert engine.stats()["queue"]["compiling"] == 2
        streams.append(engine.generate("p", {"regex": "a"}, stream=True))
        crowded = engine.generate(["p"], [{"regex": "c"}], raise_errors=False)
        assert crowded[0].code == "queue_full"
        release.set()
        for stream in streams:
            with pytest.raises(GrammarTimeout):
                list(stream)
    finally:
        patch.undo()
        release.set()


def test_a_compile_that_ends_after_its_request_wakes_the_loop_once(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers: list[worker.Worker] = []
    init = worker.Worker.__init__

    def kept(self: worker.Worker, *args: Any) -> None:
        init(self, *args)
        workers.append(self)

    monkeypatch.setattr(worker.Worker, "__init__", kept)
    engine = make_engine(noisy())
    engine.generate("p", {"max_new_tokens": 1})
    receive, turns = worker.Worker._receive, 0

    def counted(self: worker.Worker) -> None:
        nonlocal turns
        turns += 1
        receive(self)

    monkeypatch.setattr(worker.Worker, "_receive", counted)
    workers[0]._wake_up()
    time.sleep(0.2)
    assert turns < 20


# -- the scheduler's ways -------------------------------------------------------------------


def test_a_retraction_does_not_disturb_a_constraint(make_engine: MakeEngine) -> None:
    params = {"json_schema": CITY, "temperature": 0.0, "max_new_tokens": 120}
    prompts = [f"city number {i} " * 3 for i in range(6)]
    plenty = [r.text for r in make_engine(noisy()).generate(prompts, params)]
    tight = make_engine(noisy(), max_total_tokens=330, chunked_prefill_size=64)
    assert [r.text for r in tight.generate(prompts, params)] == plenty
    assert tight.stats()["num_retractions"] > 0


def test_aborted_streams_release_what_they_hold(make_engine: MakeEngine) -> None:
    engine = make_engine(noisy())
    rng = random.Random(0)
    for i in range(10):
        stream = engine.generate(
            f"p{i}", {"regex": "[a-z]{50,}", "max_new_tokens": 60}, stream=True
        )
        for _ in range(rng.randrange(4)):
            next(stream)
        stream.close()
        del stream
    assert re.fullmatch("a+", engine.generate("q", {"regex": "a{3}"}).text)


# -- jump-forward ---------------------------------------------------------------------------


@pytest.mark.parametrize("page_size", [1, 16])
def test_forced_text_is_not_sampled(make_engine: MakeEngine, page_size: int) -> None:
    results = {}
    for mode in ("off", "canonical"):
        model = noisy(2)
        engine = make_engine(model, page_size=page_size)
        params = {**FORCED, "jump_forward": mode, "temperature": 0.0, "max_new_tokens": 99}
        results[mode] = engine.generate("p", params), len(model.steps)
    (plain, plain_steps), (jumped, jumped_steps) = results["off"], results["canonical"]
    assert re.fullmatch(FORCED["regex"], jumped.text)
    assert jumped.token_ids == plain.token_ids  # bytes are canonical tokens of themselves
    assert plain.usage.forced_tokens == 0 and jumped.usage.forced_tokens >= 40
    assert jumped.usage.completion_tokens == plain.usage.completion_tokens
    assert jumped_steps < plain_steps / 3


def test_jumps_stream_what_they_return_and_count_logprobs(make_engine: MakeEngine) -> None:
    engine = make_engine(noisy(2), jump_forward="canonical")
    params = {**FORCED, "temperature": 0.0, "max_new_tokens": 99}
    whole = engine.generate("p", params, return_logprob=True)
    pieces = [chunk.text for chunk in engine.generate("p", params, stream=True)]
    assert "".join(pieces) == whole.text
    assert [entry.token_id for entry in whole.logprobs] == whole.token_ids
    assert sum(entry.logprob == 0.0 for entry in whole.logprobs) >= whole.usage.forced_tokens
    assert engine.stats()["forced_tokens"] == 2 * whole.usage.forced_tokens


@pytest.mark.parametrize("limit", [1, 5, 20, 33])
def test_a_limit_holds_inside_forced_text(make_engine: MakeEngine, limit: int) -> None:
    engine = make_engine(noisy(2), jump_forward="canonical")
    result = engine.generate("p", {**FORCED, "temperature": 0.0, "max_new_tokens": limit})
    assert result.usage.completion_tokens == limit and result.finish_reason.type == "length"
    stopped = engine.generate("p", {**FORCED, "stop": "is:", "max_new_tokens": 99})
    assert stopped.text == "the answer " and stopped.finish_reason.matched == "is:"


def test_jumping_batches_equal_jumping_alone(make_engine: MakeEngine) -> None:
    params = {**FORCED, "jump_forward": "canonical", "temperature": 1.0, "max_new_tokens": 99}
    free = {"temperature": 1.0, "max_new_tokens": 40, "ignore_eos": True}
    given = [{**(params if i % 3 else free), "sampling_seed": i} for i in range(9)]
    engine = make_engine(noisy(4), chunked_prefill_size=32, max_total_tokens=700)
    alone = [engine.generate(f"p{i}", p).token_ids for i, p in enumerate(given)]
    together = engine.generate([f"p{i}" for i in range(9)], given)
    assert [r.token_ids for r in together] == alone
