"""The workloads of ``gpu.py`` under a JSON schema: what a constraint costs, and what it saves."""

from __future__ import annotations

import dataclasses
import json
import random
import time
from typing import Any, ClassVar

from benchmarks.gpu_measuring import Measured, flush, timed_generate
from benchmarks.gpu_programs import TEMPERATURE, Free, words
from rtlang.grammar.spec import GrammarSpec
from rtlang.runtime.engine import Engine
from rtlang.runtime.sampling_params import SamplingParams

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
        "status": {"enum": ["active", "retired", "unknown"]},
        "member": {"type": "boolean"},
    },
    "required": ["name", "age", "status", "member"],
    "additionalProperties": False,
}
#: No 128 tokens of a list of so many end it.
PEOPLE = {
    "type": "object",
    "properties": {"people": {"type": "array", "items": PERSON, "minItems": 60}},
    "required": ["people"],
    "additionalProperties": False,
}
CITY = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 16},
        "country": {"type": "string", "maxLength": 16},
        "population": {"type": "integer", "minimum": 0, "maximum": 99_999_999},
        "is_capital": {"type": "boolean"},
        "continent": {
            "enum": ["Africa", "America", "Asia", "Australia", "Europe", "Antarctica"]
        },
        "languages": {
            "type": "array",
            "items": {"type": "string", "maxLength": 12},
            "minItems": 1,
            "maxItems": 3,
        },
    },
    "additionalProperties": False,
}  # fmt: skip
CITY["required"] = list(CITY["properties"])  # type: ignore[call-overload]
_FIELDS = ("current_temperature_in_celsius", "relative_humidity_in_percent", "observation_station")
#: Long keys and words to choose from: most of the text is known beforehand.
REPORT = {
    "type": "object",
    "properties": {
        "weather_report_format_version": {"const": "2.1"},
        **{name: {"type": "integer", "minimum": 0, "maximum": 99} for name in _FIELDS},
        "precipitation_forecast": {
            "enum": ["no precipitation expected", "precipitation is expected", "unknown"]
        },
        "severe_weather_warning_issued": {"type": "boolean"},
    },
    "additionalProperties": False,
}
REPORT["required"] = list(REPORT["properties"])  # type: ignore[call-overload]


@dataclasses.dataclass(frozen=True, slots=True)
class Ratio:
    """Time of JSON-constrained answers over free ones of the same length, of the same prompts;
    the fastest of three runs each, taken in turn."""

    unit: ClassVar[str] = "times free"
    repeats: ClassVar[int] = 3
    needs_text: ClassVar[bool] = True
    count: int
    out: int

    @property
    def longest(self) -> int:
        return 512 + self.out

    def shortened(self, outputs: int) -> Ratio:
        return dataclasses.replace(self, out=min(self.out, outputs))

    def measure(self, engine: Engine, seed: int, repeats: int) -> Measured:
        chats = Free(self.count, self.out).chats(seed)
        grammar = GrammarSpec.json_schema(PEOPLE)
        flush(engine)
        runs = []
        for _ in range(repeats):
            free, _ = timed_generate(engine, chats, [self.out] * self.count, TEMPERATURE)
            bound, _ = timed_generate(
                engine, chats, [self.out] * self.count, TEMPERATURE, grammar=grammar
            )
            runs.append({"free_s": free, "seconds": bound})
        best = {name: min(run[name] for run in runs) for name in ("free_s", "seconds")}
        rates = {name: self.count * self.out / took for name, took in best.items()}
        note = f"tokens/s: {rates['seconds']:,.0f} constrained, {rates['free_s']:,.0f} free"
        return Measured(best["seconds"] / best["free_s"], runs, chats, rates, [note])


@dataclasses.dataclass(frozen=True, slots=True)
class Documents:
    """Whole JSON documents of one flat schema, of at most ``out`` tokens, all asked for at once;
    the rate of documents, of which each that is not cut off must be valid."""

    unit: ClassVar[str] = "documents/s"
    repeats: ClassVar[int] = 1
    needs_text: ClassVar[bool] = True
    count: int
    out: int

    @property
    def longest(self) -> int:
        return 512 + self.out

    def shortened(self, outputs: int) -> Documents:
        return dataclasses.replace(self, out=min(self.out, outputs))

    def chats(self, seed: int) -> list[list[dict[str, str]]]:
        rng = random.Random(seed)
        system = {"role": "system", "content": "You answer in JSON."}
        texts = [f"Describe the city of {words(rng, 2)}." for _ in range(self.count)]
        return [[system, {"role": "user", "content": text}] for text in texts]

    def measure(self, engine: Engine, seed: int, repeats: int) -> Measured:
        chats = self.chats(seed)
        flush(engine)
        params = SamplingParams(
            max_new_tokens=self.out,
            temperature=TEMPERATURE,
            grammar=GrammarSpec.json_schema(CITY),
        )
        runs: list[dict[str, Any]] = []
        for _ in range(repeats):
            start = time.perf_counter()
            results = engine.generate(chats, params)
            seconds = time.perf_counter() - start
            whole = [r for r in results if r.finish_reason.type == "stop"]
            for result in whole:
                json.loads(result.text)
            tokens = sum(r.usage.completion_tokens for r in results)
            runs.append({"seconds": seconds, "valid": len(whole), "tokens": tokens})
        best = min(runs, key=lambda run: float(run["seconds"]))
        note = f"{best['valid']} of {self.count} valid, {best['tokens']} tokens"
        return Measured(self.count / best["seconds"], runs, chats, best, [note])


@dataclasses.dataclass(frozen=True, slots=True)
class Jump:
    """Tokens per second with jump-forward over those without, one document of long keys at a
    time; the best of ``repeats`` runs of each, in turn."""

    unit: ClassVar[str] = "times mask-only"
    repeats: ClassVar[int] = 3
    needs_text: ClassVar[bool] = True
    count: int
    out: int

    @property
    def longest(self) -> int:
        return 512 + self.out

    def shortened(self, outputs: int) -> Jump:
        return dataclasses.replace(self, out=min(self.out, outputs))

    def measure(self, engine: Engine, seed: int, repeats: int) -> Measured:
        chats = Documents(self.count, self.out).chats(seed)
        flush(engine)
        grammar = GrammarSpec.json_schema(REPORT)
        runs: list[dict[str, Any]] = []
        for _ in range(repeats):
            run: dict[str, Any] = {}
            for mode in ("off", "canonical"):
                params = SamplingParams(
                    max_new_tokens=self.out,
                    temperature=0.0,
                    grammar=grammar,
                    jump_forward=mode,
                )
                start = time.perf_counter()
                results = [engine.generate(chat, params) for chat in chats]
                took = time.perf_counter() - start
                usages = [result.usage for result in results]
                tokens = sum(usage.completion_tokens for usage in usages)
                run[mode] = tokens / took
                run["seconds"], run["tokens"] = took, tokens
                run["forced"] = sum(usage.forced_tokens for usage in usages)
            runs.append(run)
        best = {mode: max(run[mode] for run in runs) for mode in ("off", "canonical")}
        forced = f"{runs[-1]['forced']} of {runs[-1]['tokens']} tokens forced"
        note = f"tokens/s: {best['canonical']:,.0f}, mask only {best['off']:,.0f}; {forced}"
        return Measured(best["canonical"] / best["off"], runs, chats, best, [note])
