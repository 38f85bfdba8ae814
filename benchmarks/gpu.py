"""rtlang on one GPU against the figures of other engines on the same machine.

    python benchmarks/gpu.py all --json figures.json
    python benchmarks/gpu.py decode1 tree --shape qwen06b --option page_size=16

Without ``--shape`` a workload runs on every shape that has a row for it in ``gpu_tables.py``. One
engine serves all workloads of a shape. Before a workload it runs once with other ids, untimed; a
row is printed, and the JSON saved, as soon as it is known. Exits 1 where a goal is missed.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.metadata
import json
import platform
import sys
import time
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:  # run as a script: only this folder is
    sys.path.insert(1, str(ROOT))

import rtlang  # noqa: E402
from benchmarks.gpu_measuring import Workload, workload_hash  # noqa: E402
from benchmarks.gpu_shapes import SHAPES, is_dummy, model_options  # noqa: E402
from benchmarks.gpu_tables import GOALS, SCALES, Goal  # noqa: E402
from benchmarks.gpu_workloads import StepTime  # noqa: E402
from rtlang.runtime.engine import Engine  # noqa: E402

MEASURED_SEED, WARM_SEED = 0, 1
#: Tokens out of a warm-up that is not to take as long as what it warms.
SHORT_WARMUP = 8

_FULL = SCALES["full"]
_COLUMNS = "{:8} {:15} {:>10} {:13} {:>8} {:>21} {:>10}  {}"


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    names = ", ".join(_FULL)
    parser.add_argument("workloads", nargs="+", metavar="WORKLOAD", help=f"all, or of {names}")
    parser.add_argument("--shape", choices=SHAPES, help="run them on this model only")
    parser.add_argument("--json", type=Path, help="save the figures here, after each workload")
    parser.add_argument("--scale", choices=SCALES, default="full", help="tiny: to try it on a CPU")
    parser.add_argument("--repeat", type=int, help="timed runs, of which the best counts")
    parser.add_argument(
        "--option", nargs="+", action="extend", default=[], metavar="NAME=VALUE",
        help="options of Engine; values are JSON, or else text",
    )  # fmt: skip
    parser.add_argument(
        "--warmup", choices=("full", "short", "none"), default="full",
        help=f"short: at most {SHORT_WARMUP} tokens out",
    )  # fmt: skip
    parser.add_argument("--profile", type=Path, help="profile a further run of each workload")
    parser.add_argument("--profile-steps", type=int, default=32)
    args = parser.parse_args(argv)
    unknown = [name for name in args.workloads if name != "all" and name not in _FULL]
    if unknown:
        parser.error(f"no workload {unknown[0]!r}: it may be all, {names}")
    if args.repeat is not None and args.repeat < 1:
        parser.error("--repeat must be at least 1")
    wrong = [option for option in args.option if "=" not in option]
    if wrong:
        parser.error(f"--option takes NAME=VALUE, not {wrong[0]!r}")
    return args


def plan(args: argparse.Namespace) -> dict[str, list[str]]:
    """Shape -> its workloads, in the order in which they were named. Raises ``SystemExit`` where
    one needs text and the named shape has no tokenizer, and where nothing is left to run."""
    found: dict[str, list[str]] = {}
    for shape in [args.shape] if args.shape else SHAPES:
        named = [n for w in args.workloads for n in (GOALS[shape] if w == "all" else [w])]
        if args.shape:
            bare = [n for n in named if _FULL[n].needs_text and is_dummy(shape)]
            if bare:
                raise SystemExit(f"{bare[0]} needs text, and {shape} has no tokenizer")
        else:
            named = [n for n in named if n in GOALS[shape]]
        if named:
            found[shape] = list(dict.fromkeys(named))
    homeless = sorted(
        set(args.workloads) - {"all"} - {n for names in found.values() for n in names}
    )
    if homeless:
        raise SystemExit(f"no shape has a row for {homeless[0]}: name one with --shape")
    return found


def parse_options(given: list[str]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for text in given:
        name, _, value = text.partition("=")
        try:
            options[name] = json.loads(value)
        except ValueError:
            options[name] = value
    return options


def engine_options(args: argparse.Namespace, shape: str, names: list[str]) -> dict[str, Any]:
    """What ``Engine`` is given: room for the longest workload, ``--option`` on top."""
    options = {
        **model_options(shape, args.scale),
        "max_running_requests": 512,
        "context_length": 4096,
        "random_seed": 0,
    }
    if args.scale == "tiny":
        options |= {"max_running_requests": 16, "context_length": 2048, "max_total_tokens": 8192}
    elif any(_FULL[name].longest > 4096 for name in names):
        options["context_length"] = 10_240
    return options | parse_options(args.option)


def versions() -> dict[str, str | None]:
    found: dict[str, str | None] = {"python": platform.python_version()}
    for name in ("torch", "triton", "flashinfer-python"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return {**found, "torch": torch.__version__, "rtlang": rtlang.__version__}


class Report:
    """The figures so far: printed row by row, saved after each."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._path: Path | None = args.json
        self.missed = 0
        self.content: dict[str, Any] = {
            "versions": versions(),
            "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
            "scale": args.scale,
            "warmup": args.warmup,
            "engines": {},
            "results": [],
        }
        print(", ".join(f"{k} {v}" for k, v in self.content["versions"].items()))
        say(f"GPU: {self.content['gpu']}")
        header = ("shape", "workload", "rtlang", "unit", "floor", "best peer", "must reach", "")
        say(_COLUMNS.format(*header).rstrip())

    def save(self) -> None:
        if self._path is not None:
            fresh = self._path.with_name(self._path.name + ".new")
            fresh.write_text(json.dumps(self.content, indent=1) + "\n")
            fresh.replace(self._path)

    def add_engine(self, shape: str, started: dict[str, Any]) -> None:
        self.content["engines"][shape] = started
        say(
            f"{shape}: engine started in {started['start_s']:.1f} s, "
            f"first answer after {started['first_answer_s']:.1f} s"
        )
        self.save()

    def add(self, result: dict[str, Any], goal: Goal | None) -> None:
        """``goal`` is None where there is nothing to compare with."""
        floor = peer = reach = verdict = "-"
        if goal is not None:
            name, figure = goal.best_peer
            floor = "-" if goal.floor is None else _figure(goal.floor)
            peer, reach = f"{_figure(figure)} {name}", _figure(goal.reach)
            result["ok"] = goal.is_met(result["value"])
            verdict = "ok" if result["ok"] else "MISSED"
            self.missed += not result["ok"]
            result["goal"] = dataclasses.asdict(goal)
        shape, name, ours = result["shape"], result["workload"], _figure(result["value"])
        say(_COLUMNS.format(shape, name, ours, result["unit"], floor, peer, reach, verdict))
        for note in result["notes"]:
            say(f"{'':8} {note}")
        self.content["results"].append(result)
        self.save()

    def add_failure(self, shape: str, name: str, error: Exception) -> None:
        self.missed += 1
        say(f"{shape:8} {name:15} FAILED: {type(error).__name__}: {error}")
        failure = {"shape": shape, "workload": name, "error": repr(error)}
        self.content["results"].append(failure)
        self.save()


