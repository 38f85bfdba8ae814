"""`rtlang bench serve` and `rtlang bench compare`: load on a server, and two runs side by side."""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from rtlang.errors import ConfigError
from rtlang.loadtest import workload
from rtlang.loadtest.report import Outcome, compare, figures, parse_objectives


def add_bench_serve(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--url", default="http://127.0.0.1:30000", help="of the server")
    parser.add_argument("--model", help="none: the first one that the server names")
    parser.add_argument("--api-key", help="for servers that want one")
    parser.add_argument("--num-requests", type=int, default=200)
    parser.add_argument("--rate", type=float, default=4.0, help="requests per second")
    parser.add_argument("--arrivals", choices=[*workload.ARRIVALS, "trace"], default="poisson")
    parser.add_argument("--trace", type=Path, help="JSON lines; see the documentation")
    parser.add_argument("--speedup", type=float, default=1.0, help="of a trace")
    parser.add_argument("--prompt-words", type=int, default=200, help="of each request's own")
    parser.add_argument("--shared-words", type=int, default=0, help="of a system prompt before")
    parser.add_argument("--groups", type=int, default=1, help="different system prompts")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--stop-at-eos", action="store_true", help="answers may end by themselves")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--slo", action="append", default=[], metavar="NAME=SECONDS",
        help="objective for goodput: ttft, tpot, itl or e2e; may be given several times",
    )  # fmt: skip
    parser.add_argument("--json", type=Path, help="save figures and requests here")
    parser.add_argument("--plot", type=Path, help="save a picture here (.png, .svg)")
    parser.set_defaults(command=run_bench_serve)


def add_bench_compare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("first", type=Path)
    parser.add_argument("second", type=Path)
    parser.set_defaults(command=run_compare)


def make_loads(args: argparse.Namespace) -> list[workload.Load]:
    """Raises ``ConfigError`` for options that make no workload."""
    if (args.arrivals == "trace") != (args.trace is not None):
        raise ConfigError("--arrivals trace and --trace FILE belong together")
    for name in ("rate", "speedup", "num_requests", "max_tokens", "prompt_words", "groups"):
        if not getattr(args, name) > 0:
            raise ConfigError(f"--{name.replace('_', '-')} must be above 0")
    if args.trace is not None:
        return workload.from_trace(args.trace, speedup=args.speedup)
    return workload.made(
        count=args.num_requests,
        rate=args.rate,
        arrivals=args.arrivals,
        prompt_words=args.prompt_words,
        shared_words=args.shared_words,
        groups=args.groups,
        max_tokens=args.max_tokens,
        seed=args.seed,
    )


def run_bench_serve(args: argparse.Namespace) -> None:
    """Exit status as for any command; failed requests are figures, not errors of the test."""
    loads = make_loads(args)
    objectives = parse_objectives(args.slo)
    outcomes = asyncio.run(_run(args, loads))
    report = {
        "kind": "serve",
        "url": args.url,
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "client": platform.platform(),
        "workload_hash": workload.fingerprint(loads),
        "arrivals": args.arrivals,
        "offered_requests_per_s": _offered(loads),
        "clock": "time.monotonic of the client",
        **figures(outcomes, objectives),
    }
    _print(f"serve: {args.url}", [(n, _shown(v)) for n, v in report.items()], ["figure", "value"])
    if args.json:
        args.json.write_text(json.dumps({**report, "outcomes": _rows(outcomes)}, indent=1) + "\n")
    if args.plot:
        _save_plot(outcomes, args.plot)


async def _run(args: argparse.Namespace, loads: list[workload.Load]) -> list[Outcome]:
    try:
        from rtlang.loadtest.client import LoadClient  # noqa: PLC0415 (httpx is optional)
    except ImportError as error:
        raise ConfigError("this needs httpx: pip install 'rtlang[client]'") from error
    client = LoadClient(
        args.url, model=args.model, api_key=args.api_key, ignore_eos=not args.stop_at_eos
    )
    return await client.run(loads)


def _save_plot(outcomes: list[Outcome], path: Path) -> None:
    try:
        from rtlang.loadtest import plot  # noqa: PLC0415 (matplotlib is optional)
    except ImportError as error:
        raise ConfigError("a plot needs matplotlib: pip install 'rtlang[plot]'") from error
    plot.save(outcomes, path)


def run_compare(args: argparse.Namespace) -> None:
    """Raises ``ConfigError`` for reports of different workloads."""
    reports: list[dict[str, Any]] = []
    for path in (args.first, args.second):
        try:
            reports.append(dict(json.loads(path.read_text())))
        except (OSError, ValueError, TypeError) as error:
            raise ConfigError(f"{path}: {error}") from error
    rows = [
        (name, f"{a:.4g}", f"{b:.4g}", f"{b / a:.3f}" if a else "")
        for name, a, b in compare(reports[0], reports[1])
    ]
    _print("compare", rows, ["figure", args.first.name, args.second.name, "ratio"])


def _offered(loads: list[workload.Load]) -> float | None:
    span = loads[-1].at
    return (len(loads) - 1) / span if span else None


def _rows(outcomes: list[Outcome]) -> list[dict[str, Any]]:
    start = min(o.sent for o in outcomes)
    return [
        {
            "sent": o.sent - start, "late": o.sent - o.due, "ttft": o.ttft, "tpot": o.tpot,
            "e2e": o.e2e, "prompt_tokens": o.prompt_tokens, "cached_tokens": o.cached_tokens,
            "completion_tokens": o.completion_tokens, "error": o.error,
        }
        for o in outcomes
    ]  # fmt: skip


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _print(title: str, rows: list[Any], columns: list[str]) -> None:
    table = Table(title=title)
    for at, name in enumerate(columns):
        table.add_column(name, justify="left" if at == 0 else "right")
    for row in rows:
        table.add_row(*row)
    Console().print(table)
