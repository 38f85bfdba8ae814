"""The GPU benchmark's workloads ask for what their table says, and run to their end on a CPU."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import MakeEngine

from benchmarks import gpu, gpu_workloads
from benchmarks.gpu_constrained import Documents, Ratio
from benchmarks.gpu_measuring import prefix_use, workload_hash
from benchmarks.gpu_programs import WORDS, AgentLatency, Agents, Forks, Free
from benchmarks.gpu_shapes import SHAPES, is_dummy, model_options
from benchmarks.gpu_tables import GOALS, SCALES
from benchmarks.gpu_workloads import Chat, Nano, Offline, Prefill, StepTime
from rtlang.runtime.messages import Usage
from rtlang.runtime.models.registry import decoder_spec

FULL, TINY = SCALES["full"], SCALES["tiny"]
#: Tokens out of one tiny measurement with one timed run.
TINY_OUT = {
    "decode1": 1 + 1 + 1 + 5,
    "decode64": 1 + 4 + 4 + 4 * 4,
    "decode256": 1 + 8 + 8 + 8 * 4,
    "prefill": 2,
    "offline": 6 * 4,
    "chat": 3 * 3 * 5,
    "tree": 1 + 3 + 3 + 3 * 5,
    "constrained1": 4,
    "constrained32": 2 * 4,
    "constrained128": 4 * 4,
    "ratio1": 2 * 4,
    "ratio32": 2 * 2 * 4,
    "ratio128": 2 * 4 * 4,
    "json256": 3 * 12,
    "jump1": 2 * 12,
    "agents": 3 * (2 * 4 + 3),
    "forks": 2 * (3 * 4 + 3),
    "agent_latency": 2 * 4 + 3,
}


def shape_of(name: str) -> str:
    return next(shape for shape, goals in GOALS.items() if name in goals)


@pytest.mark.parametrize("name", TINY)
def test_workload_runs_and_asks_the_same_for_the_same_seed(
    make_engine: MakeEngine, name: str
) -> None:
    options = model_options(shape_of(name), "tiny")
    engine = make_engine(**options, max_total_tokens=4096, random_seed=0)
    workload = TINY[name]
    first = workload.measure(engine, 0, 1)
    assert first.value > 0 and len(first.runs) == 1
    out = engine.stats()["completion_tokens"]
    if isinstance(workload, Nano):
        assert out == sum(workload.requests(engine.info.vocab_size, 0)[1])
    else:
        assert out == TINY_OUT[name]
    again, other = workload.measure(engine, 0, 2), workload.shortened(2).measure(engine, 1, 1)
    assert len(again.runs) == 2
    assert workload_hash(workload, again.content) == workload_hash(workload, first.content)
    assert workload_hash(workload, other.content) != workload_hash(workload, first.content)
    assert workload.longest <= 2048


def test_every_figure_to_beat_has_its_workload_at_both_scales() -> None:
    assert set(FULL) == set(TINY) == {name for goals in GOALS.values() for name in goals}
    assert set(GOALS) == set(SHAPES)
    for shape, goals in GOALS.items():
        assert all(FULL[name].needs_text is not is_dummy(shape) for name in goals)
        for goal in goals.values():
            _, peer = goal.best_peer
            better = [x for x in (goal.floor, goal.stretch) if x is not None]
            assert goal.is_met(goal.reach) and not goal.is_met(peer)
            assert all(goal.is_met(x) for x in better)


# -- the definitions ------------------------------------------------------------------------


def test_sizes_are_those_of_the_table() -> None:
    assert FULL["decode1"] == StepTime(count=1, shared=0, own=64, new=256)
    assert FULL["decode64"] == StepTime(count=64, shared=0, own=1024, new=128)
    assert FULL["decode256"] == StepTime(count=256, shared=0, own=1024, new=128)
    assert FULL["tree"] == StepTime(count=32, shared=8192, own=16, new=256)
    assert FULL["prefill"] == Prefill(count=8, prompt=4096)
    assert FULL["offline"] == Offline(count=512, prompt=1024, out=256)
    assert FULL["chat"] == Chat(sessions=128, turns=4, shared=2048, user=128, out=256)
    for count in (1, 32, 128):
        assert FULL[f"constrained{count}"] == Free(count, out=128)
    agents = Agents(count=64, template=1100, steps=4, out=64, observation=150, last=16)
    assert FULL["agents"] == agents
    assert FULL["agent_latency"] == AgentLatency(dataclasses.replace(agents, count=1))
    assert FULL["forks"] == Forks(count=32, template=1100, branches=8, out=64, last=16)
    repeats = {name: workload.repeats for name, workload in FULL.items()}
    assert {n for n, r in repeats.items() if r == 2} == {"decode1", "decode64", "decode256", "tree"}
    thrice = {f"{kind}{n}" for kind in ("constrained", "ratio") for n in (1, 32, 128)} | {"jump1"}
    assert {n for n, r in repeats.items() if r == 3} == thrice
    for count in (1, 32, 128):
        assert FULL[f"ratio{count}"] == Ratio(count, out=128)
    assert FULL["json256"] == Documents(256, out=200)


def test_nano_draws_what_nano_vllm_draws() -> None:
    nano = FULL["nano"]
    assert isinstance(nano, Nano)
    prompts, lengths = nano.requests(151_936, 0)
    assert len(prompts) == len(lengths) == 256
    assert all(100 <= len(p) <= 1024 for p in prompts) and all(100 <= n <= 1024 for n in lengths)
    assert max(map(max, prompts)) == 10_000
    assert sum(lengths) == 133_966  # what its own benchmark prints
    assert sum(map(len, prompts)) == 142_827


def test_branches_of_the_tree_share_their_prefix_alone() -> None:
    tree = FULL["tree"]
    assert isinstance(tree, StepTime)
    prompts = tree.prompts(151_936, 0)
    assert {len(p) for p in prompts} == {8208}
    assert len({tuple(p[:8192]) for p in prompts}) == 1
    assert len({tuple(p[8192:]) for p in prompts}) == 32
    assert prompts == tree.prompts(151_936, 0) != tree.prompts(151_936, 1)


def test_sessions_of_the_chat_share_their_beginning_alone() -> None:
    chat = FULL["chat"]
    assert isinstance(chat, Chat)
    shared, asked = chat.inputs(128_256, 0)
    assert len(shared) == 2048 and len(asked) == 4
    assert all(len(turn) == 128 and {len(ids) for ids in turn} == {128} for turn in asked)
    assert len({tuple(ids) for turn in asked for ids in turn}) == 4 * 128


def test_programs_have_one_template_and_observations_of_their_own() -> None:
    agents, forks = FULL["agents"], FULL["forks"]
    assert isinstance(agents, Agents) and isinstance(forks, Forks)
    items = agents.items(0)
    assert len(items) == 64 and len({item["template"] for item in items}) == 1
    assert len(items[0]["template"].split()) == 1100
    told = [text for item in items for text in item["observations"]]
    assert len(set(told)) == 64 * 4 and {len(text.split()) for text in told} == {150}
    assert len(forks.items(0)) == 32 and len(forks.items(0)[0]["template"].split()) == 1100
    assert 250 <= len(WORDS) == len(set(WORDS))


def test_dummy_shapes_are_the_models_they_are_named_after() -> None:
    specs = {}
    for shape in filter(is_dummy, SHAPES):
        folder = Path(model_options(shape, "full")["model"])
        specs[shape] = decoder_spec(json.loads((folder / "config.json").read_text()))
    llama, qwen = specs["llama8b"], specs["qwen06b"]
    assert (llama.hidden_size, llama.num_layers, llama.vocab_size) == (4096, 32, 128_256)
    assert (qwen.hidden_size, qwen.num_layers, qwen.vocab_size) == (1024, 28, 151_936)
    assert (llama.num_heads, llama.num_kv_heads, llama.head_dim) == (32, 8, 128)
    assert (qwen.num_heads, qwen.num_kv_heads, qwen.head_dim) == (16, 8, 128)
    assert (llama.intermediate_size, qwen.intermediate_size) == (14336, 3072)
    assert (llama.tied, qwen.tied, qwen.qk_norm) == (False, True, True)
    assert (llama.max_positions, qwen.max_positions) == (131_072, 40_960)
    assert llama.rope.scaling["rope_type"] == "llama3" and llama.rope.theta == 500_000
    assert qwen.rope.theta == 1_000_000


# -- the figures ----------------------------------------------------------------------------


def test_step_time_is_the_difference_of_the_shortest_times(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock: Iterator[float] = iter([9.0, 9.0, 0.25, 1.5, 0.5, 1.25])  # two primings, two runs
    asked: list[tuple[int, list[int]]] = []

    def fake(engine: Any, prompts: Any, lengths: list[int], temperature: float) -> Any:
        assert temperature == 0.6
        asked.append((len(prompts), lengths))
        return next(clock), []

    monkeypatch.setattr(gpu_workloads, "timed_generate", fake)
    engine = make_engine(**model_options("llama8b", "tiny"), max_total_tokens=4096)
    measured = StepTime(count=2, shared=8, own=4, new=4).measure(engine, 0, 2)
    assert measured.value == pytest.approx((1.25 - 0.25) / 4 * 1e3)
    assert asked == [(1, [1]), (2, [1, 1]), *[(2, [1, 1]), (2, [5, 5])] * 2]


def test_ideal_computes_shared_tokens_once_and_then_only_new_ones() -> None:
    turns = [
        Usage(prompt_tokens=14, cached_tokens=0, computed_tokens=14, completion_tokens=5),
        Usage(prompt_tokens=23, cached_tokens=16, computed_tokens=7, completion_tokens=5),
    ]
    use = prefix_use([turns, turns], shared=10)
    assert use["ideal_computed_tokens"] == 10 + 2 * (4 + 4 + 1)
    assert use["computed_tokens"] == 42 and use["computed_over_ideal"] == 42 / 28
    assert use["hit_share"] == 32 / 74


@pytest.mark.parametrize("name", ["chat", "agents", "agent_latency"])
def test_engine_computes_no_more_than_the_ideal(make_engine: MakeEngine, name: str) -> None:
    engine = make_engine(**model_options(shape_of(name), "tiny"), max_total_tokens=4096)
    measured = TINY[name].measure(engine, 0, 1)
    assert measured.details["computed_over_ideal"] == 1.0
    assert "ratio 1.0000" in measured.notes[0]


# -- the command ----------------------------------------------------------------------------


def test_command_prints_rows_and_saves_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "figures.json"
    argv = ["decode1", "forks", "chat", "--scale", "tiny", "--json", str(path)]
    options = ["--repeat", "1", "--warmup", "short", "--option", "schedule_policy=fcfs"]
    assert gpu.main([*argv, *options, "max_total_tokens=2048"]) == 0
    saved = json.loads(path.read_text())
    ran = [(r["shape"], r["workload"]) for r in saved["results"]]
    dummy = [(shape, name) for shape in ("llama8b", "qwen06b") for name in ("decode1", "chat")]
    assert ran == [*dummy, ("smollm2", "forks")]
    for result in saved["results"]:
        assert len(result["workload_hash"]) == 12 and result["stats"]["num_steps"] > 0
    assert saved["versions"]["rtlang"] and saved["versions"]["torch"]
    config = saved["engines"]["smollm2"]["config"]
    assert config["schedule_policy"] == "fcfs" and config["max_total_tokens"] == 2048
    assert saved["engines"]["smollm2"]["first_answer_s"] > 0
    shown = capsys.readouterr().out
    assert "must reach" in shown and "ratio 1.0000" in shown


def test_workload_that_fails_leaves_the_others_their_turn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "figures.json"
    argv = ["tree", "decode1", "--shape", "qwen06b", "--scale", "tiny", "--json", str(path)]
    assert gpu.main([*argv, "--option", "context_length=40"]) == 1
    failed, passed = json.loads(path.read_text())["results"]
    assert "PromptTooLong" in failed["error"] and passed["value"] > 0
    assert "FAILED: PromptTooLong" in capsys.readouterr().out


def test_profiles_one_more_run_of_each_workload(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["decode1", "prefill", "--shape", "llama8b", "--scale", "tiny", "--warmup", "none"]
    argv += ["--profile", str(tmp_path / "trace.json"), "--profile-steps", "1"]
    assert gpu.main(argv) == 0
    for name in ("trace-llama8b-decode1.json", "trace-llama8b-prefill.json"):
        assert json.loads((tmp_path / name).read_text())["traceEvents"]
    assert capsys.readouterr().out.count("profile of 1 steps") == 2


def test_row_says_whether_its_goal_is_met(capsys: pytest.CaptureFixture[str]) -> None:
    report = gpu.Report(gpu.parse_args(["all"]))
    row = {"shape": "llama8b", "workload": "decode1", "unit": "ms a step", "notes": []}
    goal = GOALS["llama8b"]["decode1"]
    report.add({**row, "value": 4.4}, goal)
    report.add({**row, "value": 4.41}, goal)
    met, missed = capsys.readouterr().out.splitlines()[-2:]
    assert " ".join(met.split()) == "llama8b decode1 4.4 ms a step 3.57 4.86 SGLang 4.4 ok"
    assert missed.endswith("MISSED") and report.missed == 1


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["agents", "--shape", "llama8b"], "needs text"),
        (["decode2"], "no workload 'decode2'"),
        (["decode1", "--option", "page_size"], "takes NAME=VALUE"),
        (["decode1", "--repeat", "0"], "at least 1"),
    ],
)
def test_wrong_commands_are_refused(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as refusal:
        gpu.plan(gpu.parse_args(argv))
    assert message in capsys.readouterr().err + str(refusal.value)


def test_context_is_as_long_as_the_workloads_need() -> None:
    def context(*argv: str) -> int:
        args = gpu.parse_args(list(argv))
        shape, names = next(iter(gpu.plan(args).items()))
        options = gpu.engine_options(args, shape, names)
        assert max(FULL[name].longest for name in names) <= options["context_length"]
        return int(options["context_length"])

    assert context("decode64", "nano", "chat", "--shape", "qwen06b") == 4096
    assert context("all", "--shape", "smollm2") == 4096
    assert context("tree", "--shape", "qwen06b") == context("prefill") == 10_240
    assert context("decode1", "--option", "context_length=8192") == 8192
