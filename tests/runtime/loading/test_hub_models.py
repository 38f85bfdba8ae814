"""Models from the hub, with a stand-in for its client: what is asked for, and what errors say."""

from __future__ import annotations

import errno
import fnmatch
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from huggingface_hub import errors

from rtlang.errors import ModelLoadError
from rtlang.runtime.models import hub
from rtlang.runtime.models.hub import fetch

_RESPONSE: Any = SimpleNamespace(headers={}, request=None, status_code=0)


def _fail_with(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def snapshot_download(*_: Any, **__: Any) -> str:
        raise error

    monkeypatch.setattr(hub, "snapshot_download", snapshot_download)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """The arguments of the last call; the answer is ``tmp_path``."""
    seen: dict[str, Any] = {}

    def snapshot_download(name: str, **options: Any) -> str:
        seen.update(options, name=name)
        return str(tmp_path)

    monkeypatch.setattr(hub, "snapshot_download", snapshot_download)
    return seen


def test_name_revision_and_token_go_to_the_hub(asked: dict[str, Any], tmp_path: Path) -> None:
    assert fetch("owner/name", revision="v2", token="secret") == tmp_path
    assert (asked["name"], asked["revision"], asked["token"]) == ("owner/name", "v2", "secret")


def test_only_what_a_load_needs_is_fetched(asked: dict[str, Any]) -> None:
    fetch("owner/name", revision=None, token=None)

    def wanted(file: str) -> bool:
        def match(patterns: list[str]) -> bool:
            return any(fnmatch.fnmatch(file, pattern) for pattern in patterns)

        return match(asked["allow_patterns"]) and not match(asked["ignore_patterns"])

    files = ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json",
             "model-00001-of-00002.safetensors", "model.safetensors.index.json", "merges.txt",
             "tokenizer.model", "tokenizer_config.json", "chat_template.jinja"]  # fmt: skip
    assert [file for file in files if not wanted(file)] == []
    files = ["pytorch_model.bin", "modeling_x.py", "model.gguf", "consolidated.safetensors",
             "original/params.json", "onnx/model.onnx", "README.md"]  # fmt: skip
    assert [file for file in files if wanted(file)] == []


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (errors.GatedRepoError("403", response=_RESPONSE), "gated: accept its licence .*hub_token"),
        (errors.RepositoryNotFoundError("404", response=_RESPONSE),
         "no model 'owner/name'.*private.*hub_token"),
        (errors.RevisionNotFoundError("404", response=_RESPONSE), "has no revision 'v9'"),
        (errors.LocalEntryNotFoundError("offline"), "cannot be reached.*pass a folder"),
        (errors.HfHubHTTPError("500 Server Error", response=_RESPONSE), "refused .*500 Server"),
        (OSError(errno.ENOSPC, "No space left on device"), "no space left .*HF_HOME"),
        (ConnectionError("reset by peer"), "ConnectionError: reset by peer"),
        (errors.HFValidationError("too many dots"), "HFValidationError: too many dots"),
        (RuntimeError("client has been closed"), "RuntimeError: client has been closed"),
    ],
)  # fmt: skip
def test_an_error_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, error: Exception, said: str
) -> None:
    _fail_with(monkeypatch, error)
    with pytest.raises(ModelLoadError, match=said) as raised:
        fetch("owner/name", revision="v9", token=None)
    assert "owner/name" in str(raised.value)
    assert raised.value.__cause__ is error


def test_an_interrupt_is_no_load_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def snapshot_download(*_: Any, **__: Any) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(hub, "snapshot_download", snapshot_download)
    with pytest.raises(KeyboardInterrupt):
        fetch("owner/name", revision=None, token=None)
