"""How ``gpu.py`` measures: by the wall clock around whole calls, nothing streamed, EOS ignored.

What a workload asks depends on its seed alone; the warm-up is the same workload with another one.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import random
import time
from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

from rtlang.errors import EngineBusy
from rtlang.grammar.spec import GrammarSpec
from rtlang.runtime.engine import Engine
from rtlang.runtime.messages import Usage
from rtlang.runtime.result import GenerateResult
from rtlang.runtime.sampling_params import SamplingParams

Ids = list[int]
#: Seconds that requests which have answered may need until nothing of them runs.
SETTLE_S = 5.0


@dataclasses.dataclass(slots=True)
class Measured:
    """``value``: the figure, in the workload's unit. ``runs``: what each timed run has taken.
    ``content``: all that was asked, for the hash. ``notes``: lines for the reader."""

    value: float
    runs: list[dict[str, Any]]
    content: Any
    details: dict[str, Any] = dataclasses.field(default_factory=dict)
    notes: list[str] = dataclasses.field(default_factory=list)


class Workload(Protocol):
    """A frozen dataclass; ``repeats``: timed runs unless told otherwise, the best counts."""

    unit: ClassVar[str]
    repeats: ClassVar[int]
    needs_text: ClassVar[bool]

    @property
    def longest(self) -> int:
        """Tokens of its longest sequence, answer included (of texts: a bound)."""
        ...

    def shortened(self, outputs: int) -> Workload:
        """The same prompts with at most so many tokens out, for a warm-up."""
        ...

    def measure(self, engine: Engine, seed: int, repeats: int) -> Measured: ...


def workload_hash(workload: Workload, content: Any) -> str:
    """Of everything that was asked: two figures with different hashes are not comparable."""
    return hashlib.sha256(json.dumps([repr(workload), content]).encode()).hexdigest()[:12]


def random_ids(rng: random.Random, count: int, length: int, vocab_size: int) -> list[Ids]:
    ids = range(vocab_size)
    return [rng.choices(ids, k=length) for _ in range(count)]


def flush(engine: Engine) -> None:
    """Forget every prefix, as soon as the last answered request has left the engine."""
    deadline = time.perf_counter() + SETTLE_S
    while True:
        try:
            return engine.flush_cache()
        except EngineBusy:
            if time.perf_counter() > deadline:
                raise
            time.sleep(0.01)


def timed_generate(
    engine: Engine,
    prompts: Sequence[Any],
    lengths: Sequence[int],
    temperature: float,
    *,
    grammar: GrammarSpec | None = None,
) -> tuple[float, list[GenerateResult]]:
    """Seconds of one call. Raises ``RuntimeError`` unless each answer has exactly its length."""
    params = [
        SamplingParams(
            max_new_tokens=n, temperature=temperature, ignore_eos=grammar is None, grammar=grammar
        )
        for n in lengths
    ]
    start = time.perf_counter()
    results: list[GenerateResult] = engine.generate(list(prompts), params)
    seconds = time.perf_counter() - start
    got = [len(r.token_ids) for r in results]
    if got != list(lengths):
        short = sum(a != b for a, b in zip(got, lengths, strict=True))
        raise RuntimeError(f"{short} of {len(got)} answers do not have the asked length")
    return seconds, results


def usage_of(results: Sequence[GenerateResult]) -> Usage:
    return sum((r.usage for r in results), Usage())


def prefix_use(conversations: Sequence[Sequence[Usage]], shared: int) -> dict[str, Any]:
    """Prompt tokens computed against the ideal: what all share once, then each turn's new tokens.

    New in a turn is what follows the last answer, and that answer's last token: it was sampled
    and never run. Even a prompt that is wholly cached computes one token.
    """
    total = sum((u for turns in conversations for u in turns), Usage())
    ideal = shared
    for turns in conversations:
        ideal += max(1, turns[0].prompt_tokens - shared)
        for before, after in itertools.pairwise(turns):
            ideal += after.prompt_tokens - before.prompt_tokens - before.completion_tokens + 1
    return {
        "prompt_tokens": total.prompt_tokens,
        "computed_tokens": total.computed_tokens,
        "ideal_computed_tokens": ideal,
        "computed_over_ideal": total.computed_tokens / ideal,
        "hit_share": total.cached_tokens / total.prompt_tokens,
        "ideal_hit_share": 1 - ideal / total.prompt_tokens,
    }


def prefix_note(use: dict[str, Any]) -> str:
    return (
        f"prompt tokens computed {use['computed_tokens']:,}, ideal "
        f"{use['ideal_computed_tokens']:,}: ratio {use['computed_over_ideal']:.4f}; hit share "
        f"{use['hit_share']:.2%}, ideal {use['ideal_hit_share']:.2%}"
    )
