"""No text of a schema's grammar fails the schema: random schemas, and public collections."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest
from grammar_language import Engine
from project_tree import ROOT
from schema_samples import COMPACT, Texts, is_valid, schema, text, value

from rtlang.errors import GrammarError, GrammarUnsatisfiable
from rtlang.grammar.emit import to_ebnf
from rtlang.grammar.ir import Grammar
from rtlang.grammar.schema import SchemaOptions, translate

DATA = ROOT.parent / "shared" / "data"
SUITE = DATA / "json-schema-test-suite-draft2020-12"
BENCH = DATA / "maskbench_300.jsonl"

needs_data = pytest.mark.skipif(not DATA.exists(), reason="the collections are not here")


def attempt(given: object, options: SchemaOptions = COMPACT) -> Grammar | None:
    """None: refused."""
    try:
        return translate(given, options)
    except GrammarUnsatisfiable:
        return Grammar({})  # accepted, as a schema without values
    except GrammarError:
        return None


@pytest.mark.parametrize("seed", range(5))
def test_random_schemas_accept_what_is_valid_and_nothing_else(seed: int) -> None:
    rng = random.Random(seed)
    decided = refused = left_out = 0
    for _ in range(50):
        given = schema(rng, 3)
        if not isinstance(given, dict):
            continue
        given["$defs"] = {"x": schema(rng, 1)}
        grammar = attempt(given)
        if grammar is None:
            refused += 1
            continue
        matcher = Engine(to_ebnf(grammar)) if grammar.rules else None
        for drawn in _texts(grammar, rng):
            assert is_valid(given, json.loads(drawn)) is not False, (given, drawn)
        for instance in (value(rng, 2) for _ in range(20)):
            accepted = matcher is not None and matcher.accepts(text(instance))
            valid = is_valid(given, instance)
            if valid is None:
                continue
            assert valid or not accepted, (given, instance)
            decided += 1
            left_out += valid and not accepted
    assert decided > 400
    assert refused < 15
    # The documented form leaves out some: mostly keys in another order than that of the schema.
    assert left_out < 0.06 * decided


def _texts(grammar: Grammar, rng: random.Random) -> Iterator[str]:
    if grammar.rules:
        texts = Texts(grammar, rng)
        yield from (drawn for drawn in (texts.draw() for _ in range(8)) if len(drawn) < 3000)


def judged(cases: list[tuple[Any, list[tuple[Any, bool]]]]) -> tuple[int, int, int, list[Any]]:
    """Of schemas with instances: accepted schemas; valid instances, those of them refused; and
    invalid ones accepted."""
    accepted = valid = refused = 0
    wrong: list[Any] = []
    for given, instances in cases:
        grammar = attempt(given, SchemaOptions())
        if grammar is None:
            continue
        accepted += 1
        matcher = Engine(to_ebnf(grammar)) if grammar.rules else None
        for instance, is_right in instances:
            found = matcher is not None and matcher.accepts(
                json.dumps(instance, ensure_ascii=False)
            )
            valid += is_right
            refused += is_right and not found
            if found and not is_right:
                wrong.append((given, instance))
    return accepted, valid, refused, wrong


@needs_data
def test_suite_of_the_standard() -> None:
    groups = [g for path in sorted(SUITE.glob("*.json")) for g in json.loads(path.read_text())]
    cases = [(g["schema"], [(t["data"], t["valid"]) for t in g["tests"]]) for g in groups]
    accepted, valid, refused, wrong = judged(cases)
    assert wrong == []
    assert accepted >= 340
    # 19 of these are texts that a format as an annotation lets through.
    assert refused <= 0.06 * valid


@needs_data
def test_schemas_from_practice() -> None:
    rows = [json.loads(line) for line in BENCH.read_text().splitlines()][1::6]
    cases = [(r["schema"], [(t["data"], t["valid"]) for t in r["tests"]]) for r in rows]
    accepted, valid, refused, wrong = judged(cases)
    assert wrong == []
    assert accepted >= 0.97 * len(rows)
    assert refused <= 0.04 * valid
