"""Constraints on the real SmolLM2: fixed ids, masks of its vocabulary, jump-forward."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import rtlang as rt
from rtlang.grammar.matcher import Matcher
from rtlang.grammar.spec import GrammarSpec
from rtlang.grammar.translate import translate
from rtlang.grammar.vocab import Vocab
from rtlang.grammar.xgr_backend import XgrBackend

pytestmark = [pytest.mark.model, pytest.mark.timeout(400)]

SYSTEM = {"role": "system", "content": "You are a helpful assistant."}
GREEDY: dict[str, Any] = {"temperature": 0, "max_new_tokens": 100}
SENTIMENT = "Classify the sentiment of: I love this movie! Answer positive, negative or neutral."


@pytest.fixture(scope="module")
def engine() -> Iterator[rt.Engine]:
    with rt.Engine("smollm2", max_total_tokens=8192) as engine:
        yield engine
        engine.check()


@pytest.fixture(scope="module")
def backend(engine: rt.Engine) -> XgrBackend:
    tokenizer = engine.tokenizer
    return XgrBackend(
        Vocab.build(
            tokenizer.token_bytes, engine.info.vocab_size,
            stop_ids=engine.info.eos_ids, special_ids=tokenizer.special_ids,
        )
    )  # fmt: skip


def chat(text: str) -> list[dict[str, str]]:
    return [SYSTEM, {"role": "user", "content": text}]


def allowed(matcher: Matcher) -> list[int]:
    bitmask = np.zeros((1, matcher.vocab.num_words), np.int32)
    matcher.fill(bitmask, 0)
    bits = np.unpackbits(bitmask[0].view(np.uint8), bitorder="little")
    return np.flatnonzero(bits[: matcher.vocab.vocab_size]).tolist()


def start(backend: XgrBackend, spec: GrammarSpec) -> Matcher:
    return backend.compile(translate(spec)).matcher()


def after(backend: XgrBackend, engine: rt.Engine, spec: GrammarSpec, text: str) -> Matcher:
    matcher = start(backend, spec)
    for token in engine.tokenizer.encode(text, add_bos=False, control=False):
        assert matcher.accept(token), text
    return matcher


def test_greedy_ids_without_a_constraint_and_with_one(engine: rt.Engine) -> None:
    free = engine.generate(chat("What is the capital of France? Answer in one word."), GREEDY)
    assert free.usage.prompt_tokens == 32
    assert free.token_ids == [504, 3575, 282, 4649, 314, 7042, 30, 2]
    bound = engine.generate(chat(SENTIMENT), {**GREEDY, "regex": "(positive|negative|neutral)"})
    assert bound.usage.prompt_tokens == 38
    assert bound.token_ids == [16185, 2]


def test_first_masks_of_schemas(backend: XgrBackend) -> None:
    counts = {
        kind: len(allowed(start(backend, GrammarSpec.json_schema({"type": kind}))))
        for kind in ("boolean", "null", "integer")
    }
    assert counts == {"boolean": 7, "null": 3, "integer": 11}


def test_special_tokens_are_no_text(backend: XgrBackend, engine: rt.Engine) -> None:
    spec = GrammarSpec.json_schema({"type": "string"})
    inside = allowed(after(backend, engine, spec, '"'))
    assert len(inside) == 48_769 and min(inside) > 16
    assert allowed(after(backend, engine, spec, '"ab"')) == sorted(engine.info.eos_ids)


def test_white_space_is_bounded(backend: XgrBackend, engine: rt.Engine) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"],
              "additionalProperties": False}  # fmt: skip
    spec = GrammarSpec.json_schema(schema)
    assert allowed(after(backend, engine, spec, "{\n" + " " * 15)) == [18]
    assert after(backend, engine, spec, '{"a": 1}').can_end()
    assert after(backend, engine, spec, json.dumps({"a": 1}, indent=4)).can_end()
    assert not rt.grammar.accepts(spec, "{" + " " * 500 + '"a": 1}')


def test_a_bias_on_a_masked_token_changes_nothing(engine: rt.Engine) -> None:
    params = {**GREEDY, "regex": "(yes|no)", "logit_bias": {21285: 100, 4607: -100, 10407: -100}}
    assert engine.generate("Is water wet? ", params).text in ("yes", "no")


@pytest.mark.parametrize("mode", ["off", "canonical"])
def test_jump_forward_saves_steps(engine: rt.Engine, mode: str) -> None:
    """The sampled form is fixed; the jumped one has the same text, in fewer steps."""
    ebnf = 'root ::= "Answer: " ("yes" | "no") "."'
    question = chat("Is the sun cold? Answer yes or no.")
    params = {**GREEDY, "ebnf": ebnf, "jump_forward": mode}
    before = engine.stats()["num_steps"]
    result = engine.generate(question, params)
    steps = engine.stats()["num_steps"] - before
    streamed = "".join(chunk.text for chunk in engine.generate(question, params, stream=True))
    assert result.text in ("Answer: yes.", "Answer: no.") and streamed == result.text
    assert result.usage.completion_tokens == len(result.token_ids)
    if mode == "canonical":
        assert result.usage.forced_tokens > 0 and steps <= 6
    else:
        assert result.usage.forced_tokens == 0 and steps >= 6


def test_answers_are_whole_json(engine: rt.Engine) -> None:
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {
            "city": {"type": "string", "maxLength": 16},
            "population": {"type": "integer", "minimum": 0, "maximum": 99_999_999},
            "is_capital": {"type": "boolean"},
        },
        "required": ["city", "population", "is_capital"],
        "additionalProperties": False,
    }
    prompts = [chat(f"Describe the city of {name}.") for name in ("Paris", "Rome", "Oslo", "Bern")]
    params = {"json_schema": schema, "max_new_tokens": 120, "temperature": 0.8, "sampling_seed": 1}
    for result in engine.generate(prompts, params):
        assert result.finish_reason.type == "stop"
        found = json.loads(result.text)
        assert list(found) == list(schema["properties"]) and len(found["city"]) <= 16