def say(line: str) -> None:
    print(line, flush=True)


def _figure(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def start_engine(options: dict[str, Any]) -> tuple[Engine, dict[str, Any]]:
    """The engine, and how long it took to be there and to answer a first time."""
    start = time.perf_counter()
    engine = Engine(**options)
    started = time.perf_counter() - start
    try:
        engine.generate(list(range(1, 17)), {"max_new_tokens": 1, "ignore_eos": True})
    except BaseException:
        engine.close()
        raise
    first = time.perf_counter() - start
    config = dataclasses.asdict(engine.config) | {"hub_token": None}
    return engine, {"config": config, "start_s": started, "first_answer_s": first}


def run_workload(
    engine: Engine, workload: Workload, *, warmup: str, repeat: int | None
) -> dict[str, Any]:
    warm_s = 0.0
    if warmup != "none":
        start = time.perf_counter()
        warm = workload.shortened(SHORT_WARMUP) if warmup == "short" else workload
        warm.measure(engine, WARM_SEED, 1)
        warm_s = time.perf_counter() - start
    before = engine.stats()
    measured = workload.measure(engine, MEASURED_SEED, repeat or workload.repeats)
    return {
        "value": measured.value,
        "unit": workload.unit,
        "workload_hash": workload_hash(workload, measured.content),
        "sizes": repr(workload),
        "runs": measured.runs,
        "details": measured.details,
        "notes": measured.notes,
        "warmup_s": warm_s,
        "stats_before": before,
        "stats": engine.stats(),
    }


def profile(engine: Any, workload: Workload, path: Path, num_steps: int) -> None:
    """Record steps of one more run, right after the measured one."""
    engine.start_profile(str(path), num_steps)
    if isinstance(workload, StepTime):  # its prompts are cached: decode steps almost alone
        workload.decode(engine, MEASURED_SEED)
    else:
        workload.measure(engine, MEASURED_SEED, 1)
    say(f"{'':8} profile of {engine.finish_profile()} steps: {path}")


def run_shape(args: argparse.Namespace, report: Report, shape: str, names: list[str]) -> None:
    engine, started = start_engine(engine_options(args, shape, names))
    with engine:
        report.add_engine(shape, started)
        for name in names:
            workload = SCALES[args.scale][name]
            goal = GOALS[shape].get(name) if args.scale == "full" else None
            try:
                result = run_workload(engine, workload, warmup=args.warmup, repeat=args.repeat)
                report.add({"shape": shape, "workload": name, **result}, goal)
                if args.profile is not None:
                    file = args.profile
                    tagged = file.with_name(f"{file.stem}-{shape}-{name}{file.suffix}")
                    profile(engine, workload, tagged, args.profile_steps)
            except Exception as error:  # the other workloads may still do
                report.add_failure(shape, name, error)
                if not engine.is_alive:
                    break


def main(argv: list[str] | None = None) -> int:
    args = parse_args(argv)
    planned = plan(args)
    report = Report(args)
    for shape, names in planned.items():
        run_shape(args, report, shape, names)
    report.save()
    return 1 if report.missed else 0


if __name__ == "__main__":
    sys.exit(main())
