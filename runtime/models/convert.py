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
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from rtlang.errors import ModelLoadError

#: Changes when the converted files would: old entries are then left alone.
CONVERTER_VERSION = 1
_EDGE = 1 << 20
Converter = Callable[[Path, Path], None]


def cache_root() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "rtlang" / "models"


def converted(gguf: Path, converter: Converter | None = None) -> Path:
    """The converted folder of a GGUF file; makes it if it is not there.

    Safe with several threads and processes at once: one converts, the others wait. A folder
    appears whole or not at all. Raises ``ModelLoadError``.
    """
    check_magic(gguf)
    entry = cache_root() / f"{gguf.stem}-{_fingerprint(gguf)}-v{CONVERTER_VERSION}"
    if entry.is_dir():
        return entry
    with locked(entry):
        if not entry.is_dir():
            _convert(gguf, entry, converter or _default_converter())
    return entry


def check_magic(gguf: Path) -> None:
    with gguf.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise ModelLoadError(f"{gguf} is no GGUF file (its first bytes are wrong)")


@contextlib.contextmanager
def locked(entry: Path) -> Iterator[None]:
    """Hold the lock file beside ``entry``; it ends with its process, however that ends."""
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        file = (entry.parent / f".{entry.name}.lock").open("w")
    except OSError as error:
        raise ModelLoadError(f"cannot write to the model cache {entry.parent}: {error}") from error
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _convert(gguf: Path, entry: Path, converter: Converter) -> None:
    for stale in entry.parent.glob(f".{entry.name}.tmp-*"):  # of a process that died
        shutil.rmtree(stale, ignore_errors=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{entry.name}.tmp-", dir=entry.parent))
    try:
        converter(gguf, scratch)
        scratch.chmod(0o755)
        scratch.rename(entry)
    except Exception as error:
        raise _conversion_error(gguf, entry, error) from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _conversion_error(gguf: Path, entry: Path, error: Exception) -> ModelLoadError:
    full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    if full or "No space left" in str(error):
        need = gguf.stat().st_size * 6 >> 20
        return ModelLoadError(
            f"no space left to convert {gguf.name}: about {need} MB are needed in {entry.parent}"
        )
    if isinstance(error, ModelLoadError):
        return error
    return ModelLoadError(f"{gguf} cannot be converted: {type(error).__name__}: {error}")


def _fingerprint(gguf: Path) -> str:
    """Size and both ends of the file: enough to tell one GGUF from another."""
    digest = hashlib.sha256(str(gguf.stat().st_size).encode())
    with gguf.open("rb") as file:
        digest.update(file.read(_EDGE))
        file.seek(max(0, gguf.stat().st_size - _EDGE))
        digest.update(file.read(_EDGE))
    return digest.hexdigest()[:12]


def _default_converter() -> Converter:
    # transformers' GGUF reader takes seconds to import, and is needed once per model.
    from rtlang.runtime.models.gguf import convert_gguf  # noqa: PLC0415

    return convert_gguf
