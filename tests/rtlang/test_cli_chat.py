"""``rtlang chat --url``: the terminal's conversation, with a server."""

from __future__ import annotations

import pytest
from fake_server import event, fake_server, head
from server_harness import serving

from rtlang.cli.main import main
from rtlang.testing import ScriptedModel


def test_each_turn_says_what_the_servers_cache_saved(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = iter(["hi", "", "more", "/quit"])
    monkeypatch.setattr("builtins.input", lambda _: next(lines))
    with serving(ScriptedModel(["héllo", "twice"])) as server:
        argv = ["chat", "--url", server.url + "/v1/", "--system", "Be brief.", "--top-k", "3"]
        assert main(argv) == 0
        stats = server.engine.stats()
    out, err = capsys.readouterr()
    answers = out.splitlines()
    assert answers[0] == "héllo" and answers[2] == "twice"
    assert answers[1].startswith("(0 of ")
    assert answers[3].startswith(f"({stats['cached_tokens']} of ") and stats["cached_tokens"] > 30
    assert "ScriptedModel at http://" in err


def test_a_server_that_counts_nothing_is_said_to_count_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = iter(["hi", "/quit"])
    monkeypatch.setattr("builtins.input", lambda _: next(lines))
    answer = event({"choices": [{"delta": {"content": "hello"}, "finish_reason": "stop"}]})
    with fake_server(lambda path, body: [head(), answer]) as server:
        assert main(["chat", "--url", server.url, "--model", "m"]) == 0
    assert capsys.readouterr().out.splitlines() == ["hello", "(the server counts no tokens)"]


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--url", "nowhere"], "no address"),
        (["--url", "http://127.0.0.1:9", "--dtype", "float32"], "--dtype"),
        (["--api-key", "secret", "--model", "process_models:fast"], "--url"),
    ],
)
def test_options_that_do_not_belong_together(
    argv: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["chat", *argv]) == 1
    assert says in capsys.readouterr().err
