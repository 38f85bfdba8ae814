"""Tensors of a folder of safetensors, mapped into memory, not read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from rtlang.errors import ModelLoadError

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"


def iterate_weights(folder: Path) -> Iterator[tuple[str, torch.Tensor]]:
    """(Hugging Face name, tensor) of one file, or of all shards that the index names.

    The tensors are private maps of the files: pages are read when touched. Raises
    ``ModelLoadError`` that names the file for one that is missing or broken.
    """
    seen: dict[str, Path] = {}
    for path in weight_files(folder):
        try:
            with safe_open(path, framework="pt", device="cpu") as file:
                for name in file.keys():  # noqa: SIM118  (not a dict)
                    if name in seen:
                        raise ModelLoadError(f"{path} and {seen[name].name} both have {name}")
                    seen[name] = path
                    yield name, file.get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise ModelLoadError(f"{path} is broken or cut off: {error}") from error


def weight_files(folder: Path) -> list[Path]:
    """The files that ``iterate_weights`` reads: model.safetensors, or else the index's shards,
    or else every ``*.safetensors``. All exist; raises ``ModelLoadError`` otherwise."""
    if (folder / SINGLE).is_file():
        return [folder / SINGLE]
    if (folder / INDEX).exists():
        return _shards(folder / INDEX)
    # "consolidated" is the same weights once more, in Mistral's own names.
    found = [p for p in sorted(folder.glob("*.safetensors")) if p.stem != "consolidated"]
    if not found:
        old = next((p.name for p in sorted(folder.glob("*.bin"))), None)
        hint = f" ({old} is not read: pickles run code; convert it to safetensors)" if old else ""
        raise ModelLoadError(f"{folder} has no *.safetensors{hint}")
    return found


def _shards(index: Path) -> list[Path]:
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        paths = [index.parent / name for name in names]
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        raise ModelLoadError(f"{index} is broken: {type(error).__name__}: {error}") from error
    missing = [path.name for path in paths if not path.is_file()]
    if missing or not paths:
        raise ModelLoadError(f"{index} names shards that are missing: {missing or 'none at all'}")
    return paths
