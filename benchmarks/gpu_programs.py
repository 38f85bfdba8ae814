"""The workloads of ``gpu.py`` on text: chat prompts, and programs in the language."""

from __future__ import annotations

import dataclasses
import random
import time
from collections.abc import Sequence
from typing import Any, ClassVar

import rtlang as rt
from benchmarks.gpu_measuring import (
    Measured,
    flush,
    prefix_note,
    prefix_use,
    timed_generate,
)
from rtlang.runtime.engine import Engine
from rtlang.runtime.messages import Usage

TEMPERATURE = 0.8
#: A bound on the tokens of a word; the common ones below have between one and two.
TOKENS_PER_WORD = 2

_COMMON = """
able about above across act add afraid after again age ago agree air all allow alone along already
always among anger animal answer any apple area arm army arrive art ask autumn away baby back bad
bag ball bank base basket bath beach bean bear beat beautiful because bed before begin behind
believe bell below best better between bird birth bit bite black blood blow blue board boat body
bone book border born bottle bottom bowl box boy branch brave bread break breakfast breathe bridge
bright bring brother brown brush build burn bus busy butter buy cake call camera camp candle car
card care carry case castle cat catch cause chair change cheap cheese chicken child church circle
city class clean clear climb clock close cloth cloud coat coffee cold collect colour come common
cook cool corn corner correct cost count country course cover cow cross cry cup cut dance danger
dark daughter day dead deep desk dinner dirty doctor dog door double dream dress drink drive dry
dust ear early earth east easy eat egg empty end enemy enjoy enough evening event every exact eye
face fact fall family far farm fast father fear feather feel fence field fight find finger finish
fire fish flat floor flower fly follow food foot force forest forget fork fox free fresh friend
fruit full game garden gate gift girl give glad glass gold good grain grass great green ground
group grow guess guest gun hair half hall hammer hand happy hard hat head hear heart heavy help
hill history hold hole home honey hope horse hospital hot hour house hunt ice idea ink island
jacket job join journey judge juice jump keep key king kitchen knee knife lake lamp land language
"""
WORDS = _COMMON.split()


def words(rng: random.Random, count: int) -> str:
    return " ".join(rng.choices(WORDS, k=count))


@dataclasses.dataclass(frozen=True, slots=True)
class Free:
    """Chat prompts that nothing constrains, ``out`` tokens each; the fastest of three runs."""

    unit: ClassVar[str] = "out tokens/s"
    repeats: ClassVar[int] = 3
    needs_text: ClassVar[bool] = True
    count: int
    out: int

    @property
    def longest(self) -> int:
        return 512 + self.out

    def shortened(self, outputs: int) -> Free:
        return dataclasses.replace(self, out=min(self.out, outputs))

    def chats(self, seed: int) -> list[list[dict[str, str]]]:
        rng = random.Random(seed)
        return [
            [
                {"role": "system", "content": "You answer in JSON."},
                {"role": "user", "content": f"List the people of the town of {words(rng, 2)}."},
            ]
            for _ in range(self.count)
        ]

    def measure(self, engine: Engine, seed: int, repeats: int) -> Measured:
        chats = self.chats(seed)
        flush(engine)
        runs = []
        for _ in range(repeats):
            seconds, _ = timed_generate(engine, chats, [self.out] * self.count, TEMPERATURE)
            runs.append({"seconds": seconds})
        value = self.count * self.out / min(run["seconds"] for run in runs)
        return Measured(value, runs, chats)


@rt.function
def agent(
    s: rt.ProgramState, template: str, observations: Sequence[str], out: int, last: int
) -> None:
    """Thinks, is told what it sees, thinks again, and answers."""
    s += template
    for i, observation in enumerate(observations):
        s += rt.gen(f"thought_{i}", max_tokens=out)
        s += observation
    s += rt.gen("answer", max_tokens=last)


@rt.function
def fork_and_join(s: rt.ProgramState, template: str, branches: int, out: int, last: int) -> None:
    """Goes on in several ways at once, then in one."""
    s += template
    forks = s.fork(branches)
    forks += rt.gen("branch", max_tokens=out)
    forks.join()
    s += rt.gen("answer", max_tokens=last)


