"""Real JSON schemas and instances of them: which are accepted, how exactly, and at which cost.

    python benchmarks/maskbench.py --data maskbench.jsonl --json figures.json

``--data`` has one JSON object a line: ``id``, ``schema``, and ``tests``, a list of ``data`` (an
instance) and ``valid`` (whether it satisfies the schema). Constraints are compiled for the
vocabulary of a model and judge the token ids of the instances' texts. Exits 1 where a goal of
``GOALS`` is missed.

Times are of this thread: by the clock, and of the CPU, which other work on the machine does not
lengthen.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from rtlang.errors import GrammarError, GrammarTimeout, GrammarTooLarge, UnsupportedKeyword
from rtlang.grammar import llg_backend
from rtlang.grammar.canary import Canary
from rtlang.grammar.compiler import looks_expensive
from rtlang.grammar.emit import to_ebnf
from rtlang.grammar.llg_backend import LlgBackend
from rtlang.grammar.matcher import Compiled, Matcher
from rtlang.grammar.spec import GrammarSpec
from rtlang.grammar.translate import translate
from rtlang.grammar.vocab import Vocab
from rtlang.grammar.xgr_backend import XgrBackend
from rtlang.runtime.checkpoint import CheckpointSource
from rtlang.runtime.config import EngineConfig
from rtlang.runtime.tokenizer import Tokenizer

#: At least (``accepted``: shares of all schemas) or at most.
GOALS = {
    "accepted": 0.88,
    "accepted_with_llguidance": 0.92,
    "wrongly_accepted": 0,
    "valid_refused": 0.08,
    "compile_s": 10.0,
}
#: Texts of an instance: that of ``json.dumps`` first, which is the one that is timed.
SPELLINGS: tuple[dict[str, Any], ...] = (
    {"ensure_ascii": False},
    {"ensure_ascii": False, "separators": (",", ":")},
    {"ensure_ascii": False, "indent": 2},
    {"ensure_ascii": True},
)
_SHARES = (50, 90, 99, 100)


class Spent:
    """Seconds that each piece of work of one kind took, by the clock and of the CPU."""

    def __init__(self) -> None:
        self.pairs: list[tuple[float, float]] = []

    @contextlib.contextmanager
    def timed(self) -> Iterator[None]:
        wall, cpu = time.perf_counter(), time.thread_time()
        try:
            yield
        finally:
            cpu, wall = time.thread_time() - cpu, time.perf_counter() - wall
            self.pairs.append((wall, cpu))

    def quantiles(self) -> dict[str, list[float]]:
        """p50, p90, p99 and the maximum of each clock, in seconds."""
        table = np.array(self.pairs or [(0.0, 0.0)])
        return {
            name: np.percentile(table[:, at], _SHARES).tolist()
            for at, name in enumerate(("wall", "cpu"))
        }


@dataclasses.dataclass
class Costs:
    translate: Spent = dataclasses.field(default_factory=Spent)
    compile: Spent = dataclasses.field(default_factory=Spent)  # with xgrammar
    llguidance: Spent = dataclasses.field(default_factory=Spent)
    mask: Spent = dataclasses.field(default_factory=Spent)  # xgrammar's, one row
    llguidance_mask: Spent = dataclasses.field(default_factory=Spent)


@dataclasses.dataclass
class Found:
    """What became of one schema.

    backend    what compiled it; "" if nothing did
    refusal    of ours, whether or not llguidance has taken it then
    trial      seconds of its trial compile, if it looked expensive
    accepted   invalid instances that were accepted, in any spelling
    refused    valid ones that were not: what was read of them, and why, as far as it is known
    unequal    tokens of which mask and ``accept`` said different things
    mask_s     of the CPU, for its slowest mask
    """

    id: str
    backend: str = ""
    refusal: str = ""
    trial: float | None = None
    compile_s: float = 0.0
    valid: int = 0
    invalid: int = 0
    accepted: list[Any] = dataclasses.field(default_factory=list)
    refused: list[str] = dataclasses.field(default_factory=list)
    unequal: int = 0
    mask_s: float = 0.0


class Bench:
    def __init__(self, tokenizer: Tokenizer) -> None:
        self.costs = Costs()
        self._tokenizer = tokenizer
        vocab = Vocab.build(
            tokenizer.token_bytes,
            tokenizer.vocab_size,
            stop_ids=tokenizer.eos_ids,
            special_ids=tokenizer.special_ids,
        )
        self._bitmask = np.zeros((1, vocab.num_words), np.int32)
        self._xgr, self._canary = XgrBackend(vocab), Canary(vocab)
        self._llg = LlgBackend(vocab) if llg_backend.available() else None
        # What is loaded at first use counts for no schema.
        self._easy = to_ebnf(translate(GrammarSpec.any_json()))
        self._canary.check(self._easy)
        self._xgr.compile_ebnf(self._easy).matcher().fill(self._bitmask, 0)

    def close(self) -> None:
        self._canary.close()

    def judge(self, row: dict[str, Any]) -> Found:
        found = Found(row["id"])
        compiled = self._compiled(row["schema"], found)
        if compiled is None:
            return found
        for test in row["tests"]:
            texts = [json.dumps(test["data"], **spelling) for spelling in SPELLINGS]
            if not test["valid"]:
                found.invalid += 1
                first = self._read(compiled, texts[0], found) is None
                if first or any(self._accepts(compiled, text) for text in texts[1:]):
                    found.accepted.append(test["data"])
                continue
            found.valid += 1
            left_at = self._read(compiled, texts[0], found)
            if left_at is not None:
                why = self._reason(compiled, row["schema"], test["data"])
                found.refused.append(f"{why}: {texts[0][max(0, left_at - 60) : left_at]}")
        return found

    def _compiled(self, schema: Any, found: Found) -> Compiled | None:
        try:
            spec = GrammarSpec.json_schema(schema)
        except GrammarError as error:  # no backend is asked
            found.refusal = _said(error)
            return None
        try:
            compiled = self._ours(spec, found)
            found.backend = "xgrammar"
            return compiled
        except GrammarError as error:
            found.refusal = _said(error)
            if not isinstance(error, UnsupportedKeyword | GrammarTooLarge | GrammarTimeout):
                return None
        if self._llg is None:
            return None
        try:
            with self.costs.llguidance.timed():
                other = self._llg.compile_schema(spec.source, max_whitespace=spec.whitespace)
        except GrammarError:
            return None
        found.backend = "llguidance"
        return other

    def _ours(self, spec: GrammarSpec, found: Found) -> Compiled:
        with self.costs.translate.timed():
            ebnf = to_ebnf(translate(spec))
        if looks_expensive(ebnf):
            start = time.perf_counter()
            try:
                self._canary.check(ebnf)
            finally:
                found.trial = time.perf_counter() - start
                self._canary.check(self._easy)  # if it was killed, the next one is not to wait
        with self.costs.compile.timed():
            compiled = self._xgr.compile_ebnf(ebnf)
        found.compile_s = self.costs.compile.pairs[-1][0]
        return compiled

    def _read(self, compiled: Compiled, text: str, found: Found) -> int | None:
        """None: the text is accepted; else how many of its characters were. Takes the time."""
        spent = self.costs.mask if found.backend == "xgrammar" else self.costs.llguidance_mask
        matcher, read = compiled.matcher(), bytearray()
        for token_id in self._ids(text):
            with spent.timed():
                matcher.fill(self._bitmask, 0)
            found.mask_s = max(found.mask_s, spent.pairs[-1][1])
            accepted = matcher.accept(token_id)
            found.unequal += accepted != self._allows(token_id)
            if not accepted:
                return len(read.decode(errors="ignore"))
            read += matcher.vocab.token_bytes[token_id]
        with spent.timed():
            matcher.fill(self._bitmask, 0)
        ends = matcher.can_end()
        found.unequal += any(self._allows(stop) != ends for stop in matcher.vocab.stop_ids)
        return None if ends else len(text)

    def _allows(self, token_id: int) -> bool:
        return bool(self._bitmask[0, token_id // 32] >> (token_id % 32) & 1)

    def _accepts(self, compiled: Compiled, text: str) -> bool:
        matcher: Matcher = compiled.matcher()
        return all(map(matcher.accept, self._ids(text))) and matcher.can_end()

    def _ids(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_bos=False, control=False)

    def _reason(self, compiled: Compiled, schema: Any, data: Any) -> str:
        ordered = json.dumps(_in_order(data, _ranks(schema, {})), ensure_ascii=False)
        return "order of keys" if self._accepts(compiled, ordered) else "other"


def _said(error: GrammarError) -> str:
    return f"{type(error).__name__}: {error}"


def _ranks(schema: Any, ranks: dict[str, int]) -> dict[str, int]:
    """Names of properties in the order in which the schema has them, wherever they stand."""
    if isinstance(schema, list):
        for part in schema:
            _ranks(part, ranks)
    elif isinstance(schema, dict):
        for name in schema.get("properties", {}):
            ranks.setdefault(name, len(ranks))
        for part in schema.values():
            _ranks(part, ranks)
    return ranks


def _in_order(data: Any, ranks: dict[str, int]) -> Any:
    if isinstance(data, list):
        return [_in_order(part, ranks) for part in data]
    if isinstance(data, dict):
        names = sorted(data, key=lambda name: ranks.get(name, len(ranks)))
        return {name: _in_order(data[name], ranks) for name in names}
    return data


def figures(found: list[Found], costs: Costs) -> dict[str, Any]:
    """The numbers of ``GOALS`` and those beside them."""

    def count(of: Callable[[Found], int]) -> int:
        return sum(map(of, found))

    ours, valid = count(lambda f: f.backend == "xgrammar"), count(lambda f: f.valid)
    refusals = collections.Counter(f.refusal.partition(":")[0] for f in found if f.refusal)
    return {
        "schemas": len(found),
        "accepted": ours / len(found),
        "accepted_with_llguidance": count(lambda f: bool(f.backend)) / len(found),
        "refusals": dict(refusals),
        "valid": valid,
        "invalid": count(lambda f: f.invalid),
        "wrongly_accepted": count(lambda f: len(f.accepted)),
        "valid_refused": count(lambda f: len(f.refused)) / max(valid, 1),
        "unequal_xgrammar": count(lambda f: f.unequal * (f.backend == "xgrammar")),
        "unequal_llguidance": count(lambda f: f.unequal * (f.backend == "llguidance")),
        "compile_s": max((f.compile_s for f in found), default=0.0),
        "trials": {f.id: f.trial for f in found if f.trial is not None},
        "seconds": {
            field.name: getattr(costs, field.name).quantiles()
            for field in dataclasses.fields(costs)
        },
    }


def missed(result: dict[str, Any]) -> list[str]:
    """The goals that are. Acceptance through llguidance counts where it is installed."""
    wrong = []
    for name, goal in GOALS.items():
        if name.startswith("accepted"):
            counts = llg_backend.available() or not name.endswith("llguidance")
            wrong += [name] * (counts and result[name] < goal)
        else:
            wrong += [name] * (result[name] > goal)
    return wrong


def show(result: dict[str, Any], found: list[Found]) -> None:
    print(
        f"{result['schemas']} schemas: {result['accepted']:.1%} accepted with xgrammar, "
        f"{result['accepted_with_llguidance']:.1%} with llguidance behind it"
    )
    print(f"refusals: {result['refusals'] or 'none'}")
    print(
        f"instances of accepted schemas: {result['wrongly_accepted']} of {result['invalid']} "
        f"invalid ones accepted, {result['valid_refused']:.1%} of {result['valid']} valid refused"
    )
    print(
        f"mask and accept differ: {result['unequal_xgrammar']} times (xgrammar), "
        f"{result['unequal_llguidance']} (llguidance)"
    )
    print(f"{'':26} {'p50':>9} {'p90':>9} {'p99':>9} {'max':>9}")
    for name, by_clock in result["seconds"].items():
        unit, scale = ("us", 1e6) if name.endswith("mask") else ("ms", 1e3)
        for clock, values in by_clock.items():
            cells = " ".join(f"{value * scale:9,.1f}" for value in values)
            print(f"{f'{name}, {clock}, {unit}':26} {cells}")
    slow = sorted(found, key=lambda f: f.compile_s)[-3:]
    print("slowest compiles: " + ", ".join(f"{f.id} {f.compile_s:.2f} s" for f in slow[::-1]))
    slow = sorted(found, key=lambda f: f.mask_s)[-3:]
    print("slowest masks: " + ", ".join(f"{f.id} {f.mask_s * 1e3:.1f} ms" for f in slow[::-1]))
    for name, seconds in result["trials"].items():
        print(f"tried out first: {name}, {seconds:.2f} s")
    for f in found:
        if f.refusal:
            print(f"refused: {f.id}: {f.refusal[:160]} -> {f.backend or 'nothing'}")
        for data in f.accepted:
            print(f"WRONGLY ACCEPTED: {f.id}: {json.dumps(data)[:200]}")
        for text in f.refused:
            print(f"valid, left out: {f.id}: {text}")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="the schemas, JSON lines")
    parser.add_argument("--model", default="smollm2", help="whose vocabulary")
    parser.add_argument("--every", type=int, default=1, help="take each n-th schema only")
    parser.add_argument("--json", type=Path, help="save the figures here")
    args = parser.parse_args(argv)
    tokenizer = CheckpointSource(EngineConfig(model=args.model)).tokenizer
    if tokenizer is None:
        parser.error(f"{args.model} has no tokenizer")
    if args.every < 1:
        parser.error("--every must be at least 1")
    rows = [json.loads(line) for line in args.data.read_text().splitlines()][:: args.every]
    if not rows:
        parser.error(f"{args.data} has no schemas")
    bench = Bench(tokenizer)
    found = []
    try:
        for row in rows:
            found.append(bench.judge(row))
            print(f"\r{len(found)} of {len(rows)}", end="", file=sys.stderr, flush=True)
    finally:
        bench.close()
    print(file=sys.stderr)
    result = figures(found, bench.costs)
    show(result, found)
    if args.json:
        content = {**result, "cases": [dataclasses.asdict(f) for f in found]}
        args.json.write_text(json.dumps(content, indent=1) + "\n")
    for name in (wrong := missed(result)):
        print(f"MISSED: {name} is {result[name]:.4g}, goal {GOALS[name]}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
