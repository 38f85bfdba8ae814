"""Real schemas: what a model that likes illegal tokens generates under them satisfies them."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from conftest import MakeEngine
from project_tree import ROOT

from rtlang.errors import GrammarError
from rtlang.runtime.byte_tokenizer import ByteTokenizer
from rtlang.testing import ScriptedModel

jsonschema = pytest.importorskip("jsonschema")
DATA = ROOT.parent / "shared" / "data" / "maskbench_300.jsonl"
VOCAB = ByteTokenizer().vocab_size
#: Every so many schemas, to stay short.
STEP = 6


def stubborn() -> ScriptedModel:
    """Wants control characters, an early end and endless text; next to that, what closes."""

    def logits(tokens: list[int]) -> np.ndarray:
        rng = np.random.default_rng(tokens[-12:])
        row = rng.normal(size=VOCAB).astype(np.float32)
        row[:32] += 9.0
        row[256] += 6.0
        row[[ord(c) for c in '"}],0123']] += 2.5
        return row

    return ScriptedModel(logits=logits, context_length=2048, max_total_tokens=40_000)


@pytest.mark.skipif(not DATA.exists(), reason="the collection of schemas is not here")
def test_what_ends_satisfies_its_schema(make_engine: MakeEngine) -> None:
    rows = [json.loads(line) for line in DATA.read_text().splitlines()][::STEP]
    schemas = [row["schema"] for row in rows]
    params: list[dict[str, Any]] = [
        {"json_schema": schema, "max_new_tokens": 300, "temperature": 0.7, "sampling_seed": i}
        for i, schema in enumerate(schemas)
    ]
    engine = make_engine(stubborn(), debug=False)
    results = engine.generate(["p"] * len(schemas), params, raise_errors=False)
    ended = 0
    for schema, result in zip(schemas, results, strict=True):
        if isinstance(result, GrammarError):
            continue
        assert not isinstance(result, Exception), result
        if result.finish_reason.type == "stop":
            ended += 1
            jsonschema.validate(json.loads(result.text), schema)
    assert ended >= len(schemas) // 3
