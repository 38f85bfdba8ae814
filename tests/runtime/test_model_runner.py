"""ModelRunner on dummy weights: what it tells of a model, and what one step computes."""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rtlang.errors import ConfigError
from rtlang.runtime import model_runner
from rtlang.runtime.batch import Batch, BatchResult, ForwardMode
from rtlang.runtime.config import EngineConfig
from rtlang.runtime.forward_batch import make_forward_batch
from rtlang.runtime.mem.kv_pool import TokenToKVPool, kv_bytes_per_token
from rtlang.runtime.mem.rows import ReqToTokenPool
from rtlang.runtime.messages import LogprobOptions
from rtlang.runtime.model_runner import ModelRunner, available_memory
from rtlang.runtime.models.registry import decoder_spec
from rtlang.runtime.models.source import ModelFiles
from rtlang.runtime.req import Req
from rtlang.runtime.sampling_params import SamplingParams
from rtlang.testing import TinyModel

WIDTH = 128


def make_runner(
    architecture: str = "llama",
    generation: dict[str, Any] | None = None,
    tokenizer_eos: frozenset[int] = frozenset(),
    changes: dict[str, Any] | None = None,
    **options: Any,
) -> ModelRunner:
    hf_config = TinyModel(architecture, **(changes or {})).hf_config
    files = ModelFiles(Path("folder"), "dummy", hf_config, generation or {}, has_tokenizer=False)
    return ModelRunner(EngineConfig(model="folder", **options), files, tokenizer_eos)


class Steps:
    """Rows with their own runs of slots; ``run`` makes one step's batch and executes it."""

    def __init__(self, runner: ModelRunner, prompts: list[list[int]], **params: Any) -> None:
        self.runner, self.prompts = runner, prompts
        self.pool = ReqToTokenPool(len(prompts), WIDTH)
        runner.init_pools(1 + len(prompts) * WIDTH, self.pool)
        self.reqs = []
        defaults = {"temperature": 0.0, "max_new_tokens": 4, **params}
        for row, ids in enumerate(prompts):
            resolved = SamplingParams(**defaults).resolve()
            req = Req(f"r{row}", b"", array("i", ids), len(ids), resolved, seed=1, limit_len=WIDTH)
            req.row = row
            self.reqs.append(req)
            self.pool.token_ids[row, : len(ids)] = ids
            self.pool.lens[row] = self.pool.prompt_lens[row] = len(ids)
            self.pool.slots[row] = 1 + row * WIDTH + np.arange(WIDTH)

    def append(self, row: int, token: int) -> None:
        self.pool.token_ids[row, len(self.reqs[row].ids)] = token
        self.reqs[row].ids.append(token)
        self.pool.lens[row] += 1

    def batch(
        self, parts: list[tuple[int, int, int]], sample: list[int], num_decode: int = 0
    ) -> Batch:
        """``parts``: (row, start, end); ``sample``: batch indices."""
        return Batch(
            mode=ForwardMode.MIXED if num_decode else ForwardMode.EXTEND,
            reqs=[self.reqs[row] for row, _, _ in parts],
            rows=np.array([row for row, _, _ in parts], np.int32),
            seq_lens=np.array([end for _, _, end in parts], np.int32),
            extend_lens=np.array([end - start for _, start, end in parts], np.int32),
            num_decode=num_decode,
            sample_rows=np.array(sample, np.int32),
            pool=self.pool,
        )

    def run(
        self, parts: list[tuple[int, int, int]], sample: list[int], num_decode: int = 0
    ) -> BatchResult:
        return self.runner.prepare(self.batch(parts, sample, num_decode))().read()


def random_ids(seed: int, length: int) -> list[int]:
    ids: list[int] = np.random.default_rng(seed).integers(0, 250, length).tolist()
    return ids


# -- what it tells of a model -----------------------------------------------------------------


