"""The cache of converted models: an entry is whole or not there, whoever else is at work."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rtlang.errors import ModelLoadError
from rtlang.runtime.models import convert
from rtlang.runtime.models.convert import cache_root, converted

#: Another process that converts its first argument; ``{body}`` is its converter.
_PROCESS = """
import os, sys, time
from pathlib import Path
from rtlang.runtime.models.convert import converted

def converter(gguf, folder):
    (folder / "part").write_text("half of it")
{body}

print(converted(Path(sys.argv[1]), converter))
"""


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    path = tmp_path / "some.gguf"
    path.write_bytes(b"GGUF" + bytes(100))
    return path


def test_the_cache_is_where_xdg_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_root() == tmp_path / "xdg" / "rtlang" / "models"
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_root() == tmp_path / "home" / ".cache" / "rtlang" / "models"


def test_a_file_is_converted_once(gguf: Path, cache: Path) -> None:
    calls: list[Path] = []

    def converter(source: Path, folder: Path) -> None:
        calls.append(source)
        (folder / "config.json").write_text("{}")

    first, second = converted(gguf, converter), converted(gguf, converter)
    assert first == second and first.parent == cache
    assert calls == [gguf]
    assert [p.name for p in first.iterdir()] == ["config.json"]


@pytest.mark.parametrize("at", [4, 60, 103])
def test_another_content_under_the_same_name_is_converted_anew(
    gguf: Path, cache: Path, at: int
) -> None:
    first = converted(gguf, _write_one)
    data = bytearray(gguf.read_bytes())
    data[at] ^= 1
    gguf.write_bytes(data)
    assert converted(gguf, _write_one) != first


def test_a_file_may_have_the_longest_name(gguf: Path, cache: Path) -> None:
    long = gguf.rename(gguf.with_name("ö" * 120 + ".gguf"))
    assert converted(long, _write_one).is_dir()


def test_a_new_converter_leaves_old_entries_alone(
    gguf: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = converted(gguf, _write_one)
    monkeypatch.setattr(convert, "CONVERTER_VERSION", convert.CONVERTER_VERSION + 1)
    new = converted(gguf, _write_one)
    assert new != old and old.is_dir() and new.is_dir()


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        OSError(errno.EDQUOT, "Disk quota exceeded"),
        RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)"),
    ],
)
def test_a_full_disk_leaves_nothing_and_says_how_much_is_needed_where(
    gguf: Path, cache: Path, error: Exception
) -> None:
    def converter(source: Path, folder: Path) -> None:
        (folder / "model.safetensors").write_bytes(bytes(1000))
        raise error

    with pytest.raises(ModelLoadError, match=r"no space left .*it needs about 1 MB in") as raised:
        converted(gguf, converter)
    assert str(cache) in str(raised.value)
    assert raised.value.__cause__ is error
    assert _entries(cache) == []


def test_a_conversion_that_fails_leaves_nothing_and_can_be_tried_again(
    gguf: Path, cache: Path
) -> None:
    def broken(source: Path, folder: Path) -> None:
        (folder / "config.json").write_text("{")
        raise KeyError("blk.0")

    with pytest.raises(ModelLoadError, match=r"some\.gguf cannot be converted: KeyError: 'blk.0'"):
        converted(gguf, broken)
    assert _entries(cache) == []
    assert converted(gguf, _write_one).is_dir()


def test_an_interrupt_leaves_nothing(gguf: Path, cache: Path) -> None:
    def interrupted(source: Path, folder: Path) -> None:
        (folder / "config.json").write_text("{")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        converted(gguf, interrupted)
    assert _entries(cache) == []


def test_a_cache_that_cannot_be_written_is_a_load_error(gguf: Path, cache: Path) -> None:
    cache.parent.mkdir(parents=True)
    cache.write_text("a file is in the way")
    with pytest.raises(ModelLoadError, match=f"cannot write to the model cache {cache}"):
        converted(gguf, _write_one)


def test_a_missing_file_is_a_load_error(tmp_path: Path, cache: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"cannot read .*none\.gguf"):
        converted(tmp_path / "none.gguf", _write_one)


def test_two_threads_convert_once(gguf: Path, cache: Path) -> None:
    calls: list[Path] = []
    found: list[Path] = []

    def converter(source: Path, folder: Path) -> None:
        calls.append(source)
        time.sleep(0.2)
        _write_one(source, folder)

    threads = [
        threading.Thread(target=lambda: found.append(converted(gguf, converter))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(calls) == 1
    assert len(found) == 4 and len(set(found)) == 1


def test_two_processes_convert_once(gguf: Path, cache: Path) -> None:
    log = gguf.with_suffix(".log")
    body = f"time.sleep(0.5)\nwith open({str(log)!r}, 'a') as log: log.write('converted\\n')"
    processes = [_start(gguf, body) for _ in range(2)]
    outputs = [process.communicate(timeout=60)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert log.read_text() == "converted\n"
    assert outputs[0] == outputs[1] != ""
    assert len(_entries(cache)) == 1


def test_the_second_waits_and_takes_what_the_first_made(gguf: Path, cache: Path) -> None:
    go = gguf.with_suffix(".go")
    first = _start(gguf, f"while not os.path.exists({str(go)!r}): time.sleep(0.01)")
    try:
        _wait_for(lambda: any(cache.glob(".*.tmp/part")))
        found: list[Path] = []
        second = threading.Thread(target=lambda: found.append(converted(gguf, _must_not)))
        second.start()
        time.sleep(0.3)
        assert found == []  # a half-made entry is not handed out
        go.touch()
        second.join(30)
        assert first.wait(30) == 0
        assert [(p / "part").read_text() for p in found] == ["half of it"]
    finally:
        first.kill()
        first.communicate()


def test_the_next_one_takes_over_from_a_killed_process(gguf: Path, cache: Path) -> None:
    dead = _start(gguf, "time.sleep(60)")
    _wait_for(lambda: any(cache.glob(".*.tmp/part")))
    dead.send_signal(signal.SIGKILL)
    dead.communicate(timeout=30)
    assert len(_entries(cache)) == 1  # what it left
    entry = converted(gguf, _write_one)
    assert [p.name for p in entry.iterdir()] == ["config.json"]
    assert _entries(cache) == [entry.name]


def test_waiting_for_a_process_that_never_ends_ends(
    gguf: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(convert, "LOCK_TIMEOUT_S", 0.3)
    other = _start(gguf, "time.sleep(60)")
    try:
        _wait_for(lambda: any(cache.glob(".*.tmp/part")))
        with pytest.raises(ModelLoadError, match="another process has been preparing"):
            converted(gguf, _must_not)
    finally:
        other.kill()
        other.communicate()


def _write_one(source: Path, folder: Path) -> None:
    (folder / "config.json").write_text("{}")


def _must_not(source: Path, folder: Path) -> None:
    raise AssertionError("converted twice")


def _start(gguf: Path, body: str) -> subprocess.Popen[str]:
    code = _PROCESS.format(body=textwrap.indent(body, "    "))
    return subprocess.Popen(
        [sys.executable, "-c", code, str(gguf)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
    )


def _wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "nothing happened for 30 s"
        time.sleep(0.01)


def _entries(cache: Path) -> list[str]:
    """What is in the cache, locks aside."""
    return sorted(p.name for p in cache.iterdir() if p.suffix != ".lock")
