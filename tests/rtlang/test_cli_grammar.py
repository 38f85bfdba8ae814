"""``rtlang grammar check``: what it prints, and its exit status."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from rtlang.cli.main import main

POINT = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}


@pytest.mark.parametrize(
    ("args", "status", "says"),
    [
        (["--regex", "a+"], 0, "accepted"),
        (["--regex", "a+", "aaa"], 0, "allowed"),
        (["--regex", "a+", "b"], 2, "not allowed"),
        (["--regex", "a+", ""], 2, "not allowed"),
        (["--ebnf", 'root ::= "a" | "b"', "b"], 0, "allowed"),
        (["--choice", '["yes", "no"]', "no"], 0, "allowed"),
        (["--schema", json.dumps(POINT), '{"x": 5}'], 0, "allowed"),
        (["--schema", json.dumps(POINT), '{"x": "5"}'], 2, "not allowed"),
        ([json.dumps({"json_schema": POINT}), '{"x": 5}'], 0, "allowed"),
        ([json.dumps({"regex": "a+"}), "b"], 2, "not allowed"),
    ],
)
def test_accepted_and_allowed(
    args: list[str], status: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["grammar", "check", *args]) == status
    assert capsys.readouterr().out == says + "\n"


def test_files_and_standard_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "schema.json"
    file.write_text(json.dumps(POINT, indent=4))
    assert main(["grammar", "check", "--schema", str(file), '{"x":1}']) == 0
    monkeypatch.setattr("sys.stdin", io.StringIO('root ::= "é"'))
    assert main(["grammar", "check", "--ebnf", "-", "é"]) == 0
    assert capsys.readouterr().out == "allowed\nallowed\n"


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--regex", "(a"], ["invalid_regex", "pos:"]),
        (["--ebnf", 'root ::=\n  "a" |'], ["invalid_ebnf", "line: 2", "column: 8"]),
        (["--ebnf", 'root ::= root "a"'], ["grammar_unsatisfiable"]),
        (["--schema", "{"], ["invalid_json"]),
        (
            ["--schema", '{"properties": {"a": {"$ref": "https://example.com/x"}}}'],
            ["unsupported_keyword", "pointer: /properties/a", "keyword: $ref", "reason:"],
        ),
        (["--choice", "[]"], ["invalid_parameter", "no option"]),
        (['{"regexp": "a"}'], ["invalid_parameter", "regexp"]),
        (["{"], ["invalid_json"]),
        (["5"], ["invalid_parameter"]),
        (["x" * 300], ["invalid_json"]),
    ],
)
def test_refused_and_why(
    args: list[str], says: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["grammar", "check", *args, "text"]) == 1
    printed = capsys.readouterr().out
    assert printed.startswith("refused: ")
    assert [part for part in says if part not in printed] == []
