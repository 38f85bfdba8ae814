"""A tokenizer that a server describes, and a client makes again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rtlang.errors import ModelLoadError, NotFound, Unsupported
from rtlang.runtime.byte_tokenizer import ByteTokenizer
from rtlang.runtime.hf_tokenizer import HFTokenizer
from rtlang.runtime.tokenizer_files import described, fetched, path_of


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "rtlang" / "tokenizers"


def nothing(name: str) -> bytes:
    raise AssertionError(f"{name} was fetched")


@pytest.mark.parametrize("options", [{}, {"vocab_size": 300, "chat": False, "bos": True}])
def test_a_byte_tokenizer_is_made_without_files(options: dict[str, Any]) -> None:
    made = fetched(described(ByteTokenizer(**options)), nothing)
    assert isinstance(made, ByteTokenizer)
    assert made.options == ByteTokenizer(**options).options


def test_files_are_fetched_once(folder: Callable[[str], Path], cache: Path) -> None:
    template = "{% for m in messages %}<{{ m.content }}>{% endfor %}"
    own = HFTokenizer(folder("byte-level"), chat_template=template)
    fetches: list[str] = []

    def fetch(name: str) -> bytes:
        fetches.append(name)
        return path_of(own, name).read_bytes()

    description = described(own)
    twin = fetched(description, fetch)
    assert sorted(fetches) == sorted(description["files"]) and "tokenizer.json" in fetches
    assert twin.encode("grüße 🙂") == own.encode("grüße 🙂")
    chat = [{"role": "user", "content": "hi"}]
    assert twin.render_chat(chat) == own.render_chat(chat) == "<hi>"
    again = fetched(description, nothing)
    assert again.token_bytes == own.token_bytes
    assert len([path for path in cache.iterdir() if path.is_dir()]) == 1


def test_what_arrives_broken_is_not_kept(folder: Callable[[str], Path], cache: Path) -> None:
    description = described(HFTokenizer(folder("byte-level")))
    with pytest.raises(ModelLoadError, match="did not arrive"):
        fetched(description, lambda name: b"other")
    assert [path for path in cache.iterdir() if path.is_dir()] == []


@pytest.mark.parametrize("name", ["../../evil", "/etc/passwd", "model.safetensors", ""])
def test_only_a_tokenizers_files_are_taken_and_given(
    folder: Callable[[str], Path], name: str
) -> None:
    with pytest.raises(ModelLoadError):
        fetched({"kind": "files", "files": {name: "0"}, "chat_template": None}, nothing)
    with pytest.raises(NotFound):
        path_of(HFTokenizer(folder("byte-level")), name)


def test_what_is_made_of_nothing_known_is_refused() -> None:
    class Own(ByteTokenizer):
        pass

    with pytest.raises(Unsupported, match="Own"):
        described(Own())
    with pytest.raises(ModelLoadError, match="kind"):
        fetched({"kind": "new"}, nothing)