def test_context_is_the_models_unless_a_shorter_one_is_asked() -> None:
    assert make_runner().info.context_length == 2048
    assert make_runner(context_length=100).info.context_length == 100
    with pytest.raises(ConfigError, match=r"context_length=4096 .* 2048"):
        make_runner(context_length=4096)


@pytest.mark.parametrize(
    ("config", "generation", "tokenizer", "all_ids"),
    [
        (2, {}, set(), {2}),
        ([2, 3], {"eos_token_id": 4}, {5}, {2, 3, 4, 5}),
        (None, {"eos_token_id": [6, 7]}, {7}, {6, 7}),
        (None, {}, set(), set()),
        (0, {}, set(), {0}),
    ],
)
def test_d5_eos_ids_are_those_of_config_generation_config_and_tokenizer(
    config: Any, generation: dict[str, Any], tokenizer: set[int], all_ids: set[int]
) -> None:
    runner = make_runner("llama", generation, frozenset(tokenizer), {"eos_token_id": config})
    assert runner.info.eos_ids == all_ids


def test_eos_of_a_text_config_counts() -> None:
    text = dict(TinyModel("gemma3").hf_config, eos_token_id=9)
    whole = {"architectures": ["Gemma3ForConditionalGeneration"], "text_config": text}
    files = ModelFiles(Path(), "dummy", {**whole, "eos_token_id": [8]}, {}, has_tokenizer=False)
    assert ModelRunner(EngineConfig(), files).info.eos_ids == {8, 9}


@pytest.mark.parametrize(
    ("generation", "defaults"),
    [
        ({}, {}),
        ({"temperature": 0.6, "top_k": 20, "max_length": 9}, {"temperature": 0.6, "top_k": 20}),
        ({"do_sample": True, "top_p": 0.9, "min_p": None}, {"top_p": 0.9}),
        ({"do_sample": False, "temperature": 0.6}, {}),
    ],
)
def test_chat_defaults_are_the_sampling_fields_of_the_generation_config(
    generation: dict[str, Any], defaults: dict[str, float]
) -> None:
    assert make_runner("llama", generation).info.chat_defaults == defaults


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_kv_bytes_per_token_is_what_the_tensors_take(architecture: str, dtype: torch.dtype) -> None:
    spec = decoder_spec(TinyModel(architecture, head_dim=24).hf_config)
    pool = TokenToKVPool(spec, 50, dtype)
    assert all(t.shape == (50, spec.num_kv_heads, 24) for t in (*pool.keys, *pool.values))
    taken = sum(t.untyped_storage().nbytes() for t in (*pool.keys, *pool.values))
    assert taken == 50 * kv_bytes_per_token(spec, dtype)


def test_pool_size_is_a_share_of_free_memory_unless_given(monkeypatch: pytest.MonkeyPatch) -> None:
    per_token = make_runner().info.kv_bytes_per_token
    monkeypatch.setattr(model_runner, "available_memory", lambda: 1000 * per_token)
    assert make_runner(mem_fraction_static=0.25).info.max_total_tokens == 250
    assert make_runner(max_total_tokens=777).info.max_total_tokens == 777
    # More than all rows at full length can never be used.
    few = make_runner(mem_fraction_static=1.0, max_running_requests=3, context_length=50)
    assert few.info.max_total_tokens == 150


def test_available_memory_without_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(self: Path, *args: object) -> str:
        raise FileNotFoundError(self)

    assert available_memory() > 1 << 20
    monkeypatch.setattr(Path, "read_text", missing)
    assert available_memory() > 1 << 20


def test_bfloat16_halves_the_kv() -> None:
    full, half = make_runner(), make_runner(dtype="bfloat16")
    assert full.info.kv_bytes_per_token == 2 * half.info.kv_bytes_per_token


# -- dummy weights ----------------------------------------------------------------------------


