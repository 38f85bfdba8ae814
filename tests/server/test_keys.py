"""API keys: the file, its rotation, the command, and what a key keeps apart."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

import httpx
import pytest
from server_harness import RunningServer, serving

from rtlang.cli.main import main
from rtlang.errors import ConfigError, NotAuthenticated
from rtlang.runtime.server.config import ServerConfig
from rtlang.runtime.server.keys import KeyStore, read_key_file
from rtlang.testing import ScriptedModel


def add(path: Path, name: str, *options: str, capsys: pytest.CaptureFixture[str]) -> str:
    """The new key."""
    assert main(["keys", "add", str(path), name, *options]) == 0
    return capsys.readouterr().out.strip()


def store(path: Path, environment: str = "", **config: Any) -> KeyStore:
    return KeyStore(ServerConfig(api_key_file=str(path), **config), environment)


def touch(path: Path, text: str) -> None:
    """Write, with another time of modification however fast this is."""
    path.write_text(text)
    stat = path.stat()
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1_000_000_000))


def test_a_key_is_printed_once_and_kept_as_a_hash(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "keys.json"
    key = add(path, "alice", "--operator", "--salt", "s", "--concurrency", "3", capsys=capsys)
    assert len(key) > 40
    assert key not in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600
    entry = json.loads(path.read_text())["keys"][0]
    assert entry == {
        "name": "alice", "hash": read_key_file(str(path)).hashed(key), "operator": True,
        "salt": "s", "requests_per_minute": None, "tokens_per_minute": None, "concurrency": 3,
    }  # fmt: skip
    assert main(["keys", "list", str(path)]) == 0
    assert capsys.readouterr().out == "alice\toperator\tsalt='s'\tconcurrency=3\n"
    found = store(path).find(key)
    assert (found.name, found.operator, found.salt, found.concurrency) == ("alice", True, "s", 3)


def test_the_command_refuses_a_name_that_is_taken_or_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "keys.json"
    add(path, "a", capsys=capsys)
    before = path.read_text()
    for arguments, complaint in (
        (["add", str(path), "a"], "has a key named 'a' already"),
        (["add", str(path), "a b"], "a name has 1 to 64"),
        (["add", str(path), "b", "--concurrency", "0"], "concurrency of 'b' is below 1"),
        (["remove", str(path), "b"], "no key named 'b'"),
        (["list", str(tmp_path / "none")], "No such file"),
    ):
        assert main(["keys", *arguments]) == 1
        assert complaint in capsys.readouterr().err
    assert path.read_text() == before
    assert main(["keys", "remove", str(path), "a"]) == 0
    assert json.loads(path.read_text())["keys"] == []


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "truncated"),
        ("[]", "Expected `object`"),
        ('{"keys": [{"name": "a"}]}', "hash"),
        ('{"keys": [{"name": "a", "hash": "abc"}]}', "no SHA-256"),
        ('{"keys": [], "other": 1}', "other"),
        ('{"keys": [{"name": "a", "hash": "%s", "tokens_per_minute": 0}]}' % ("0" * 64), "below 1"),
        ('{"keys": [{"name": "a", "hash": "%s", "tokens_per_hour": 9}]}' % ("0" * 64), "per_hour"),
        ('{"keys": [{"name": "a\\n", "hash": "%s"}]}' % ("0" * 64), "a name has"),
    ],
)
def test_a_file_that_is_wrong_is_refused_at_the_start(
    tmp_path: Path, text: str, complaint: str
) -> None:
    path = tmp_path / "keys.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=complaint):
        store(path)


def test_the_file_is_read_again_when_it_changes_and_a_broken_one_keeps_the_old_keys(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "keys.json"
    old = add(path, "old", capsys=capsys)
    keys = store(path)
    new = add(path, "new", capsys=capsys)
    assert keys.find(new).name == "new"
    good = path.read_text()
    touch(path, "{")
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            assert keys.find(old).name == "old"
        assert len(caplog.records) == 1
        path.unlink()
        for _ in range(3):
            assert keys.find(new).name == "new"
        assert len(caplog.records) == 2
    touch(path, good)
    assert main(["keys", "remove", str(path), "old"]) == 0
    with pytest.raises(NotAuthenticated):
        keys.find(old)
    assert keys.find(new).name == "new"


def test_a_file_without_keys_lets_nobody_in(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    path.write_text('{"keys": []}')
    for given in (None, "", "x", "\udcff"):
        with pytest.raises(NotAuthenticated):
            store(path).find(given)


def test_the_key_of_the_environment_is_an_operator_s(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    alone = KeyStore(ServerConfig(), "secret")
    assert alone.find("secret").operator
    with pytest.raises(NotAuthenticated):
        alone.find(None)
    path = tmp_path / "keys.json"
    key = add(path, "a", capsys=capsys)
    both = store(path, "secret")
    assert both.find("secret").operator
    assert not both.find(key).operator


def test_limits_of_the_server_are_for_keys_that_have_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "keys.json"
    own = add(path, "own", "--requests-per-minute", "9", capsys=capsys)
    none = add(path, "none", capsys=capsys)
    keys = store(path, requests_per_minute=5, concurrency=2)
    assert (keys.find(own).requests_per_minute, keys.find(own).concurrency) == (9, 2)
    assert (keys.find(none).requests_per_minute, keys.find(none).concurrency) == (5, 2)


def generate(server: RunningServer, key: str, text: str = "the same prompt") -> dict[str, Any]:
    answer = httpx.post(
        f"{server.url}/generate",
        json={"text": text, "sampling_params": {"max_new_tokens": 2}},
        headers={"authorization": f"Bearer {key}"},
    )
    assert answer.status_code == 200, answer.text
    meta: dict[str, Any] = answer.json()["meta_info"]
    return meta


def test_keys_of_different_salts_never_share_a_cached_token(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "keys.json"
    salts = {"a": "1", "b": "2", "b2": "2", "c": "", "d": "salt:1", "e": "key:1:1"}
    keys = {n: add(path, n, "--salt", salt, capsys=capsys) for n, salt in salts.items()}
    with serving(ScriptedModel(lambda _: "fine"), api_key_file=str(path)) as server:
        before = server.engine.stats()
        firsts = {name: generate(server, key)["cached_tokens"] for name, key in keys.items()}
        shared = len("the same prompt") - 1  # the last token is computed again
        assert firsts == {"a": 0, "b": 0, "b2": shared, "c": 0, "d": 0, "e": 0}
        again = {name: generate(server, key)["cached_tokens"] for name, key in keys.items()}
        assert set(again.values()) == {shared}
        spent = server.engine.stats()["cached_tokens"] - before["cached_tokens"]
        assert spent == sum(firsts.values()) + sum(again.values())


def test_a_caller_s_own_salt_does_not_lead_into_another_key_s_cache(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "keys.json"
    salted = add(path, "salted", "--salt", "x", capsys=capsys)
    plain = add(path, "plain", capsys=capsys)
    with serving(ScriptedModel(lambda _: "fine"), api_key_file=str(path)) as server:
        generate(server, salted)
        for guess in ("x", "key:1:x/", "key:1:x", "/"):
            answer = httpx.post(
                f"{server.url}/generate",
                json={"text": "the same prompt", "cache_salt": guess},
                headers={"x-api-key": plain},
            )
            assert answer.json()["meta_info"]["cached_tokens"] == 0


def test_over_http_who_has_no_key_or_is_no_operator_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "keys.json"
    user = add(path, "user", capsys=capsys)
    operator = add(path, "operator", "--operator", capsys=capsys)
    with serving(ScriptedModel(lambda _: "fine"), api_key_file=str(path)) as server:
        assert httpx.get(f"{server.url}/health").status_code == 200
        for headers in ({}, {"authorization": "Bearer no"}, {"authorization": f"Basic {user}"}):
            answer = httpx.get(f"{server.url}/model_info", headers=headers)
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"] == "Bearer"
            assert answer.json()["error"]["code"] == "invalid_api_key"
        for key, status in ((user, 403), (operator, 200)):
            headers = {"x-api-key": key}
            assert httpx.get(f"{server.url}/model_info", headers=headers).status_code == 200
            flushed = httpx.post(f"{server.url}/flush_cache", headers=headers)
            assert flushed.status_code == status
            body = {"text": "a", "priority": 1}
            first = httpx.post(f"{server.url}/generate", json=body, headers=headers)
            assert first.status_code == status
            last = {**body, "priority": -1}
            later = httpx.post(f"{server.url}/generate", json=last, headers=headers)
            assert later.status_code == 200
