"""``rtlang bench offline``: all requests of a workload at once; throughput and latencies.

TTFT: from the start of the run to the first chunk with text or a token. TPOT: (last - first) /
(tokens - 1), of requests with at least two tokens. Hit rate: cached over all prompt tokens.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from rtlang.cli.common import make_engine
from rtlang.errors import ConfigError

if TYPE_CHECKING:
    from rtlang.runtime.engine import Engine


@dataclasses.dataclass(frozen=True, slots=True)
class BenchRequest:
    input_ids: list[int]
    max_new_tokens: int


def _ids(rng: random.Random, length: int) -> list[int]:
    return [rng.randrange(1000, 40000) for _ in range(length)]


def _random(rng: random.Random) -> list[BenchRequest]:
    """32 prompts of 16 to 256 tokens, 8 to 64 out."""
    return [BenchRequest(_ids(rng, rng.randint(16, 256)), rng.randint(8, 64)) for _ in range(32)]


def _shared(rng: random.Random) -> list[BenchRequest]:
    """32 prompts that share 512 tokens (+16 each), 32 out."""
    prefix = _ids(rng, 512)
    return [BenchRequest(prefix + _ids(rng, 16), 32) for _ in range(32)]


def _single(rng: random.Random) -> list[BenchRequest]:
    """One prompt of 64 tokens, 128 out."""
    return [BenchRequest(_ids(rng, 64), 128)]


WORKLOADS: dict[str, Callable[[random.Random], list[BenchRequest]]] = {
    "random": _random,
    "shared-prefix": _shared,
    "single": _single,
}


def add_bench_offline(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--workload",
        default="shared-prefix",
        help=f"{', '.join(WORKLOADS)}, or a JSONL file with prompt or input_ids, max_new_tokens",
    )
    parser.add_argument("--seed", type=int, default=0, help="of a named workload")
    parser.add_argument("--json", type=Path, help="save the figures here")
    parser.add_argument(
        "--profile", type=Path, metavar="FILE", help="save a torch profiler trace of some steps"
    )
    parser.add_argument("--profile-steps", type=int, default=64, metavar="N")
    parser.set_defaults(command=run_bench)


def load_workload(name: str, seed: int, engine: Engine) -> list[BenchRequest]:
    """Raises ``ConfigError`` for an unknown name and for a line that is no request."""
    if name in WORKLOADS:
        return WORKLOADS[name](random.Random(seed))
    path = Path(name)
    if not path.is_file():
        raise ConfigError(f"no workload {name!r}: it is none of {', '.join(WORKLOADS)}, nor a file")
    requests = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            ids = row["input_ids"] if "input_ids" in row else engine.tokenizer.encode(row["prompt"])
            requests.append(BenchRequest(list(ids), int(row.get("max_new_tokens", 128))))
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{path}, line {number}: {error!r}") from error
    if not requests:
        raise ConfigError(f"{path} holds no request")
    return requests


def run_bench(args: argparse.Namespace) -> None:
    with make_engine(args) as engine:
        requests = load_workload(args.workload, args.seed, engine)
        if args.profile is not None:  # once more, beforehand: it slows what it watches
            engine.start_profile(str(args.profile), args.profile_steps)
            measure(engine, requests)
            engine.finish_profile()
        figures = {"workload": args.workload, **measure(engine, requests)}
    table = Table(title=f"offline: {args.workload}")
    table.add_column("figure")
    table.add_column("value", justify="right")
    for name, value in figures.items():
        table.add_row(name, f"{value:.4g}" if isinstance(value, float) else str(value))
    Console().print(table)
    if args.json:
        args.json.write_text(json.dumps(figures, indent=2) + "\n")


def measure(engine: Engine, requests: list[BenchRequest]) -> dict[str, Any]:
    """Greedy, EOS ignored, from an empty cache. Seconds, tokens per second, and counts."""
    engine.flush_cache()
    params = [
        {"max_new_tokens": r.max_new_tokens, "temperature": 0, "ignore_eos": True} for r in requests
    ]
    first: dict[int, float] = {}
    last: dict[int, float] = {}
    counts = dict.fromkeys(range(len(requests)), 0)
    prompt = cached = 0
    start = time.perf_counter()
    for chunk in engine.generate([r.input_ids for r in requests], params, stream=True):
        now = time.perf_counter()
        first.setdefault(chunk.index, now)
        last[chunk.index] = now
        counts[chunk.index] += len(chunk.token_ids)
        if chunk.usage is not None:
            prompt += chunk.usage.prompt_tokens
            cached += chunk.usage.cached_tokens
    seconds = time.perf_counter() - start
    ttft = [at - start for at in first.values()]
    tpot = [(last[i] - first[i]) / (n - 1) for i, n in counts.items() if n > 1]
    out = sum(counts.values())
    shape = json.dumps([dataclasses.astuple(r) for r in requests]).encode()
    return {
        "workload_hash": hashlib.sha256(shape).hexdigest()[:12],
        "requests": len(requests),
        "seconds": seconds,
        "prompt_tokens": prompt,
        "output_tokens": out,
        "output_tokens_per_s": out / seconds,
        "total_tokens_per_s": (out + prompt) / seconds,
        "hit_rate": cached / prompt,
        **_percentiles("ttft_s", ttft),
        **_percentiles("tpot_s", tpot),
    }


def _percentiles(name: str, values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    if not ordered:
        return {}
    return {
        f"{name}_p{p}": ordered[min(len(ordered) - 1, p * len(ordered) // 100)]
        for p in (50, 90, 99)
    }