@pytest.mark.parametrize("architecture", ["llama", "mistral", "qwen2", "qwen3", "gemma3"])
def test_dummy_weights_are_always_the_same_and_give_finite_logits(architecture: str) -> None:
    answers = []
    for _ in range(2):
        steps = Steps(make_runner(architecture), [random_ids(1, 40), random_ids(2, 40)])
        result = steps.run([(0, 0, 40), (1, 0, 40)], [0, 1])
        assert not result.errors
        answers.append(result.next_ids.tolist())
    assert answers[0] == answers[1]
    assert answers[0][0] != answers[0][1]


# -- one step ---------------------------------------------------------------------------------


def test_forward_batch_is_the_tables_gathered_token_by_token() -> None:
    steps = Steps(make_runner(), [random_ids(i, 20) for i in range(3)])
    parts = [(2, 19, 20), (0, 5, 17), (1, 0, 20)]
    forward = make_forward_batch(steps.batch(parts, [0], num_decode=1))
    tokens = [(row, at) for row, start, end in parts for at in range(start, end)]
    pool = steps.pool
    assert forward.input_ids.tolist() == [pool.token_ids[row, at] for row, at in tokens]
    assert forward.positions.tolist() == [at for _, at in tokens]
    assert forward.out_slots.tolist() == [pool.slots[row, at] for row, at in tokens]
    assert forward.last_tokens.tolist() == [0, 12, 32]


