"""GGUF files, converted once into a local cache of safetensors and tokenizer files.

Reading a GGUF takes tens of seconds; the converted folder is mapped in milliseconds.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from rtlang.errors import ModelLoadError

#: Changes when the converted files would: old entries are then left alone.
CONVERTER_VERSION = 2
#: Longest wait for another process that makes the same entry. A conversion takes a minute.
LOCK_TIMEOUT_S = 1800.0
_EDGE = 1 << 20
Converter = Callable[[Path, Path], None]


def cache_root() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "rtlang" / "models"


def converted(gguf: Path, converter: Converter | None = None) -> Path:
    """The converted folder of a GGUF file; makes it if it is not there.

    Safe with several threads and processes at once: one converts, the others wait. A folder
    appears whole or not at all. ``converter(gguf, folder)`` fills an empty folder. Raises
    ``ModelLoadError``.
    """
    entry = cache_root() / f"{gguf.stem[:60]}-{_fingerprint(gguf)}-v{CONVERTER_VERSION}"
    if entry.is_dir():
        return entry
    with locked(entry) as scratch:
        if not entry.is_dir():
            say(f"converting {gguf.name} (once, less than a minute)")
            _convert(gguf, entry, scratch, converter or _default_converter())
    return entry


def say(line: str) -> None:
    print(f"rtlang: {line}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def locked(entry: Path) -> Iterator[Path]:
    """Hold the lock of a cache entry; yields a new, empty folder beside it to prepare it in.

    The lock ends with its process, however that ends; what a dead holder left in the folder is
    removed. So is, at the end, what this one leaves in it.
    """
    scratch = entry.parent / f".{entry.name}.tmp"
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        file = (entry.parent / f".{entry.name}.lock").open("w")
    except OSError as error:
        raise _unwritable(entry.parent, error) from error
    with file:
        _lock(file.fileno(), entry)
        shutil.rmtree(scratch, ignore_errors=True)
        try:
            scratch.mkdir()
        except OSError as error:
            raise _unwritable(entry.parent, error) from error
        try:
            yield scratch
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


def no_space(what: str, need: int, where: Path) -> ModelLoadError:
    """``need`` in bytes."""
    return ModelLoadError(
        f"no space left for {what}: it needs about {-(-need // 10**6)} MB in {where}; free some, "
        f"or move the cache with XDG_CACHE_HOME"
    )


def is_full(error: Exception) -> bool:
    """Whether a disk or a quota is full; safetensors says so in words only."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return True
    return "No space left" in str(error) or "os error 28" in str(error)


def _lock(fd: int, entry: Path) -> None:
    deadline = time.monotonic() + LOCK_TIMEOUT_S
    waiting = False
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if not waiting:
                say(f"waiting for another process that prepares {entry.name}")
            waiting = True
        except OSError as error:
            raise _unwritable(entry.parent, error) from error
        if time.monotonic() > deadline:
            raise ModelLoadError(
                f"another process has been preparing {entry} for {LOCK_TIMEOUT_S:.0f} s; end it"
            )
        time.sleep(0.1)


def _convert(gguf: Path, entry: Path, scratch: Path, converter: Converter) -> None:
    try:
        converter(gguf, scratch)
        for file in scratch.iterdir():
            file.chmod(0o644)  # whoever may read the cache
        scratch.rename(entry)
    except ModelLoadError:
        raise
    except Exception as error:
        if is_full(error):
            # 4-bit weights, the usual ones, become seven times as large in fp32.
            raise no_space(gguf.name, gguf.stat().st_size * 7, entry.parent) from error
        raise ModelLoadError(
            f"{gguf} cannot be converted: {type(error).__name__}: {error}"
        ) from error


def _fingerprint(gguf: Path) -> str:
    """Size and both ends of the file: enough to tell one GGUF from another."""
    try:
        with gguf.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            head = file.read(_EDGE)
            file.seek(max(0, size - _EDGE))
            tail = file.read(_EDGE)
    except OSError as error:
        raise ModelLoadError(f"cannot read {gguf}: {error}") from error
    if head[:4] != b"GGUF":
        raise ModelLoadError(f"{gguf} is no GGUF file: it starts with {head[:4]!r}")
    return hashlib.sha256(b"%d:" % size + head + tail).hexdigest()[:12]


def _unwritable(folder: Path, error: OSError) -> ModelLoadError:
    if is_full(error):
        return ModelLoadError(f"no space left in the model cache {folder}: {error}")
    return ModelLoadError(
        f"cannot write to the model cache {folder}: {error}; move it with XDG_CACHE_HOME"
    )


def _default_converter() -> Converter:
    # transformers' GGUF reader takes seconds to import, and is needed once per model.
    from rtlang.runtime.models.gguf import convert_gguf  # noqa: PLC0415

    return convert_gguf
