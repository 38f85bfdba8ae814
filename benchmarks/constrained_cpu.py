"""What a JSON schema costs on this CPU, and what jump-forward saves: the real SmolLM2 in fp32.

    python benchmarks/constrained_cpu.py --json figures.json

ratio1, ratio32  time per output token under a schema over that without one, of 1 or 32 chats at
                 once, whose prompts are cached
jump1            output tokens/s with jump-forward over those with masks alone, one chat at a time,
                 of documents of long keys

Sizes, prompts, schemas and goals are those of ``gpu.py``. The two sides of a figure run in turn, so
that other work on the machine slows both; the best run of each counts. Beside the clock's ratio
stands that of the CPU time of this process, which such work hardly changes. ``mask`` is the median
time of a row's mask in the last 256 steps. Exits 1 where a goal is missed.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:  # run as a script: only this folder is
    sys.path.insert(1, str(ROOT))

from benchmarks.gpu import versions  # noqa: E402
from benchmarks.gpu_constrained import PEOPLE, Jump, Ratio  # noqa: E402
from benchmarks.gpu_measuring import Measured, timed_generate  # noqa: E402
from benchmarks.gpu_programs import TEMPERATURE, Free  # noqa: E402
from benchmarks.gpu_tables import GOALS, SCALES  # noqa: E402
from rtlang.grammar.spec import GrammarSpec  # noqa: E402
from rtlang.runtime.engine import Engine  # noqa: E402

NAMES = ("ratio1", "ratio32", "jump1")
#: Tokens out of an untimed first run, which loads, compiles and caches.
WARM_OUT = 8
_COLUMNS = "{:8} {:>7} {:15} {:>5} {:6} {:>7}  {}"


def ratio(engine: Engine, workload: Ratio, repeats: int) -> Measured:
    """``Ratio.measure`` with all prompts cached before, and with the CPU's time."""
    count, out = workload.count, workload.out
    chats = Free(count, out).chats(0)
    sides = {"free": None, "schema": GrammarSpec.json_schema(PEOPLE)}
    for grammar in sides.values():
        timed_generate(engine, chats, [WARM_OUT] * count, TEMPERATURE, grammar=grammar)
    runs = []
    for _ in range(repeats):
        run = {}
        for side, grammar in sides.items():
            cpu = time.process_time()
            run[side], _ = timed_generate(
                engine, chats, [out] * count, TEMPERATURE, grammar=grammar
            )
            run[f"{side}_cpu"] = time.process_time() - cpu
        runs.append(run)
    best = {name: min(run[name] for run in runs) for name in runs[0]}
    tpot = {side: best[side] / out * 1e3 for side in sides}
    notes = [
        f"{tpot['schema']:.1f} ms a step, free {tpot['free']:.1f}",
        f"CPU time {best['schema_cpu'] / best['free_cpu']:.3f} times free",
    ]
    return Measured(best["schema"] / best["free"], runs, chats, best, notes)


def jump(engine: Engine, workload: Jump, repeats: int) -> Measured:
    workload.shortened(WARM_OUT).measure(engine, 1, 1)
    return workload.measure(engine, 0, repeats)


def measure(engine: Engine, name: str, repeats: int, out: int | None) -> dict[str, Any]:
    """One row of the table. ``out``: at most so many tokens out, instead of the table's number."""
    workload, goal = SCALES["full"][name], GOALS["smollm2"][name]
    if out is not None:
        workload = workload.shortened(out)
    if isinstance(workload, Ratio):
        measured = ratio(engine, workload, repeats)
    else:
        assert isinstance(workload, Jump), workload
        measured = jump(engine, workload, repeats)
    stats = engine.stats()
    return {
        "workload": name,
        "sizes": repr(workload),
        "value": measured.value,
        "unit": workload.unit,
        "goal": goal.reach,
        "ok": goal.is_met(measured.value),
        "mask_us": stats["grammar_mask_us"],
        "runs": measured.runs,
        "notes": measured.notes,
        "stats": stats,
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help=f"of {', '.join(NAMES)}")
    parser.add_argument("--repeats", type=int, default=3, help="timed runs of each side")
    parser.add_argument("--out", type=int, help="at most so many tokens out, to be done sooner")
    parser.add_argument("--json", type=Path, help="save the figures here")
    args = parser.parse_args(argv)
    if unknown := set(args.workloads) - set(NAMES):
        parser.error(f"no workload {min(unknown)!r}: there are {', '.join(NAMES)}")
    if args.repeats < 1 or (args.out is not None and args.out < 1):
        parser.error("--repeats and --out must be at least 1")
    print(_COLUMNS.format("workload", "rtlang", "unit", "goal", "", "mask", "").rstrip())
    rows = []
    with Engine("smollm2", device="cpu", max_total_tokens=32_768, random_seed=0) as engine:
        for name in args.workloads or NAMES:
            row = measure(engine, name, args.repeats, args.out)
            cells = (name, f"{row['value']:.3f}", row["unit"], f"{row['goal']:g}",
                     "ok" if row["ok"] else "MISSED", f"{row['mask_us']:.0f} us")  # fmt: skip
            print(_COLUMNS.format(*cells, "; ".join(row["notes"])), flush=True)
            rows.append(row)
        config = dataclasses.asdict(engine.config) | {"hub_token": None}
    if args.json:
        content = {"versions": versions(), "config": config, "results": rows}
        args.json.write_text(json.dumps(content, indent=1) + "\n")
    return 0 if all(row["ok"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
