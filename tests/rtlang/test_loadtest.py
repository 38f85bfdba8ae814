"""Load tests: workloads that repeat, figures by their formulas, and runs against a server."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Any

import pytest
from server_harness import serving

from rtlang.cli.main import main
from rtlang.errors import ConfigError
from rtlang.loadtest import workload
from rtlang.loadtest.report import Outcome, compare, figures, parse_objectives, spread
from rtlang.testing import Reply, ScriptedModel

SHAPE: dict[str, Any] = {
    "count": 40, "rate": 10.0, "arrivals": "poisson", "prompt_words": 5, "shared_words": 20,
    "groups": 3, "max_tokens": 7, "seed": 1,
}  # fmt: skip


def test_a_seed_gives_the_same_workload_and_only_it() -> None:
    first, again = workload.made(**SHAPE), workload.made(**SHAPE)
    assert first == again and workload.fingerprint(first) == workload.fingerprint(again)
    for change in ({"seed": 2}, {"rate": 11.0}, {"max_tokens": 8}, {"arrivals": "fixed"}):
        other = workload.made(**{**SHAPE, **change})
        assert workload.fingerprint(other) != workload.fingerprint(first), change
    assert len({load.messages[0] for load in first}) == 3  # system prompts
    assert first[0].at == 0 and [load.at for load in first] == sorted(load.at for load in first)


@pytest.mark.parametrize("arrivals", sorted(workload.ARRIVALS))
def test_arrivals_have_their_rate(arrivals: str) -> None:
    rng = random.Random(0)
    gaps = [workload.ARRIVALS[arrivals](rng, 5.0) for _ in range(4000)]
    assert sum(gaps) / len(gaps) == pytest.approx(0.2, rel=0.05)
    assert (len(set(gaps)) == 1) is (arrivals == "fixed")


def test_a_trace_keeps_its_times(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    rows = [
        {"timestamp": 100, "prompt": "a", "max_tokens": 3},
        {"timestamp": 104, "messages": [{"role": "user", "content": "b"}], "max_tokens": 4},
        {"timestamp": 102, "prompt_words": 2, "max_tokens": 5},
    ]
    trace.write_text("\n".join(map(json.dumps, rows)))
    loads = workload.from_trace(trace, speedup=2.0)
    assert [(load.at, load.max_tokens) for load in loads] == [(0, 3), (1, 5), (2, 4)]
    assert loads[0].messages == (("user", "a"),) and len(loads[1].messages[0][1].split()) == 2


@pytest.mark.parametrize(
    "text", ["", "{", '{"timestamp": 0}', '{"timestamp": 0, "prompt": "a", "max_tokens": 0}']
)
def test_a_bad_trace_names_its_line(tmp_path: Path, text: str) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text(text)
    with pytest.raises(ConfigError, match=r"line 1|no request"):
        workload.from_trace(trace, speedup=1.0)


def outcome(sent: float, deltas: list[float], tokens: int, **more: Any) -> Outcome:
    end = deltas[-1] + 0.5 if deltas else sent
    return Outcome(
        due=sent, sent=sent, deltas=deltas, end=end, prompt_tokens=10, cached_tokens=4,
        completion_tokens=tokens, **more,
    )  # fmt: skip


def test_figures_follow_their_formulas() -> None:
    outcomes = [
        outcome(10.0, [11.0, 11.5, 13.0], 3),
        outcome(12.0, [12.5], 1),  # one token: no TPOT, no gap
        outcome(13.0, [], 0, error="HTTP 503"),
    ]
    assert [o.ttft for o in outcomes] == [1.0, 0.5, None]
    assert [o.tpot for o in outcomes] == [1.0, None, None]
    found = figures(outcomes, {"ttft": 0.75})
    assert found["seconds"] == 3.5 and found["requests_per_s"] == pytest.approx(2 / 3.5)
    assert found["output_tokens_per_s"] == pytest.approx(4 / 3.5)
    assert found["input_tokens_per_s"] == pytest.approx(20 / 3.5)
    assert found["total_tokens_per_s"] == pytest.approx(24 / 3.5)
    assert found["hit_rate"] == pytest.approx(0.4)
    assert found["goodput_per_s"] == pytest.approx(1 / 3.5)  # the first is late, the last failed
    assert found["errors"] == {"HTTP 503": 1} and found["error_rate"] == pytest.approx(1 / 3)
    assert (found["itl_s_p50"], found["itl_s_p99"]) == (0.5, 1.5)
    assert (found["tpot_s_p50"], found["e2e_s_p99"]) == (1.0, 3.5)


@pytest.mark.parametrize(
    ("objective", "met"),
    [({"ttft": 1.0}, 1), ({"ttft": 0.9}, 0), ({"itl": 1.4}, 0), ({"tpot": 1.0, "e2e": 4.0}, 1)],
)
def test_goodput_wants_every_objective(objective: dict[str, float], met: int) -> None:
    one = outcome(10.0, [11.0, 11.5, 13.0], 3)
    assert one.meets(objective) is bool(met)


def test_percentiles_are_values_that_were_measured() -> None:
    found = spread("x", [*range(1, 101), None])
    assert found == {"x_mean": 50.5, "x_p50": 50, "x_p90": 90, "x_p95": 95, "x_p99": 99}
    assert spread("x", [None]) == {}


@pytest.mark.parametrize("given", ["ttft", "ttft=x", "speed=1", "ttft=-1", "ttft=nan"])
def test_a_bad_objective_is_refused(given: str) -> None:
    with pytest.raises(ConfigError, match="slo"):
        parse_objectives([given])


def test_reports_of_different_workloads_are_not_compared(tmp_path: Path) -> None:
    first = {"workload_hash": "a", "seconds": 2.0, "kind": "serve"}
    assert compare(first, {**first, "seconds": 3.0}) == [("seconds", 2.0, 3.0)]
    with pytest.raises(ConfigError, match="differ"):
        compare(first, {**first, "workload_hash": "b"})
    with pytest.raises(ConfigError, match="no report"):
        compare(first, {"seconds": 1})


def test_bench_serve_measures_a_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved, picture = tmp_path / "run.json", tmp_path / "run.svg"
    model = ScriptedModel(lambda _: Reply("word " * 10, eos=False), step_s=0.002)
    with serving(model) as server:
        args = ["bench", "serve", "--url", server.url, "--num-requests", "12", "--rate", "60",
                "--prompt-words", "3", "--shared-words", "10", "--max-tokens", "9",
                "--slo", "ttft=30", "--json", str(saved), "--plot", str(picture)]  # fmt: skip
        started = time.monotonic()
        assert main(args) == 0
        assert time.monotonic() - started > 0.1  # twelve arrivals at 60 a second
    report = json.loads(saved.read_text())
    assert (report["requests"], report["failed"]) == (12, 0), report["errors"]
    assert report["completion_tokens"] == 12 * 9
    assert report["goodput_per_s"] == pytest.approx(report["requests_per_s"])
    assert 0 < report["hit_rate"] < 1 and len(report["outcomes"]) == 12
    assert report["ttft_s_p50"] > 0 and report["itl_s_p99"] >= report["itl_s_p50"] > 0
    assert picture.read_text().startswith("<?xml")
    assert main(["bench", "compare", str(saved), str(saved)]) == 0
    assert "ttft_s_p50" in capsys.readouterr().out


def test_what_fails_is_counted_and_named(tmp_path: Path) -> None:
    saved = tmp_path / "run.json"
    with serving(ScriptedModel(lambda _: "x"), concurrency=1) as server:
        args = ["bench", "serve", "--url", server.url, "--num-requests", "3", "--rate", "100",
                "--prompt-words", "9000", "--json", str(saved)]  # fmt: skip
        assert main(args) == 0
    assert json.loads(saved.read_text())["errors"] == {"HTTP 400": 3}
