"""The workloads of ``gpu.py`` on token ids: sizes that can be measured on an engine."""

from __future__ import annotations

import dataclasses
import random
import time
from typing import Any, ClassVar

from benchmarks.gpu_measuring import (
    Ids,
    Measured,
    flush,
    prefix_note,
    prefix_use,
    random_ids,
    timed_generate,
    usage_of,
)
from rtlang.runtime.engine import Engine
from rtlang.runtime.messages import Usage

TEMPERATURE = 0.6


@dataclasses.dataclass(frozen=True, slots=True)
class StepTime:
    """(time for ``new`` + 1 output tokens - time for 1) / ``new``, with all prompts cached.

    ``count`` prompts of ``shared`` common and ``own`` further ids. Over several runs both times
    are the shortest ones: the difference of a pair would count a slow first time as a gain.
    """

    unit: ClassVar[str] = "ms a step"
    repeats: ClassVar[int] = 2
    needs_text: ClassVar[bool] = False
    count: int
    shared: int
    own: int
    new: int

    @property
    def longest(self) -> int:
        return self.shared + self.own + self.new + 1

    def shortened(self, outputs: int) -> StepTime:
        return dataclasses.replace(self, new=min(self.new, outputs))

    def prompts(self, vocab_size: int, seed: int) -> list[Ids]:
        rng = random.Random(seed)
        shared = random_ids(rng, 1, self.shared, vocab_size)[0]
        return [shared + own for own in random_ids(rng, self.count, self.own, vocab_size)]

    def decode(self, engine: Engine, seed: int) -> None:
        """The longer half of a measurement, once more."""
        prompts = self.prompts(engine.info.vocab_size, seed)
        timed_generate(engine, prompts, [self.new + 1] * self.count, TEMPERATURE)

    def measure(self, engine: Engine, seed: int, repeats: int) -> Measured:
        prompts = self.prompts(engine.info.vocab_size, seed)
        flush(engine)
        timed_generate(engine, prompts[:1], [1], TEMPERATURE)  # what they share, once
        timed_generate(engine, prompts, [1] * self.count, TEMPERATURE)
        runs = []
        computed = 0
        for _ in range(repeats):
            one, first = timed_generate(engine, prompts, [1] * self.count, TEMPERATURE)
            many, rest = timed_generate(engine, prompts, [self.new + 1] * self.count, TEMPERATURE)
            runs.append({"one_s": one, f"{self.new + 1}_s": many})
            computed = max(computed, *(usage_of(r).computed_tokens for r in (first, rest)))
        many_s, one_s = (min(r[k] for r in runs) for k in (f"{self.new + 1}_s", "one_s"))
        measured = Measured((many_s - one_s) / self.new * 1e3, runs, prompts)
        measured.details = {"most_computed_prompt_tokens": computed}
        if computed > self.count * engine.config.page_size:
            measured.notes = [f"not wholly cached: {computed:,} prompt tokens computed in a run"]
        return measured


@dataclasses.dataclass(frozen=True, slots=True)
class Offline:
    """``count`` prompts of ``prompt`` fresh ids, ``out`` tokens each, all sent at once."""

    unit: ClassVar[str] = "out tokens/s"
    repeats: ClassVar[int] = 1
    needs_text: ClassVar[bool] = False
    count: int
    prompt: int
    out: int

    @property
    def longest(self) -> int:
        return self.prompt + self.out

    def shortened(self, outputs: int) -> Offline:
        return dataclasses.replace(self, out=min(self.out, outputs))

    def requests(self, vocab_size: int, seed: int) -> tuple[list[Ids], list[int]]:
        prompts = random_ids(random.Random(seed), self.count, self.prompt, vocab_size)
        return prompts, [self.out] * self.count

    def measure(self, engine: Engine, seed: int, repeats: int) -> Measured:
        prompts, lengths = self.requests(engine.info.vocab_size, seed)
        return measure_rate(engine, prompts, lengths, repeats, tokens=sum(lengths))


@dataclasses.dataclass(frozen=True, slots=True)
class Prefill:
    """``count`` prompts of ``prompt`` fresh ids, one token out; the rate of prompt tokens."""

    unit: ClassVar[str] = "in tokens/s"
    repeats: ClassVar[int] = 1
    needs_text: ClassVar[bool] = False
    count: int
    prompt: int

    @property
    def longest(self) -> int:
        return self.prompt + 1

    def shortened(self, outputs: int) -> Prefill:
        return self

    def measure(self, engine: Engine, seed: int, repeats: int) -> Measured:
        rng, vocab_size = random.Random(seed), engine.info.vocab_size
        prompts = random_ids(rng, self.count, self.prompt, vocab_size)
        lengths = [1] * self.count
        return measure_rate(engine, prompts, lengths, repeats, tokens=self.count * self.prompt)


