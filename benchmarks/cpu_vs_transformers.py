"""rtlang against transformers' ``generate``, in one run, on the same fp32 weights of SmolLM2-135M.

(a) one stream of 128 tokens
(b) 16 prompts at once, 64 tokens in and out, against one padded batch
(c) 32 requests that share a 512-token prefix (+16 each), 32 tokens out
(d) chat: 8 sessions x 4 turns, 256-token system prompt, +64 in and 32 out a turn; the baseline
    runs one padded batch per turn over the whole history

All are greedy and ignore EOS. A workload alternates between the two, twice; the better time of
each counts. Exits 1 where a ratio falls short of its goal.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from rtlang.runtime.engine import Engine

Prompts = list[list[int]]
Generate = Callable[[Prompts, int], Prompts]
GOALS = {"a": 1.15, "b": 1.1, "c": 5.0, "d": 3.0}


def random_ids(seed: int, count: int, length: int) -> Prompts:
    ids: Prompts = np.random.default_rng(seed).integers(1000, 45000, (count, length)).tolist()
    return ids


def engine_generate(engine: Engine, prompts: Prompts, new: int) -> Prompts:
    params = {"max_new_tokens": new, "temperature": 0, "ignore_eos": True}
    return [r.token_ids for r in engine.generate(prompts, params)]


def hf_generate(model: Any, prompts: Prompts, new: int) -> Prompts:
    """One padded batch."""
    longest = max(map(len, prompts))
    ids = torch.tensor([[2] * (longest - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
    with torch.inference_mode():
        out = model.generate(
            ids, attention_mask=mask, max_new_tokens=new, min_new_tokens=new, do_sample=False,
            eos_token_id=None, pad_token_id=2,
        )  # fmt: skip
    generated: Prompts = out[:, longest:].tolist()
    return generated


def chat(generate: Generate) -> Prompts:
    system = random_ids(4, 1, 256)[0]
    histories = [list(system) for _ in range(8)]
    for turn in range(4):
        asked = random_ids(50 + turn, 8, 64)
        histories = [h + a for h, a in zip(histories, asked, strict=True)]
        answers = generate(histories, 32)
        histories = [h + a for h, a in zip(histories, answers, strict=True)]
    return histories


def workloads() -> dict[str, Callable[[Generate], Prompts]]:
    one, many = random_ids(1, 1, 64), random_ids(2, 16, 64)
    shared = random_ids(3, 1, 512)[0]
    family = [shared + tail for tail in random_ids(5, 32, 16)]
    return {
        "a": lambda generate: generate(one, 128),
        "b": lambda generate: generate(many, 64),
        "c": lambda generate: generate(family, 32),
        "d": chat,
    }


def compare(engine: Engine, sides: dict[str, Generate], name: str, repeats: int) -> dict[str, Any]:
    work = workloads()[name]
    best = dict.fromkeys(sides, float("inf"))
    outputs: dict[str, Prompts] = {}
    for _ in range(repeats):
        for side, run in sides.items():
            engine.flush_cache()
            start = time.perf_counter()
            outputs[side] = work(run)
            best[side] = min(best[side], time.perf_counter() - start)
    ratio = best["transformers"] / best["rtlang"]
    pairs = zip(outputs["rtlang"], outputs["transformers"], strict=True)
    same = sum(a == b for a, b in pairs)
    print(
        f"({name}) rtlang {best['rtlang']:6.2f} s, transformers {best['transformers']:6.2f} s: "
        f"{ratio:5.2f} x (goal {GOALS[name]}) {'ok' if ratio >= GOALS[name] else 'MISSED'}; "
        f"{same} of {len(outputs['rtlang'])} outputs equal",
        flush=True,
    )
    return {"workload": name, "ratio": ratio, "goal": GOALS[name], "seconds": best, "equal": same}


def main() -> int:
    parser = argparse.ArgumentParser(description="rtlang against transformers on this CPU")
    parser.add_argument("workloads", nargs="*", default=list(GOALS), help="of a b c d")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--json", type=Path, help="save the figures here")
    args = parser.parse_args()
    with Engine("smollm2", max_total_tokens=32768) as engine:
        model = AutoModelForCausalLM.from_pretrained(engine.model_path, dtype=torch.float32)
        model.generation_config.eos_token_id = None
        sides: dict[str, Generate] = {
            "rtlang": lambda prompts, new: engine_generate(engine, prompts, new),
            "transformers": lambda prompts, new: hf_generate(model, prompts, new),
        }
        for run in sides.values():
            run(random_ids(0, 2, 32), 8)  # warm
        rows = [compare(engine, sides, name, args.repeats) for name in args.workloads]
    if args.json:
        args.json.write_text(json.dumps(rows, indent=2) + "\n")
    return 1 if any(row["ratio"] < row["goal"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
