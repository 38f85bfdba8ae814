"""From a model's name to the folder that it is loaded from."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

from rtlang.errors import ModelLoadError
from rtlang.runtime.config import EngineConfig
from rtlang.runtime.models import smollm2
from rtlang.runtime.models.convert import converted
from rtlang.runtime.models.hub import fetch

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


@dataclasses.dataclass(frozen=True, slots=True)
class ModelFiles:
    """A folder with ``config.json``; with weights unless ``load_format`` is "dummy"."""

    path: Path
    load_format: str  # "safetensors" | "dummy"
    hf_config: dict[str, Any]
    generation_config: dict[str, Any]
    has_tokenizer: bool


def resolve_model(config: EngineConfig) -> ModelFiles:
    """Find, fetch or convert ``config.model``. Raises ``ModelLoadError`` that says what to do."""
    folder = _find(config)
    hf_config = _read_json(folder / "config.json", required=True)
    dummy = config.load_format == "dummy"
    return ModelFiles(
        path=folder,
        load_format="dummy" if dummy else "safetensors",
        hf_config=hf_config,
        generation_config=_read_json(folder / "generation_config.json", required=False),
        has_tokenizer=any(
            (folder / name).exists()
            for name in ("tokenizer.json", "tokenizer_config.json", "tokenizer.model")
        ),
    )


def _find(config: EngineConfig) -> Path:
    name = config.model
    if name == smollm2.ALIAS:
        return smollm2.folder()
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    if path.suffix == ".gguf":
        if not path.is_file():
            raise ModelLoadError(f"{path} does not exist")
        return converted(path)
    if config.load_format == "gguf":
        raise ModelLoadError(f"load_format='gguf' needs a .gguf file, not {name!r}")
    if _HUB_ID.fullmatch(name) and not path.exists():
        return fetch(name, revision=config.revision, token=config.hub_token)
    raise ModelLoadError(
        f"unknown model {name!r}: it is neither the alias {smollm2.ALIAS!r}, nor a folder, "
        f"nor a .gguf file, nor a hub id (owner/name)"
    )


def _read_json(path: Path, *, required: bool) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text())
    except FileNotFoundError:
        if not required:
            return {}
        raise ModelLoadError(f"{path.parent} has no {path.name}") from None
    except (ValueError, OSError) as error:
        raise ModelLoadError(f"{path} is broken: {error}") from error
    if not isinstance(value, dict):
        raise ModelLoadError(f"{path} is broken: it holds no object")
    return value