@dataclasses.dataclass(frozen=True, slots=True)
class Nano:
    """nano-vllm's own benchmark: lengths in and out drawn from [``least``, ``most``], ids from
    [0, 10000], all by one generator, prompts before lengths of answers."""

    unit: ClassVar[str] = "out tokens/s"
    repeats: ClassVar[int] = 1
    needs_text: ClassVar[bool] = False
    count: int
    least: int
    most: int
    cap: int | None = None  # of the answers

    @property
    def longest(self) -> int:
        return 2 * self.most

    def shortened(self, outputs: int) -> Nano:
        return dataclasses.replace(self, cap=outputs)

    def requests(self, vocab_size: int, seed: int) -> tuple[list[Ids], list[int]]:
        rng = random.Random(seed)
        last = min(10_000, vocab_size - 1)
        sizes = (self.least, self.most)
        prompts = [
            [rng.randint(0, last) for _ in range(rng.randint(*sizes))] for _ in range(self.count)
        ]
        lengths = [rng.randint(*sizes) for _ in range(self.count)]
        return prompts, [min(n, self.cap or n) for n in lengths]

    def measure(self, engine: Engine, seed: int, repeats: int) -> Measured:
        prompts, lengths = self.requests(engine.info.vocab_size, seed)
        return measure_rate(engine, prompts, lengths, repeats, tokens=sum(lengths))


def measure_rate(
    engine: Engine, prompts: list[Ids], lengths: list[int], repeats: int, *, tokens: int
) -> Measured:
    """Tokens per second of the fastest run, each from an empty cache."""
    runs: list[dict[str, Any]] = []
    for _ in range(repeats):
        flush(engine)
        seconds, results = timed_generate(engine, prompts, lengths, TEMPERATURE)
        runs.append({"seconds": seconds, "cached_tokens": usage_of(results).cached_tokens})
    value = tokens / min(run["seconds"] for run in runs)
    return Measured(value, runs, [prompts, lengths], {"tokens": tokens})


@dataclasses.dataclass(frozen=True, slots=True)
class Chat:
    """Sessions that share a beginning. A turn sends all of them and waits for all answers; then
    each session gets its answer and its next ``user`` ids appended."""

    unit: ClassVar[str] = "out tokens/s"
    repeats: ClassVar[int] = 1
    needs_text: ClassVar[bool] = False
    sessions: int
    turns: int
    shared: int
    user: int
    out: int

    @property
    def longest(self) -> int:
        return self.shared + self.turns * (self.user + self.out)

    def shortened(self, outputs: int) -> Chat:
        return dataclasses.replace(self, out=min(self.out, outputs))

    def inputs(self, vocab_size: int, seed: int) -> tuple[Ids, list[list[Ids]]]:
        """What all share, and the new ids of each session by turn."""
        rng = random.Random(seed)
        shared = random_ids(rng, 1, self.shared, vocab_size)[0]
        asked = [random_ids(rng, self.sessions, self.user, vocab_size) for _ in range(self.turns)]
        return shared, asked

    def measure(self, engine: Engine, seed: int, repeats: int) -> Measured:
        shared, asked = self.inputs(engine.info.vocab_size, seed)
        runs = []
        for _ in range(repeats):
            flush(engine)
            runs.append(self._run(engine, shared, asked))
        best = min(runs, key=lambda run: float(run["seconds"]))
        tokens = self.sessions * self.turns * self.out
        use = best["prefix"]
        notes = [prefix_note(use)]
        return Measured(tokens / best["seconds"], runs, [shared, asked], use, notes)

    def _run(self, engine: Engine, shared: Ids, asked: list[list[Ids]]) -> dict[str, Any]:
        histories = [list(shared) for _ in range(self.sessions)]
        usages: list[list[Usage]] = [[] for _ in range(self.sessions)]
        turn_s = []
        start = time.perf_counter()
        for new in asked:
            histories = [h + ids for h, ids in zip(histories, new, strict=True)]
            took, results = timed_generate(
                engine, histories, [self.out] * self.sessions, TEMPERATURE
            )
            turn_s.append(took)
            for i, result in enumerate(results):
                histories[i] = histories[i] + result.token_ids
                usages[i].append(result.usage)
        seconds = time.perf_counter() - start
        return {"seconds": seconds, "turn_s": turn_s, "prefix": prefix_use(usages, self.shared)}
