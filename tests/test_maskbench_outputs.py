"""What the real SmolLM2 generates under real schemas satisfies them, and mostly comes to an end."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import rtlang as rt
from rtlang.errors import GrammarError, GrammarTooSlow

jsonschema = pytest.importorskip("jsonschema")
DATA = Path("/work/shared/data/maskbench_300.jsonl")
#: Schemas, spread over the file.
COUNT = 40
MAX_TOKENS = 300
SYSTEM = {"role": "system", "content": "You answer in JSON, as briefly as you can."}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.model,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not DATA.exists(), reason="the collection of schemas is not here"),
]


def spread(count: int) -> list[Any]:
    schemas = [json.loads(line)["schema"] for line in DATA.read_text().splitlines()]
    return [schemas[i * len(schemas) // count] for i in range(count)]


def request(schema: Any) -> list[dict[str, str]]:
    """One line that asks for an example, by the schema's title and its first properties."""
    title = str(schema.get("title", "the following"))[:80]
    names = ", ".join(list(schema.get("properties", {}))[:10])
    text = f"Write a short example of a JSON document of {title} ({names or 'anything'})."
    return [SYSTEM, {"role": "user", "content": " ".join(text.split())}]


def generate(engine: rt.Engine, schemas: Sequence[Any]) -> list[Any]:
    """A result or an error for each. Without a penalty so small a model often repeats itself
    inside a string that may be as long as it likes."""
    params: list[dict[str, Any]] = [
        {
            "json_schema": schema,
            "max_new_tokens": MAX_TOKENS,
            "temperature": 0.7,
            "repetition_penalty": 1.1,
            "sampling_seed": i,
        }
        for i, schema in enumerate(schemas)
    ]
    prompts = [request(schema) for schema in schemas]
    results: list[Any] = engine.generate(prompts, params, raise_errors=False)
    return results


def judged(schemas: Sequence[Any], results: Sequence[Any]) -> dict[str, list[Any]]:
    """Indices by how each ended, or "refused"; under "wrong" the texts that ended and what is
    wrong with them. Raises an error that is no refusal."""
    found: dict[str, list[Any]] = {"stop": [], "length": [], "refused": [], "wrong": []}
    for i, (schema, result) in enumerate(zip(schemas, results, strict=True)):
        if isinstance(result, GrammarError):
            found["refused"].append(i)
        elif isinstance(result, GrammarTooSlow):  # on a busy machine: it did not end
            found["length"].append(i)
        elif isinstance(result, Exception):
            raise result
        else:
            found[result.finish_reason.type].append(i)
            if result.finish_reason.type == "stop" and (wrong := faults(schema, result.text)):
                found["wrong"].append((i, result.text, wrong))
    return found


def faults(schema: Any, text: str) -> list[str]:
    """What keeps the text from satisfying the schema, formats included."""
    kind = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)
    validator = kind(schema, format_checker=kind.FORMAT_CHECKER)
    try:
        return [error.message for error in validator.iter_errors(json.loads(text))]
    except json.JSONDecodeError as error:
        return [str(error)]


def test_faults_are_found() -> None:
    schema = {"type": "object", "properties": {"on": {"type": "string", "format": "date"}}}
    assert faults(schema, '{"on": "2024-02-29"}') == []
    for text in ('{"on": "2023-02-29"}', '{"on": 1}', "[]", '{"on"'):
        assert faults(schema, text)


def test_what_ends_satisfies_its_schema_and_most_end() -> None:
    schemas = spread(COUNT)
    with rt.Engine("smollm2", max_total_tokens=32_768) as engine:
        found = judged(schemas, generate(engine, schemas))
        engine.check()
    assert found["wrong"] == []
    accepted = len(found["stop"]) + len(found["length"])
    assert accepted >= 0.88 * COUNT
    assert len(found["stop"]) >= 0.6 * accepted
