"""What a caller may ask: ranges, nulls, refusals by name, copies."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from rtlang.errors import InvalidParameter, Unsupported
from rtlang.grammar.spec import GrammarSpec
from rtlang.runtime.sampling_params import (
    MAX_N,
    MAX_STOP_LEN,
    MAX_STOP_REGEX_LEN,
    MAX_STOPS,
    NOT_BUILT,
    SamplingParams,
    check_against_vocab,
)

NAN, INF = math.nan, math.inf
INT64 = 2**63

GOOD: dict[str, list[Any]] = {
    "max_new_tokens": [0, 1, INT64 - 1, None],
    "min_new_tokens": [0, 128],
    "temperature": [0, 0.0, 1e-7, 1, 2.0, 1e308],
    "top_p": [5e-324, 0.5, 1, 1.0],
    "top_k": [-1, 1, 50, INT64 - 1],
    "min_p": [0, 0.0, 0.5, 1],
    "frequency_penalty": [-2, -2.0, 0, 2],
    "presence_penalty": [-2, -2.0, 0, 2],
    "repetition_penalty": [5e-324, 0.5, 1, 2],
    "n": [1, MAX_N],
    "stop": ["a", ["a"], ("a", "bc"), ["a"] * MAX_STOPS, [], "a" * MAX_STOP_LEN],
    "stop_token_ids": [[0], [5, 7], (5,), [], 5],
    "stop_regex": ["a+", ["a+"], ["a" * MAX_STOP_REGEX_LEN], []],
    "ignore_eos": [True, False],
    "skip_special_tokens": [True, False],
    "spaces_between_special_tokens": [True, False],
    "no_stop_trim": [True, False],
    "stream_interval": [1, 10],
    "logit_bias": [{}, {5: 1}, {"5": -100, "0": 100.0}, {5: 0.5}],
    "sampling_seed": [0, -1, INT64 - 1, -INT64, None],
    "grammar": [GrammarSpec.regex("a"), {"json_schema": True, "whitespace": 0}, None],
    "jump_forward": ["off", "canonical", None],
}
BAD: dict[str, list[Any]] = {
    "max_new_tokens": [-1, 1.0, "5", True, NAN, INT64],
    "min_new_tokens": [-1, 1.5, "5", True, INT64, 129],  # 129 exceeds the default length
    "temperature": [-1, -1e-9, NAN, INF, -INF, "1", True, [1.0], 10**400],
    "top_p": [0, 0.0, -1, 1.5, 1.0000001, NAN, INF, "1", True],
    "top_k": [0, -2, 1.0, NAN, "5", True, INT64],
    "min_p": [-1, -1e-9, 1.5, NAN, INF, "0", False],
    "frequency_penalty": [-2.1, 2.1, NAN, INF, "0", True],
    "presence_penalty": [-2.1, 2.1, NAN, INF, "0", True],
    "repetition_penalty": [0, 0.0, -1, 2.1, NAN, INF, "1", True],
    "n": [0, -1, MAX_N + 1, 100000, 1.0, "1", True],
    "stop": [
        "", ["a", ""], [5], 5, 5.0, {"a"}, b"a", ["a"] * (MAX_STOPS + 1), ["a\ud800"],
        "a" * (MAX_STOP_LEN + 1),
    ],
    "stop_token_ids": [[-1], ["5"], "5", 5.5, [1.0], [True], True, {5}, -1],
    "stop_regex": ["", 5, [None], ["a"] * (MAX_STOPS + 1), "a" * (MAX_STOP_REGEX_LEN + 1)],
    "ignore_eos": [1, 0, "true"],
    "skip_special_tokens": [1, "true"],
    "spaces_between_special_tokens": [1, "true"],
    "no_stop_trim": [1, "true"],
    "stream_interval": [0, -1, 1.0, True, "1"],
    "logit_bias": [
        [5], 5, "5", {"abc": 1}, {"-1": 5}, {-1: 5}, {5: 101}, {5: -101}, {5: NAN}, {5: INF},
        {5: "1"}, {5: True}, {5: None}, {1.5: 1}, {True: 1}, {None: 1}, {"": 1}, {"1_0": 1},
        {" 5": 1}, {"٣": 1}, {"5": 1, 5: 2}, {"5": 1, "05": 1},
    ],
    "sampling_seed": [INT64, -INT64 - 1, 1.0, "5", True, NAN],
    "grammar": ["a", 5, ["a"], True],
    "jump_forward": ["on", "", 1, True, ["off"]],
}  # fmt: skip


def cases(table: dict[str, list[Any]]) -> list[Any]:
    return [
        pytest.param(name, value, id=f"{name}-{i}")
        for name, values in table.items()
        for i, value in enumerate(values)
    ]


def test_every_parameter_has_its_cases() -> None:
    assert set(GOOD) == set(BAD) == set(SamplingParams.__struct_fields__)


@pytest.mark.parametrize(("name", "value"), cases(GOOD))
def test_value_in_range_is_taken_and_survives_the_wire(name: str, value: Any) -> None:
    params = SamplingParams.parse({name: value})
    wire = msgspec.msgpack.encode(params.resolve())
    assert msgspec.msgpack.decode(wire, type=SamplingParams) == params.resolve()


@pytest.mark.parametrize(("name", "value"), cases(BAD))
def test_d7_value_out_of_range_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(InvalidParameter, match=name) as caught:
        SamplingParams.parse({name: value})
    assert caught.value.param == name


@pytest.mark.parametrize(("name", "value"), cases(BAD))
def test_constructor_refuses_what_parse_refuses(name: str, value: Any) -> None:
    given: dict[str, Any] = {name: value}
    if name == "logit_bias" and isinstance(value, dict) and len(value) > 1:
        given[name] = {"5": 1}  # twice the same id is a matter of JSON's keys
    with pytest.raises(InvalidParameter) as caught:
        SamplingParams(**given)
    assert caught.value.param == name


@pytest.mark.parametrize("key", ["-1", "abc", -1])
def test_d4_bad_bias_key_is_named(key: Any) -> None:
    with pytest.raises(InvalidParameter, match=str(key)):
        SamplingParams.parse({"logit_bias": {key: 5}})


def test_d4_ids_outside_the_vocabulary_are_refused() -> None:
    fine = SamplingParams.parse({"logit_bias": {"31999": 5}, "stop_token_ids": [31999]})
    check_against_vocab(fine, 32000)
    check_against_vocab(SamplingParams(), 1)
    bad: dict[str, Any] = {"logit_bias": {"1": 1, "999999": 5}, "stop_token_ids": [0, 32000]}
    for name, value in bad.items():
        with pytest.raises(InvalidParameter, match=name) as caught:
            check_against_vocab(SamplingParams.parse({name: value}), 32000)
        assert caught.value.param == name
        worst = max(int(i) for i in value)
        assert str(worst) in str(caught.value)
    with pytest.raises(InvalidParameter, match=str(10**19)):
        check_against_vocab(SamplingParams.parse({"logit_bias": {str(10**19): 1}}), 32000)


def test_null_is_absent_for_everything_but_the_length() -> None:
    nulls = dict.fromkeys(set(SamplingParams.__struct_fields__) - {"max_new_tokens"})
    assert SamplingParams.parse(nulls) == SamplingParams()
    assert SamplingParams.parse(None) == SamplingParams.parse({}) == SamplingParams()
    assert SamplingParams.parse({"max_new_tokens": None}).max_new_tokens is None
    assert SamplingParams().max_new_tokens == 128


@pytest.mark.parametrize("name", ["temprature", "max_tokens", "Temperature", "top-p"])
def test_unknown_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidParameter, match=name) as caught:
        SamplingParams.parse({name: None})
    assert caught.value.param == name
    given: dict[str, Any] = {name: 1}
    with pytest.raises(TypeError):
        SamplingParams(**given)


@pytest.mark.parametrize("name", sorted(NOT_BUILT))
def test_what_is_not_built_is_refused_by_name(name: str) -> None:
    with pytest.raises(Unsupported, match=name) as caught:
        SamplingParams.parse({name: "x"})
    assert caught.value.param == name
    assert SamplingParams.parse({name: None}) == SamplingParams()


@pytest.mark.parametrize("given", [[("n", 1)], "n=1", 5])
def test_no_mapping_is_refused(given: Any) -> None:
    with pytest.raises(InvalidParameter):
        SamplingParams.parse(given)


def test_minimum_may_not_exceed_the_length() -> None:
    with pytest.raises(InvalidParameter) as caught:
        SamplingParams(min_new_tokens=6, max_new_tokens=5)
    assert caught.value.param == "min_new_tokens"
    assert SamplingParams(min_new_tokens=5, max_new_tokens=5).min_new_tokens == 5
    assert SamplingParams(min_new_tokens=10**6, max_new_tokens=None).max_new_tokens is None


def test_callers_objects_are_copied_and_never_changed() -> None:
    given = {
        "stop": ["a"],
        "stop_regex": ["b+"],
        "stop_token_ids": [1],
        "logit_bias": {"5": 1.0},
    }
    params = SamplingParams.parse(given)
    assert given == {
        "stop": ["a"],
        "stop_regex": ["b+"],
        "stop_token_ids": [1],
        "logit_bias": {"5": 1.0},
    }
    for value in given.values():
        value.clear()  # type: ignore[attr-defined]
    assert (params.stop, params.stop_regex, params.stop_token_ids) == (("a",), ("b+",), (1,))
    assert params.logit_bias == {5: 1.0}
    bias = {5: 1.0}
    params = SamplingParams(logit_bias=bias)
    bias[6] = 1000.0
    assert params.logit_bias == {5: 1.0}


def test_params_are_passed_through_and_frozen() -> None:
    params = SamplingParams(temperature=0.5)
    assert SamplingParams.parse(params) is params
    with pytest.raises(AttributeError):
        params.temperature = 1.0  # type: ignore[misc]


def test_resolve_fills_in_chat_defaults_and_then_the_table() -> None:
    plain = SamplingParams().resolve()
    values = (plain.temperature, plain.top_p, plain.top_k, plain.min_p, plain.repetition_penalty)
    assert values == (1.0, 1.0, -1, 0.0, 1.0)
    chat = SamplingParams(top_k=7).resolve({"temperature": 0.2, "top_k": 50, "top_p": 0.9})
    assert (chat.temperature, chat.top_k, chat.top_p, chat.min_p) == (0.2, 7, 0.9, 0.0)
    assert SamplingParams().resolve({"top_k": 0}).top_k == -1
    assert chat.resolve({"temperature": 5.0}) == chat
    assert chat.sampling_seed is None
    with pytest.raises(InvalidParameter):
        SamplingParams().resolve({"temperature": -1.0})


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({}, False),
        ({"temperature": 0}, True),
        ({"temperature": 9.9e-6}, True),
        ({"temperature": 1e-5}, False),
        ({"top_k": 1}, True),
        ({"top_k": 2}, False),
        ({"top_p": 1e-9}, False),
    ],
)
def test_greedy(params: dict[str, Any], expected: bool) -> None:
    assert SamplingParams(**params).greedy is expected


def test_integer_bounds_are_told() -> None:
    with pytest.raises(InvalidParameter, match=r"\[1, 128\]"):
        SamplingParams(n=129)
