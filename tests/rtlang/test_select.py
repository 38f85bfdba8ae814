"""``select``: the trie, the methods on tables worked out by hand, and the fast way's plain twin."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from conftest import MakeEngine
from fake_backend import FakeBackend, Play
from hypothesis import given
from hypothesis import strategies as st

import rtlang as rt
from rtlang.choices import (
    draw,
    greedy_token_selection,
    option_probs,
    token_length_normalized,
    unconditional_likelihood_normalized,
)
from rtlang.errors import EngineError
from rtlang.runtime.engine import Engine
from rtlang.testing import ByteTokenizer, ScriptedModel
from rtlang.trie import chains

# -- methods ------------------------------------------------------------------------------------


def test_a_zero_logprob_counts_in_the_mean() -> None:
    assert token_length_normalized([[-1.0, 0.0, 0.0], [-0.5, -0.5]]).index == 0


def test_g3_greedy_lets_no_predictable_tail_outvote_a_bad_first_token() -> None:
    short, long = [-1.0], [-3.0, 0.0, 0.0, 0.0, 0.0]
    assert token_length_normalized([short, long]).index == 1
    decision = greedy_token_selection([short, long])
    assert decision.index == 0
    assert decision.meta["greedy_logprob_matrix"] == [[-1.0] * 5, long]


def test_greedy_goes_on_with_a_short_options_own_mean() -> None:
    # Equal so far; then the short one stands at its mean, -0.75.
    assert greedy_token_selection([[-1.0, -0.5], [-1.0, -0.5, -0.7]]).index == 1
    assert greedy_token_selection([[-1.0, -0.5], [-1.0, -0.5, -0.8]]).index == 0


def test_unconditional_compares_with_the_options_own_likelihood() -> None:
    logprobs = [[-2.0, -1.0], [-1.0, -1.0]]
    unconditional = [[None, -5.0], [None, -1.0]]
    decision = unconditional_likelihood_normalized(logprobs, unconditional)
    assert decision.meta["normalized_unconditional_prompt_logprobs"] == [1.0, -0.5]
    assert decision.index == 0
    impossible = unconditional_likelihood_normalized([[-math.inf], [-9.0]], [[-math.inf], [-1.0]])
    assert impossible.index == 1


@pytest.mark.parametrize(
    "method", [token_length_normalized, greedy_token_selection, unconditional_likelihood_normalized]
)
def test_ties_go_to_the_first_option(method: Any) -> None:
    row = [-1.0, -2.0]
    assert method([row, row, row], [row, row, row]).index == 0


def test_probs_sum_to_one_and_draws_follow_them() -> None:
    rows = [[-1.0, -1.0], [-3.0], [-math.inf]]
    probs = option_probs(rows)
    assert sum(probs) == pytest.approx(1.0, abs=1e-9) and probs[2] == 0.0
    assert probs[0] / probs[1] == pytest.approx(math.e)
    assert option_probs(rows, 0.01)[0] == pytest.approx(1.0)
    drawn = [draw(probs, seed) for seed in range(2000)]
    assert drawn.count(0) / 2000 == pytest.approx(probs[0], abs=0.04) and 2 not in drawn
    assert drawn == [draw(probs, seed) for seed in range(2000)]


# -- the trie -----------------------------------------------------------------------------------


@given(st.lists(st.binary(min_size=1, max_size=6), min_size=1, max_size=6, unique=True))
def test_chains_score_every_trie_token_once(options: list[bytes]) -> None:
    found = chains(options)
    scored: list[tuple[int, ...]] = []
    for chain in found:
        whole = chain.path + chain.run
        scored += [whole[:end] for end in range(len(chain.path) + 2, len(whole) + 1)]
        scored += [(*whole, token) for token in chain.next_ids]
    nodes = {tuple(o[:end]) for o in options for end in range(1, len(o) + 1)}
    assert sorted(scored) == sorted(nodes)
    runs = [chain.path + chain.run[: i + 1] for chain in found for i in range(len(chain.run))]
    assert len(runs) == len(set(runs))  # computed once, too


# -- on the engine ------------------------------------------------------------------------------


def any_logits(tokens: Sequence[int]) -> npt.NDArray[np.float32]:
    """Depend on the whole text, as a model's would."""
    seed = hash(tuple(tokens)) % 2**32
    return np.random.default_rng(seed).normal(size=264).astype(np.float32)


def plain_logprobs(prompt: bytes, option: str) -> list[float]:
    """The plain twin: the whole text forward once per token, softmax in float64."""
    ids, row = list(prompt), []
    for token in option.encode():
        logits = any_logits(ids).astype(np.float64)
        row.append(float(logits[token] - np.log(np.exp(logits).sum())))
        ids.append(token)
    return row


OPTION_SETS = [
    ["yes", "no", "not sure"],
    ["a", "b", "c"],
    ["no", "not", "nothing", "not at all"],
    ["only"],
    ["🙂", "🙃", "é"],
    ["aa", "ab", "aab", "abb", "ba"],
]


