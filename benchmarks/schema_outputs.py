"""What a model generates under real JSON schemas: does it come to an end, and is it valid?

    python benchmarks/schema_outputs.py generate --data maskbench.jsonl --count 10 --save out.json
    python benchmarks/schema_outputs.py check --data maskbench.jsonl --load out.json

``--data`` is as for ``maskbench.py``. Generating and checking are two commands, since jsonschema,
which checks, need not be where the GPU is. ``check`` exits 1 where an ended text is not valid
(formats included), or where too few have ended (``GOALS``).
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rtlang.errors import GrammarError, GrammarTooSlow
from rtlang.runtime.engine import Engine

#: At least: shares of all schemas, and of the accepted schemas' outputs.
GOALS = {"accepted": 0.88, "ended": 0.6}
MAX_TOKENS = 300
SYSTEM = {"role": "system", "content": "You answer in JSON, as briefly as you can."}
#: Schemas asked for at once.
GROUP = 64


def read_schemas(path: Path) -> list[Any]:
    return [json.loads(line)["schema"] for line in path.read_text().splitlines()]


def request(schema: Any) -> list[dict[str, str]]:
    """One line that asks for an example, by the schema's title and its first properties."""
    title = str(schema.get("title", "the following"))[:80]
    names = ", ".join(list(schema.get("properties", {}))[:10])
    text = f"Write a short example of a JSON document of {title} ({names or 'anything'})."
    return [SYSTEM, {"role": "user", "content": " ".join(text.split())}]


def generate(engine: Engine, schemas: Sequence[Any], count: int = 1) -> list[list[Any]]:
    """For each schema ``count`` times how its output ended: ["stop" or "length", text], or
    ["refused", why]. Raises an error that is no refusal.

    Without a penalty so small a model often repeats itself inside a string that may be as long as
    it likes.
    """
    params: list[dict[str, Any]] = [
        {
            "json_schema": schema,
            "max_new_tokens": MAX_TOKENS,
            "temperature": 0.7,
            "repetition_penalty": 1.1,
            "sampling_seed": 1000 * k + i,
        }
        for i, schema in enumerate(schemas)
        for k in range(count)
    ]
    prompts = [request(schema) for schema in schemas for _ in range(count)]
    results: list[Any] = engine.generate(prompts, params, raise_errors=False)
    ends = [_end(result) for result in results]
    return [ends[i : i + count] for i in range(0, len(ends), count)]


def _end(result: Any) -> list[str]:
    if isinstance(result, GrammarError):
        return ["refused", str(result)]
    if isinstance(result, GrammarTooSlow):  # on a busy machine: it did not end
        return ["length", str(result.data.get("text", ""))]
    if isinstance(result, Exception):
        raise result
    return [result.finish_reason.type, result.text]


def faults(schema: Any, text: str) -> list[str]:
    """What keeps the text from satisfying the schema, formats included."""
    jsonschema = importlib.import_module("jsonschema")  # a development dependency
    kind = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)
    validator = kind(schema, format_checker=kind.FORMAT_CHECKER)
    try:
        return [error.message for error in validator.iter_errors(json.loads(text))]
    except json.JSONDecodeError as error:
        return [str(error)]


def figures(schemas: Sequence[Any], ends: Sequence[Sequence[Any]]) -> dict[str, Any]:
    """Counts of schemas and outputs; ``wrong``: [index, text, faults] of what ended badly."""
    kinds = Counter(kind for found in ends for kind, _ in found)
    wrong = [
        [i, text, found_faults]
        for i, (schema, found) in enumerate(zip(schemas, ends, strict=True))
        for kind, text in found
        if kind == "stop" and (found_faults := faults(schema, text))
    ]
    refused = [i for i, found in enumerate(ends) if found[0][0] == "refused"]
    outputs = kinds["stop"] + kinds["length"]
    return {
        "schemas": len(schemas),
        "accepted": 1 - len(refused) / max(len(schemas), 1),
        "refused": refused,
        "outputs": outputs,
        "stop": kinds["stop"],
        "ended": kinds["stop"] / max(outputs, 1),
        "every": sum(all(kind == "stop" for kind, _ in found) for found in ends),
        "any": sum(any(kind == "stop" for kind, _ in found) for found in ends),
        "wrong": wrong,
    }


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    making, checking = commands.add_parser("generate"), commands.add_parser("check")
    for command in (making, checking):
        command.add_argument("--data", type=Path, required=True)
    making.add_argument("--save", type=Path, required=True)
    making.add_argument("--model", default="smollm2")
    making.add_argument("--count", type=int, default=10, help="outputs for each schema")
    checking.add_argument("--load", type=Path, required=True)
    return parser.parse_args(argv)


def run_generate(args: argparse.Namespace) -> int:
    schemas = read_schemas(args.data)
    ends: list[list[Any]] = []
    start = time.perf_counter()
    with Engine(args.model) as engine:
        for at in range(0, len(schemas), GROUP):
            ends += generate(engine, schemas[at : at + GROUP], args.count)
            print(f"{len(ends)} schemas, {time.perf_counter() - start:.0f} s", flush=True)
            args.save.write_text(json.dumps(ends))
        engine.check()
    return 0


def run_check(args: argparse.Namespace) -> int:
    ends = json.loads(args.load.read_text())
    found = figures(read_schemas(args.data)[: len(ends)], ends)
    for i, text, why in found["wrong"]:
        print(f"WRONG: schema {i}: {text!r}: {'; '.join(why)}")
    print(
        f"{found['schemas']} schemas, {found['accepted']:.1%} accepted (refused: "
        f"{found['refused']}); {found['stop']} of {found['outputs']} outputs ended "
        f"({found['ended']:.1%}), for {found['any']} schemas one or more, for {found['every']} "
        f"all; {len(found['wrong'])} of those that ended are not valid"
    )
    return int(bool(found["wrong"]) or any(found[name] < least for name, least in GOALS.items()))


def main(argv: list[str] | None = None) -> int:
    args = parse_args(argv)
    return run_generate(args) if args.command == "generate" else run_check(args)


if __name__ == "__main__":
    sys.exit(main())
