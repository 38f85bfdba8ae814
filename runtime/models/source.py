"""From a model's name to the folder that it is loaded from."""

from __future__ import annotations

import dataclasses
import json
import logging
import re
from pathlib import Path
from typing import Any

from rtlang.errors import ModelLoadError
from rtlang.runtime.config import EngineConfig
from rtlang.runtime.models import smollm2
from rtlang.runtime.models.convert import converted
from rtlang.runtime.models.hub import fetch
from rtlang.runtime.models.quantization import checkpoint_quantization
from rtlang.runtime.models.weights import weight_files

logger = logging.getLogger(__name__)

_HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*")
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")


@dataclasses.dataclass(frozen=True, slots=True)
class ModelFiles:
    """A folder with ``config.json``; with weights unless ``load_format`` is "dummy"."""

    path: Path
    load_format: str  # "safetensors" | "dummy"
    hf_config: dict[str, Any]
    generation_config: dict[str, Any]
    has_tokenizer: bool


def resolve_model(config: EngineConfig) -> ModelFiles:
    """Find, fetch or convert ``config.model``. Raises ``ModelLoadError`` that says what to do.

    The first of these that fits: the alias "smollm2", a folder, a ``.gguf`` file, a hub id. All
    files that the load needs are there afterwards (the weights' contents are not looked at).
    """
    folder = _find(config)
    hf_config = _read_json(folder / "config.json", required=True)
    _check_quantization(folder, hf_config)
    dummy = config.load_format == "dummy"
    if not dummy:
        weight_files(folder)
    return ModelFiles(
        path=folder,
        load_format="dummy" if dummy else "safetensors",
        hf_config=hf_config,
        generation_config=_read_json(folder / "generation_config.json", required=False),
        has_tokenizer=any((folder / name).exists() for name in _TOKENIZER_FILES),
    )


def _find(config: EngineConfig) -> Path:
    name, wanted = config.model, config.load_format
    path = Path(name).expanduser()
    try:
        is_folder, is_file = bool(name) and path.is_dir(), path.is_file()
    except OSError as error:  # a name too long for the file system, a folder without access
        raise ModelLoadError(f"cannot look for the model {name!r}: {error}") from error
    is_gguf = path.suffix.lower() == ".gguf"
    local = name == smollm2.ALIAS or is_folder or is_gguf
    if local and config.revision is not None:
        raise ModelLoadError(f"revision={config.revision!r} is for hub models, not for {name!r}")
    if name == smollm2.ALIAS:
        return smollm2.folder()
    if wanted == "gguf" and (is_folder or not is_gguf):
        raise ModelLoadError(f"load_format='gguf' needs a .gguf file, not {name!r}")
    if is_folder:
        return path
    if is_gguf:
        if not is_file:
            raise ModelLoadError(f"there is no file {path}")
        if wanted == "safetensors":
            raise ModelLoadError(f"load_format='safetensors' does not fit {path}: it is a GGUF")
        return converted(path)
    if is_file:
        raise ModelLoadError(f"{path} is a file, but no .gguf: pass the folder that it is in")
    if _HUB_ID.fullmatch(name):
        return fetch(name, revision=config.revision, token=config.hub_token)
    raise ModelLoadError(
        f"unknown model {name!r}: it is neither the alias {smollm2.ALIAS!r}, nor a folder that "
        f"exists, nor a .gguf file, nor a hub id (owner/name)"
    )


def _check_quantization(folder: Path, hf_config: dict[str, Any]) -> None:
    try:
        quantization = checkpoint_quantization(hf_config)
    except ModelLoadError as error:
        raise ModelLoadError(f"{folder}: {error}") from error
    if quantization is not None and quantization.static_activations:
        logger.warning(
            "%s: its fixed activation scales are not used; each token is scaled by what it holds, "
            "which is at least as precise",
            folder,
        )


def _read_json(path: Path, *, required: bool) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if not required:
            return {}
        raise ModelLoadError(f"{path.parent} is no model folder: it has no {path.name}") from None
    except (ValueError, RecursionError, OSError) as error:
        raise ModelLoadError(f"{path} is broken: {error}") from error
    if not isinstance(value, dict):
        raise ModelLoadError(f"{path} is broken: it holds no object")
    return value
