"""Reading weights: one file or shards; what is missing or broken is named."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from rtlang.errors import ModelLoadError
from rtlang.runtime.models.weights import INDEX, iterate_weights, weight_files

_A, _B = torch.arange(6.0).reshape(2, 3), torch.ones(4, dtype=torch.bfloat16)


def _sharded(folder: Path) -> None:
    save_file({"a": _A}, folder / "model-00001-of-00002.safetensors")
    save_file({"b": _B}, folder / "model-00002-of-00002.safetensors")
    _index(folder, a="model-00001-of-00002.safetensors", b="model-00002-of-00002.safetensors")


def _index(folder: Path, **weight_map: str) -> None:
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def _assert_a_and_b(folder: Path) -> None:
    found = dict(iterate_weights(folder))
    assert sorted(found) == ["a", "b"]
    assert torch.equal(found["a"], _A) and torch.equal(found["b"], _B)
    assert found["b"].dtype == torch.bfloat16


def test_one_file(tmp_path: Path) -> None:
    save_file({"a": _A, "b": _B}, tmp_path / "model.safetensors")
    _assert_a_and_b(tmp_path)


def test_one_file_of_any_name(tmp_path: Path) -> None:
    save_file({"a": _A, "b": _B}, tmp_path / "mine.safetensors")
    _assert_a_and_b(tmp_path)


def test_shards_of_an_index(tmp_path: Path) -> None:
    _sharded(tmp_path)
    save_file({"c": _A}, tmp_path / "not-in-the-index.safetensors")
    _assert_a_and_b(tmp_path)


def test_shards_without_an_index(tmp_path: Path) -> None:
    _sharded(tmp_path)
    (tmp_path / INDEX).unlink()
    _assert_a_and_b(tmp_path)


@pytest.mark.parametrize("indexed", [True, False])
def test_mistrals_second_copy_is_left_out(tmp_path: Path, indexed: bool) -> None:
    _sharded(tmp_path)
    if not indexed:
        (tmp_path / INDEX).unlink()
    save_file({"layers.0.wq": _A}, tmp_path / "consolidated.safetensors")
    _assert_a_and_b(tmp_path)


def test_tensors_outlive_the_iteration(tmp_path: Path) -> None:
    save_file({"a": _A}, tmp_path / "model.safetensors")
    tensors = [tensor for _, tensor in iterate_weights(tmp_path)]
    (tmp_path / "model.safetensors").unlink()
    assert torch.equal(tensors[0], _A)


def test_a_missing_shard_is_named_before_anything_is_read(tmp_path: Path) -> None:
    _sharded(tmp_path)
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ModelLoadError, match=r"missing: \['model-00002-of-00002.safetensors'\]"):
        weight_files(tmp_path)
    with pytest.raises(ModelLoadError, match="model-00002-of-00002"):
        next(iterate_weights(tmp_path))


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", "{}", '{"weight_map": []}', '{"weight_map": {"a": 1}}',
     '{"weight_map": {"a": "x", "b": 1}}', '{"weight_map": {}}', '{"weight_map": {"a": [1]}}'],
)  # fmt: skip
def test_a_broken_index_is_named(tmp_path: Path, text: str) -> None:
    _sharded(tmp_path)
    (tmp_path / INDEX).write_text(text)
    with pytest.raises(ModelLoadError, match=r"model\.safetensors\.index\.json"):
        list(iterate_weights(tmp_path))


@pytest.mark.parametrize("size", [0, 4, 8, 20, -1])
def test_a_truncated_file_is_named(tmp_path: Path, size: int) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"a": _A, "b": _B}, path)
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(ModelLoadError, match=r"model\.safetensors is broken or cut off"):
        list(iterate_weights(tmp_path))


@pytest.mark.parametrize(
    "data",
    [
        b"<html>404</html>" * 10,
        b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n",
        struct.pack("<Q", 1 << 60) + b"{}",
        struct.pack("<Q", 2) + b"{]",
        struct.pack("<Q", 56) + b'{"a":{"dtype":"F32","shape":[9],"data_offsets":[0,99]}}  ',
    ],
)
def test_a_corrupt_header_is_named(tmp_path: Path, data: bytes) -> None:
    _sharded(tmp_path)
    (tmp_path / "model-00002-of-00002.safetensors").write_bytes(data)
    with pytest.raises(ModelLoadError, match=r"model-00002-of-00002\.safetensors is broken"):
        list(iterate_weights(tmp_path))


def test_a_tensor_in_two_files_is_refused(tmp_path: Path) -> None:
    save_file({"a": _A}, tmp_path / "one.safetensors")
    save_file({"a": _A}, tmp_path / "two.safetensors")
    with pytest.raises(ModelLoadError, match=r"two\.safetensors and one\.safetensors both have a"):
        list(iterate_weights(tmp_path))


def test_pickles_are_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"pickle")
    with pytest.raises(ModelLoadError, match=r"pytorch_model\.bin is not read"):
        weight_files(tmp_path)


def test_a_folder_without_weights_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=f"{tmp_path} has no"):
        weight_files(tmp_path)
