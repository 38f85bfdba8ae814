"""Tensors of a folder of safetensors, mapped into memory, not read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from rtlang.errors import ModelLoadError

INDEX = "model.safetensors.index.json"


def iterate_weights(folder: Path) -> Iterator[tuple[str, torch.Tensor]]:
    """(Hugging Face name, tensor) of one file, or of all shards that the index names.

    Raises ``ModelLoadError`` that names the file for one that is missing or broken.
    """
    for path in weight_files(folder):
        try:
            with safe_open(path, framework="pt", device="cpu") as file:
                for name in file.keys():  # noqa: SIM118  (not a dict)
                    yield name, file.get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise ModelLoadError(f"{path} is broken or cut off: {error}") from error


def weight_files(folder: Path) -> list[Path]:
    index = folder / INDEX
    if index.exists():
        try:
            names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        except (ValueError, KeyError, AttributeError) as error:
            raise ModelLoadError(f"{index} is broken: {error}") from error
        for name in names:
            if not (folder / name).exists():
                raise ModelLoadError(f"{folder}: the shard {name} is missing")
        return [folder / name for name in names]
    found = sorted(folder.glob("*.safetensors"))
    if not found:
        old = " (pytorch_model.bin is not read: convert it to safetensors)"
        hint = old if list(folder.glob("*.bin")) else ""
        raise ModelLoadError(f"{folder} has no safetensors{hint}")
    return found