def run_programs(
    engine: Engine, program: rt.Program[None], items: list[dict[str, Any]], expected: list[int]
) -> tuple[float, list[list[Usage]]]:
    """Seconds from an empty cache, and what each program's generations have used. Raises a
    program's error, or ``RuntimeError`` unless they have generated as many tokens as expected."""
    flush(engine)
    start = time.perf_counter()
    runs = program.run_batch(
        items, backend=engine, num_threads=len(items), temperature=TEMPERATURE, ignore_eos=True
    )
    seconds = time.perf_counter() - start
    usages = []
    for run in runs:
        if run.error is not None:
            raise run.error
        gens = [call.tokens or Usage() for call in run.usage.of_kind("gen")]
        lengths = [usage.completion_tokens for usage in gens]
        if lengths != expected:
            raise RuntimeError(f"a program has generated {lengths} tokens, not {expected}")
        usages.append(gens)
    return seconds, usages


@dataclasses.dataclass(frozen=True, slots=True)
class Agents:
    """``count`` agents on one template of random words, at once: ``steps`` times ``out`` tokens
    and an observation of their own, then ``last`` tokens."""

    unit: ClassVar[str] = "programs/s"
    repeats: ClassVar[int] = 1
    needs_text: ClassVar[bool] = True
    count: int
    template: int
    steps: int
    out: int
    observation: int
    last: int

    @property
    def longest(self) -> int:
        told = self.template + self.steps * self.observation
        return TOKENS_PER_WORD * told + self.steps * self.out + self.last

    def shortened(self, outputs: int) -> Agents:
        return dataclasses.replace(self, out=min(self.out, outputs), last=min(self.last, outputs))

    def items(self, seed: int) -> list[dict[str, Any]]:
        rng = random.Random(seed)
        template = words(rng, self.template) + "\n"
        return [
            {
                "template": template,
                "observations": [f"\n{words(rng, self.observation)}\n" for _ in range(self.steps)],
                "out": self.out,
                "last": self.last,
            }
            for _ in range(self.count)
        ]

    def measure(self, engine: Engine, seed: int, repeats: int) -> Measured:
        items = self.items(seed)
        expected = [self.out] * self.steps + [self.last]
        runs: list[dict[str, Any]] = []
        for _ in range(repeats):
            seconds, usages = run_programs(engine, agent, items, expected)
            # All begin with the same prompt, whose last token each has to compute by itself.
            use = prefix_use(usages, usages[0][0].prompt_tokens - 1)
            runs.append({"seconds": seconds, "prefix": use})
        best = min(runs, key=lambda run: run["seconds"])
        value = self.count / best["seconds"]
        return Measured(value, runs, items, best["prefix"], [prefix_note(best["prefix"])])


@dataclasses.dataclass(frozen=True, slots=True)
class AgentLatency:
    """One agent alone, from an empty cache to its end."""

    unit: ClassVar[str] = "s"
    repeats: ClassVar[int] = 1
    needs_text: ClassVar[bool] = True
    agents: Agents  # of one

    @property
    def longest(self) -> int:
        return self.agents.longest

    def shortened(self, outputs: int) -> AgentLatency:
        return AgentLatency(self.agents.shortened(outputs))

    def measure(self, engine: Engine, seed: int, repeats: int) -> Measured:
        measured = self.agents.measure(engine, seed, repeats)
        measured.value = min(run["seconds"] for run in measured.runs)
        return measured


@dataclasses.dataclass(frozen=True, slots=True)
class Forks:
    """``count`` programs on one template, at once: a fork whose branches generate ``out`` tokens
    each, the join, then ``last`` tokens."""

    unit: ClassVar[str] = "programs/s"
    repeats: ClassVar[int] = 1
    needs_text: ClassVar[bool] = True
    count: int
    template: int
    branches: int
    out: int
    last: int

    @property
    def longest(self) -> int:
        return TOKENS_PER_WORD * self.template + max(self.out, self.last)

    def shortened(self, outputs: int) -> Forks:
        return dataclasses.replace(self, out=min(self.out, outputs), last=min(self.last, outputs))

    def items(self, seed: int) -> list[dict[str, Any]]:
        template = words(random.Random(seed), self.template) + "\n"
        sizes = {"branches": self.branches, "out": self.out, "last": self.last}
        return [{"template": template, **sizes} for _ in range(self.count)]

    def measure(self, engine: Engine, seed: int, repeats: int) -> Measured:
        items = self.items(seed)
        expected = [self.out] * self.branches + [self.last]
        runs = []
        for _ in range(repeats):
            seconds, usages = run_programs(engine, fork_and_join, items, expected)
            used = sum((u for gens in usages for u in gens), Usage())
            runs.append({"seconds": seconds, "computed_tokens": used.computed_tokens})
        return Measured(self.count / min(run["seconds"] for run in runs), runs, items)