def test_sampled_rows_come_in_order_and_only_they_meet_the_head(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prompts = [random_ids(i, 30) for i in range(4)]
    alone = []
    for ids in prompts:
        alone += Steps(make_runner(), [ids]).run([(0, 0, 30)], [0]).next_ids.tolist()
    assert len(set(alone)) > 1
    steps = Steps(make_runner(), prompts)
    counts = []
    logits = steps.runner._model.logits

    def spy(hidden: torch.Tensor) -> torch.Tensor:
        counts.append(len(hidden))
        return logits(hidden)

    monkeypatch.setattr(steps.runner._model, "logits", spy)
    result = steps.run([(3, 0, 30), (0, 0, 30), (2, 0, 30), (1, 0, 30)], [0, 2, 3])
    assert result.next_ids.tolist() == [alone[3], alone[2], alone[1]]
    assert counts == [3]
    result = steps.run([(0, 10, 20)], [])
    assert result.next_ids.tolist() == [] and counts == [3]


def test_mixed_steps_generate_what_each_row_generates_alone() -> None:
    prompts = [random_ids(1, 35), random_ids(2, 22), random_ids(3, 50)]
    alone = []
    for ids in prompts:
        steps = Steps(make_runner(), [ids])
        end = len(ids)
        out = steps.run([(0, 0, end)], [0]).next_ids.tolist()
        for at in range(end, end + 4):
            steps.append(0, out[-1])
            out += steps.run([(0, at, at + 1)], [0], num_decode=1).next_ids.tolist()
        alone.append(out)
    steps = Steps(make_runner(), prompts)
    outs: list[list[int]] = [[], [], []]
    # Row 0 decodes while rows 1 and 2 are computed in chunks.
    plan: list[tuple[list[tuple[int, int, int]], list[int], int]] = [
        ([(0, 0, 35)], [0], 0),
        ([(0, 35, 36), (1, 0, 10)], [0], 1),
        ([(0, 36, 37), (1, 10, 22), (2, 0, 30)], [0, 1], 1),
        ([(1, 22, 23), (0, 37, 38), (2, 30, 50)], [0, 1, 2], 2),
        ([(2, 50, 51), (1, 23, 24), (0, 38, 39)], [0, 1, 2], 3),
    ]
    for parts, sample, num_decode in plan:
        for row, start, _ in parts[:num_decode]:
            assert start == len(steps.reqs[row].ids)
            steps.append(row, outs[row][-1])
        result = steps.run(parts, sample, num_decode)
        for index, token in zip(sample, result.next_ids.tolist(), strict=True):
            outs[parts[index][0]].append(token)
    for got, want in zip(outs, alone, strict=True):
        assert got == want[: len(got)] and len(got) >= 2


def test_a_row_whose_kv_is_broken_fails_alone() -> None:
    prompts = [random_ids(i, 20) for i in range(3)]
    steps = Steps(make_runner(), prompts)
    first = steps.run([(0, 0, 20), (1, 0, 20), (2, 0, 20)], [0, 1, 2]).next_ids.tolist()
    steps.runner._kv.values[0][int(steps.pool.slots[1, 7])] = float("nan")  # type: ignore[union-attr]
    again = steps.run([(0, 19, 20), (1, 19, 20), (2, 19, 20)], [0, 1, 2])
    assert {i: code for i, (code, _) in again.errors.items()} == {1: "numerical_error"}
    assert [again.next_ids[0], again.next_ids[2]] == [first[0], first[2]]


# -- prompt log-probabilities -----------------------------------------------------------------


def logprob_steps(start: int, prompt_len: int = 40, **params: Any) -> Steps:
    steps = Steps(make_runner(), [random_ids(1, prompt_len), random_ids(2, 9)], **params)
    steps.reqs[0].logprobs = LogprobOptions(start, 2, (5, 6))
    steps.reqs[0].want_prompt_logprobs(start)
    return steps


@pytest.mark.parametrize("start", [0, 1, 17, 39])
def test_d6_prompt_logprobs_do_not_depend_on_chunks(start: int) -> None:
    whole = logprob_steps(start).run([(1, 0, 9), (0, 0, 40)], [1]).prompt_logprobs
    assert list(whole) == [1]  # the other row asked for none
    assert [e.token_id for e in whole[1]] == random_ids(1, 40)[max(start, 1) :]
    assert all(e.logprob is not None and e.logprob < 0 for e in whole[1])
    steps = logprob_steps(start)
    entries = []
    for begin, end in ((0, 16), (16, 17), (17, 39), (39, 40)):
        entries += steps.run([(0, begin, end)], [0] if end == 40 else []).prompt_logprobs[0]
    assert [e.token_id for e in entries] == [e.token_id for e in whole[1]]
    for one, other in zip(entries, whole[1], strict=True):
        assert one.logprob == pytest.approx(other.logprob, abs=1e-4)
        assert [t for t, _ in one.top] == [t for t, _ in other.top]
        assert one.ids == pytest.approx(other.ids, abs=1e-4)


def test_a_pure_scoring_request_learns_of_the_position_after_its_prompt() -> None:
    entries = logprob_steps(38, max_new_tokens=0).run([(0, 0, 40)], []).prompt_logprobs[0]
    assert [e.token_id for e in entries] == [*random_ids(1, 40)[38:], -1]
    assert entries[-1].logprob is None and len(entries[-1].ids) == 2
    # One that generates learns it from its first token instead.
    entries = logprob_steps(38).run([(0, 0, 40)], [0]).prompt_logprobs[0]
    assert [e.token_id for e in entries] == random_ids(1, 40)[38:]


def test_logits_of_a_long_prompt_are_computed_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = logprob_steps(0).run([(0, 0, 40)], [0]).prompt_logprobs[0]
    monkeypatch.setattr(model_runner, "LOGPROB_ROWS", 7)
    steps = logprob_steps(0)
    counts = []
    logits = steps.runner._model.logits

    def spy(hidden: torch.Tensor) -> torch.Tensor:
        counts.append(len(hidden))
        return logits(hidden)

    monkeypatch.setattr(steps.runner._model, "logits", spy)
    sliced = steps.run([(0, 0, 40)], [0]).prompt_logprobs[0]
    assert counts == [1, 7, 7, 7, 7, 7, 4]
    for one, other in zip(sliced, whole, strict=True):
        assert one.logprob == pytest.approx(other.logprob, abs=1e-4)
