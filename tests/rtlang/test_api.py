"""Constructors: what is wrong with an argument is raised where it stands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from fake_backend import FakeBackend

import rtlang as rt
from rtlang.backends.base import Capabilities
from rtlang.errors import InvalidParameter, ProgramError, Unsupported
from rtlang.runtime.sampling_params import SamplingParams


@pytest.mark.parametrize(
    "arguments",
    [
        {"max_tokens": 0},
        {"max_tokens": -5},
        {"temperature": -1.0},
        {"top_p": 0.0},
        {"n": 0},
        {"stop": ""},
        {"stop": ["a"] * 33},
        {"timeout": 0},
        {"timeout": float("nan")},
        {"seed": 2**63},
        {"top_k": 0},
        {"logit_bias": {"a": 1.0}},
    ],
)
def test_values_out_of_range_are_refused_at_construction(arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidParameter):
        rt.gen("x", **arguments)


def test_an_unknown_argument_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="max_token_s"):
        rt.gen("x", max_token_s=3)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    "arguments",
    [
        {"max_tokens": 5},
        {"max_tokens": None},
        {"n": 2},
        {"stop": "."},
        {"top_p": 0.5},
        {"return_logprob": True},
        {"choices_method": rt.token_length_normalized, "temperature": 0.7},
        {"seed": 1},
    ],
)
def test_choices_refuse_arguments_that_contradict_them(arguments: dict[str, Any]) -> None:
    with pytest.raises(ProgramError):
        rt.gen("x", choices=["a", "b"], **arguments)


@pytest.mark.parametrize(
    "make",
    [
        lambda: rt.gen("x", choices=[]),
        lambda: rt.select("x", []),
        lambda: rt.select("x", ["a", ""]),
        lambda: rt.select("x", ["a", "b", "a"]),
        lambda: rt.select("x", "yes"),
        lambda: rt.select("x", ["a"], choices_method="best"),
        lambda: rt.gen("x", choices_method="greedy_token_selection"),
        lambda: rt.gen(""),
    ],
)
def test_empty_double_or_unknown_choices_are_refused(make: Callable[[], Any]) -> None:
    with pytest.raises(ProgramError):
        make()


def test_an_expression_is_no_text_and_text_is_no_none() -> None:
    for wrong in (None, 3, ["a"], object()):
        with pytest.raises(TypeError):
            rt.gen("x") + wrong  # type: ignore[operator]
        with pytest.raises(TypeError):
            rt.user(wrong) if wrong is not None else rt.user("a") + None  # type: ignore


def program_with(expr: Any) -> rt.Program[None]:
    @rt.function
    def program(s: rt.ProgramState) -> None:
        s += "prompt"
        s += expr

    return program


def test_every_sampling_parameter_reaches_the_call() -> None:
    backend = FakeBackend()
    given: dict[str, Any] = {
        "min_tokens": 2, "stop": ["a", "b"], "stop_token_ids": [7], "stop_regex": "x+",
        "temperature": 0.5, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "frequency_penalty": 0.2,
        "presence_penalty": 0.3, "repetition_penalty": 1.1, "logit_bias": {5: 1.0},
        "ignore_eos": True, "seed": 3, "keep_stop": True, "skip_special_tokens": False,
    }  # fmt: skip
    program_with(rt.gen("x", 40, timeout=9.0, **given)).run(backend=backend, priority=4)
    (call,) = backend.calls
    assert call.params == SamplingParams(
        max_new_tokens=40, min_new_tokens=2, stop=("a", "b"), stop_token_ids=(7,),
        stop_regex=("x+",), temperature=0.5, top_p=0.9, top_k=5, min_p=0.1,
        frequency_penalty=0.2, presence_penalty=0.3, repetition_penalty=1.1,
        logit_bias={5: 1.0}, ignore_eos=True, sampling_seed=3, no_stop_trim=True,
        skip_special_tokens=False,
    )  # fmt: skip
    assert (call.timeout_s, call.priority) == (9.0, 4)


def test_a_gens_value_replaces_runs_and_max_tokens_none_means_no_limit() -> None:
    backend = FakeBackend()

    @rt.function
    def program(s: rt.ProgramState) -> None:
        s += "p" + rt.gen()
        s += rt.gen(max_tokens=5, stop="own", temperature=0.0)
        s += rt.gen(max_tokens=None)

    program.run(backend=backend)
    program.run(backend=backend, max_new_tokens=9, stop=["run"], temperature=0.3)
    params = [c.params for c in backend.calls]
    assert [p.max_new_tokens for p in params] == [128, 5, None, 9, 5, None]
    assert [p.stop for p in params] == [(), ("own",), (), ("run",), ("own",), ("run",)]
    assert [p.temperature for p in params] == [None, 0.0, None, 0.3, 0.0, 0.3]


def test_a_users_lists_are_never_changed() -> None:
    stop, bias, run_stop = ["x"], {3: 1.0}, ["y"]
    item = {"q": "a"}

    @rt.function
    def program(s: rt.ProgramState, q: str) -> None:
        for _ in range(100):
            s += rt.user(q) + rt.assistant(rt.gen("x", stop=stop, logit_bias=bias))

    program.run_batch([item], backend=FakeBackend(), stop=run_stop)
    assert (stop, bias, run_stop, item) == (["x"], {3: 1.0}, ["y"], {"q": "a"})


def test_contradictions_between_run_and_gen_raise_at_the_line() -> None:
    with pytest.raises(InvalidParameter, match="min_new_tokens"):
        program_with(rt.gen("x", min_tokens=200)).run(backend=FakeBackend())
    with pytest.raises(InvalidParameter, match="return_logprob"):
        program_with(rt.gen("x", top_logprobs_num=2)).run(backend=FakeBackend())


def test_what_a_backend_cannot_do_is_refused_before_its_first_request() -> None:
    few = Capabilities(score=False, sampling=frozenset({"max_new_tokens", "temperature"}))
    backend = FakeBackend(capabilities=few)
    with pytest.raises(Unsupported, match="top_k"):
        program_with(rt.gen("x", top_k=3)).run(backend=backend)
    with pytest.raises(Unsupported, match="top_k"):
        program_with(rt.gen("x")).run(backend=backend, top_k=3)
    with pytest.raises(Unsupported):
        program_with(rt.select("x", ["a", "b"])).run(backend=backend)
    with pytest.raises(Unsupported, match="token ids"):
        text_only = FakeBackend(capabilities=Capabilities(token_ids=False))
        program_with("x").run(backend=text_only)
    assert backend.calls == []
