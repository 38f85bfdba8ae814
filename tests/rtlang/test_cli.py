"""The command line, on a scripted model that it loads by its import path."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rtlang.cli.main import main

MODEL = ["--model", "process_models:fast"]


def test_generate_prints_the_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "hello", *MODEL]) == 0
    assert capsys.readouterr().out == "fine\n"


def test_generate_as_json_has_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "hello", "--chat", "--json", *MODEL]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["text"] == "fine"
    assert result["finish_reason"] == "stop"
    assert result["usage"]["computed_tokens"] == result["usage"]["prompt_tokens"]


def test_chat_keeps_the_conversation(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = iter(["hi", "", "more", "/quit"])
    monkeypatch.setattr("builtins.input", lambda _: next(lines))
    assert main(["chat", "--system", "Be brief.", *MODEL]) == 0
    out = capsys.readouterr().out
    assert out.count("fine") == 2
    first, second = (line for line in out.splitlines() if "cached" in line)
    assert first.startswith("(0 of ")
    assert not second.startswith("(0 of ")


def test_run_gives_the_file_s_programs_an_engine(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "program.py"
    file.write_text(
        "import sys\nimport rtlang as rt\n"
        "@rt.function\ndef p(s):\n    s += 'x' + rt.gen('a')\n"
        "if __name__ == '__main__':\n    print(p.run()['a'], sys.argv[1:])\n"
    )
    assert main(["run", str(file), *MODEL, "--", "1", "2"]) == 0
    assert capsys.readouterr().out == "fine ['1', '2']\n"


def test_bench_reports_every_figure(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    work = tmp_path / "work.jsonl"
    rows = [
        {"prompt": "same" * 50, "max_new_tokens": 4},
        {"input_ids": [1, 2], "max_new_tokens": 3},
    ]
    work.write_text("\n".join(json.dumps(r) for r in [*rows, rows[0]]))
    saved = tmp_path / "out.json"
    args = ["bench", "offline", "--workload", str(work), "--json", str(saved), *MODEL]
    trace = tmp_path / "trace.json"
    assert main([*args, "--profile", str(trace), "--profile-steps", "2"]) == 0
    assert json.loads(trace.read_text())["traceEvents"]
    figures = json.loads(saved.read_text())
    assert figures["output_tokens"] == 11
    assert figures["prompt_tokens"] == 402
    assert figures["hit_rate"] == pytest.approx(199 / 402)
    assert {"ttft_s_p50", "tpot_s_p99", "output_tokens_per_s", "workload_hash"} <= set(figures)
    assert "hit_rate" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["run", "no_such.py"], "no_such.py"),
        (["generate", "x", "--model", "no-such-model"], "no-such-model"),
        (["generate", "x", *MODEL, "--temperature", "-1"], "temperature"),
        (["generate", "", *MODEL], "empty"),
        (["bench", "offline", "--workload", "none", *MODEL], "none"),
    ],
)
def test_errors_are_one_line_and_exit_1(
    argv: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == 1
    error = capsys.readouterr().err
    assert error.startswith("rtlang: ") and says in error


def test_every_engine_option_is_an_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["generate", "--help"])
    text = capsys.readouterr().out
    for option in ("--max-total-tokens", "--schedule-policy", "--no-enable-mixed-chunk"):
        assert option in text