@pytest.mark.parametrize("options", OPTION_SETS)
def test_scores_equal_those_of_one_plain_forward_per_option(
    make_engine: MakeEngine, options: list[str]
) -> None:
    engine = make_engine(ScriptedModel(logits=any_logits))

    @rt.function
    def program(s: rt.ProgramState) -> None:
        s += "the question: "
        s += rt.gen("x", choices=options)

    run = program.run(backend=engine)
    meta = run.get_meta_info("x")
    expected = [plain_logprobs(b"the question: ", o) for o in options]
    for row, want, option in zip(meta["input_token_logprobs"], expected, options, strict=True):
        assert [token for _, token, _ in row] == list(option.encode())
        assert [v for v, _, _ in row] == pytest.approx(want, abs=1e-4)
    means = [sum(row) / len(row) for row in expected]
    assert run["x"] == options[means.index(max(means))]
    assert run.text() == "the question: " + run["x"]
    nodes = {o.encode()[: end + 1] for o in options for end in range(len(o.encode()))}
    assert run.usage.computed_tokens <= len("the question: ") + len(nodes)
    again = program.run(backend=engine)  # a hit never changes an answer
    assert again.get_meta_info("x") == meta
    assert again.usage.cached_tokens > run.usage.cached_tokens


def test_one_token_options_need_one_request(make_engine: MakeEngine) -> None:
    engine = make_engine(ScriptedModel(logits=any_logits))

    @rt.function
    def program(s: rt.ProgramState, options: list[str]) -> None:
        s += "q:" + rt.select("x", options)

    assert len(program.run(["a", "b", "c", "d"], backend=engine).usage.calls) == 1
    # One more for each option's further tokens; "n" and "no" share theirs.
    assert len(program.run(["yes", "n", "no"], backend=engine).usage.calls) == 3


def test_adding_an_option_changes_no_others_score(make_engine: MakeEngine) -> None:
    engine = make_engine(ScriptedModel(logits=any_logits))

    @rt.function
    def program(s: rt.ProgramState, options: list[str]) -> None:
        s += "q:" + rt.select("x", options)

    few = program.run(["yes", "no"], backend=engine).get_meta_info("x")
    many = program.run(["yes", "no", " yes", "n", "yeast"], backend=engine).get_meta_info("x")
    assert few["input_token_logprobs"] == many["input_token_logprobs"][:2]


def test_a_selection_continues_the_open_turn_and_the_text(make_engine: MakeEngine) -> None:
    engine = make_engine(ScriptedModel(logits=any_logits))

    @rt.function
    def program(s: rt.ProgramState) -> None:
        s += rt.user("pick") + rt.assistant("I say " + rt.select("x", ["yes", "no"]) + "!")
        s += rt.user("again") + rt.assistant(rt.select("y", ["a", "b"]))

    run = program.run(backend=engine)
    assert run.messages()[1]["content"] == f"I say {run['x']}!"
    assert run.token_ids() == engine.tokenizer.encode_rendered(
        engine.tokenizer.render_chat(run.messages(), add_generation_prompt=False)
    )


def choose(engine: Engine, **options: Any) -> Any:
    @rt.function
    def program(s: rt.ProgramState) -> str:
        s += "q:" + rt.select("x", ["a", "b", "c", "d"], 1.0)
        return str(s["x"])

    return program.run(backend=engine, **options).value


def test_drawn_options_follow_the_seed(make_engine: MakeEngine) -> None:
    def flat(tokens: list[int]) -> Mapping[int, float]:
        return {ord(c): 0.0 for c in "abcd"}

    engine = make_engine(ScriptedModel(logits=flat))
    drawn = [choose(engine, seed=seed) for seed in range(20)]
    assert drawn == [choose(engine, seed=seed) for seed in range(20)]
    assert len(set(drawn)) > 2

    @rt.function
    def own_seed(s: rt.ProgramState) -> None:
        s += "q:" + rt.select("x", ["a", "b", "c", "d"], 1.0, seed=3)

    assert len({own_seed.run(backend=engine)["x"] for _ in range(5)}) == 1


def test_with_a_bos_the_unconditional_score_is_the_one_after_it(make_engine: MakeEngine) -> None:
    engine = make_engine(ScriptedModel(logits=any_logits, tokenizer=ByteTokenizer(bos=True)))

    @rt.function
    def program(s: rt.ProgramState) -> None:
        s += "q:" + rt.select(
            "x", ["yes", "no"], choices_method=rt.unconditional_likelihood_normalized
        )

    meta = program.run(backend=engine).get_meta_info("x")
    for row, option in zip(meta["unconditional_token_logprobs"], ["yes", "no"], strict=True):
        assert row == pytest.approx(plain_logprobs_after([257], option), abs=1e-4)


def plain_logprobs_after(ids: list[int], option: str) -> list[float]:
    row = []
    for token in option.encode():
        logits = any_logits(ids).astype(np.float64)
        row.append(float(logits[token] - np.log(np.exp(logits).sum())))
        ids = [*ids, token]
    return row


def test_the_first_scoring_call_takes_the_forks_share(make_engine: MakeEngine) -> None:
    engine = make_engine(ScriptedModel(logits=any_logits))

    @rt.function
    def program(s: rt.ProgramState) -> None:
        s += "p" * 40
        forks = s.fork(3)
        forks += lambda i: f"{i}" + rt.select("x", ["yes", "no"])
        forks.join()

    run = program.run(backend=engine)
    assert len(run["x"]) == 3 and engine.stats()["num_holds"] == 0
    # Of each branch: its own byte and the trie's five tokens. (law 8)
    assert run.usage.computed_tokens == 40 + 3 * (1 + 5)


def test_one_failing_scoring_call_ends_the_selection() -> None:
    error = EngineError("boom")
    backend = FakeBackend(
        lambda call: Play(error=error) if len(call.input_ids) > 3 else Play("x" * 999, delay_s=0.01)
    )

    @rt.function
    def program(s: rt.ProgramState) -> None:
        s += "q:" + rt.select("x", ["yes", "no"])

    with pytest.raises(EngineError) as raised:
        program.run(backend=backend)
    assert raised.value is error
    assert backend.num_running == 0 and len(backend.aborted) >= 1
