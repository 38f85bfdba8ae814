"""What the real SmolLM2 generates under real schemas satisfies them, and mostly comes to an end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from project_tree import ROOT

import rtlang as rt
from benchmarks import schema_outputs
from benchmarks.schema_outputs import GOALS, faults, figures, generate, read_schemas

pytest.importorskip("jsonschema")
DATA = ROOT.parent / "shared" / "data" / "maskbench_300.jsonl"
#: Schemas, spread over the file.
COUNT = 40
DATE: dict[str, Any] = {
    "type": "object",
    "properties": {"on": {"type": "string", "format": "date"}},
}


def test_faults_are_found() -> None:
    assert faults(DATE, '{"on": "2024-02-29"}') == []
    for text in ('{"on": "2023-02-29"}', '{"on": 1}', "[]", '{"on"'):
        assert faults(DATE, text)


def test_figures_count_outputs_and_tell_the_wrong_ones() -> None:
    ends = [
        [["stop", '{"on": "2024-02-29"}'], ["length", '{"on']],
        [["stop", "{}"], ["stop", "[]"]],
        [["refused", "no"], ["refused", "no"]],
    ]
    found = figures([DATE] * 3, ends)
    assert (found["outputs"], found["stop"], found["ended"]) == (4, 3, 0.75)
    assert (found["refused"], found["any"], found["every"]) == ([2], 2, 1)
    assert [(i, text) for i, text, _ in found["wrong"]] == [(1, "[]")]


def test_check_fails_on_a_wrong_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, saved = tmp_path / "data.jsonl", tmp_path / "out.json"
    data.write_text(json.dumps({"schema": DATE}))
    for text, status in (("{}", 0), ("[]", 1), ('{"on": "2023-02-29"}', 1)):
        saved.write_text(json.dumps([[["stop", text]] * 2]))
        args = ["check", "--data", str(data), "--load", str(saved)]
        assert schema_outputs.main(args) == status
        assert ("WRONG" in capsys.readouterr().out) is bool(status)


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.timeout(1800)
@pytest.mark.skipif(not DATA.exists(), reason="the collection of schemas is not here")
def test_what_ends_satisfies_its_schema_and_most_end() -> None:
    every = read_schemas(DATA)
    schemas = [every[i * len(every) // COUNT] for i in range(COUNT)]
    with rt.Engine("smollm2", max_total_tokens=32_768) as engine:
        found = figures(schemas, generate(engine, schemas))
        engine.check()
    assert found["wrong"] == []
    assert all(found[name] >= least for name, least in GOALS.items()), found
