"""What a model's name may be, and what is said to one that is nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from rtlang.errors import ConfigError, ModelLoadError
from rtlang.runtime.config import EngineConfig
from rtlang.runtime.models import source
from rtlang.runtime.models.source import ModelFiles, resolve_model

_HF_CONFIG = {"architectures": ["LlamaForCausalLM"], "hidden_size": 8}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model folder: config and weights, no tokenizer."""
    path = tmp_path / "model"
    path.mkdir()
    (path / "config.json").write_text(json.dumps(_HF_CONFIG))
    save_file({"a": torch.ones(2)}, path / "model.safetensors")
    return path


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, folder: Path) -> list[tuple[str, Any, Any]]:
    """What the hub was asked for: (name, revision, token). It always gives ``folder``."""
    calls: list[tuple[str, Any, Any]] = []

    def fetch(name: str, *, revision: str | None, token: str | None) -> Path:
        calls.append((name, revision, token))
        return folder

    monkeypatch.setattr(source, "fetch", fetch)
    return calls


def _resolve(model: Path | str, **options: Any) -> ModelFiles:
    return resolve_model(EngineConfig(model=str(model), **options))


def test_a_folder(folder: Path) -> None:
    files = _resolve(folder)
    assert files == ModelFiles(folder, "safetensors", _HF_CONFIG, {}, has_tokenizer=False)


def test_a_folder_with_everything(folder: Path) -> None:
    (folder / "generation_config.json").write_text('{"temperature": 0.6}')
    (folder / "tokenizer.json").write_text("{}")
    files = _resolve(folder, load_format="safetensors")
    assert files.generation_config == {"temperature": 0.6}
    assert files.has_tokenizer


def test_a_folder_below_home(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(folder.parent))
    assert _resolve("~/model").path == folder


def test_dummy_needs_only_the_config(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    assert _resolve(folder, load_format="dummy").load_format == "dummy"
    with pytest.raises(ModelLoadError, match=r"has no \*\.safetensors"):
        _resolve(folder)


def test_a_gguf_file_is_converted(
    write_gguf: Callable[..., Any], cache: Path, folder: Path
) -> None:
    files = _resolve(write_gguf().path)
    assert files.path.parent == cache
    assert files.load_format == "safetensors" and files.has_tokenizer
    assert files.hf_config["architectures"] == ["LlamaForCausalLM"]
    assert files.generation_config["eos_token_id"] == [2]
    assert _resolve(write_gguf().path, load_format="gguf") == files


def test_a_hub_id_with_revision_and_token(folder: Path, asked: list[Any]) -> None:
    assert _resolve("Qwen/Qwen3-0.6B").path == folder
    _resolve("owner/name.v1_x", revision="main", hub_token="secret")
    assert asked == [("Qwen/Qwen3-0.6B", None, None), ("owner/name.v1_x", "main", "secret")]


def test_a_folder_that_looks_like_a_hub_id_wins(
    folder: Path, asked: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.parent.parent)
    assert _resolve(f"{folder.parent.name}/model").path.samefile(folder)
    assert asked == []


@pytest.mark.parametrize(
    "name",
    ["", "smollm", "gpt2", "./missing", "../missing", "/missing/model", "a/b/c", "a b/c", "owner/",
     "~/missing", "https://huggingface.co/a/b", "\0", "-x/y", "owner/na\nme"],
)  # fmt: skip
def test_a_name_that_is_nothing_says_what_was_tried(name: str, asked: list[Any]) -> None:
    with pytest.raises(ModelLoadError) as raised:
        _resolve(name)
    message = str(raised.value)
    assert repr(name) in message
    assert all(kind in message for kind in ("'smollm2'", "folder", ".gguf", "hub id"))
    assert asked == []


def test_a_name_longer_than_names_can_be(asked: list[Any]) -> None:
    with pytest.raises(ModelLoadError, match="File name too long"):
        _resolve("x" * 5000)


def test_load_errors_are_config_errors() -> None:
    with pytest.raises(ConfigError):
        _resolve("nothing")


def test_missing_and_wrong_files_are_named(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"there is no file .*none\.gguf"):
        _resolve(tmp_path / "none.gguf")
    with pytest.raises(ModelLoadError, match=r"is a file, but no \.gguf"):
        _resolve(folder / "model.safetensors")
    (folder / "config.json").unlink()
    with pytest.raises(ModelLoadError, match=r"no model folder: it has no config\.json"):
        _resolve(folder)


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "\xff", "[" * 100_000])
@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
def test_a_broken_json_is_named(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(text, encoding="latin-1")
    with pytest.raises(ModelLoadError, match=f"{name} is broken"):
        _resolve(folder)


@pytest.mark.parametrize("load_format", ["auto", "dummy"])
@pytest.mark.parametrize(
    ("entry", "method"),
    [
        ({"quantization_config": {"quant_method": "fp8"}}, "'fp8'"),
        ({"quantization_config": {"bits": 4}}, "None"),
        ({"compression_config": {"quant_method": "compressed-tensors"}}, "'compressed-tensors'"),
    ],
)
def test_quantized_weights_are_refused_by_method(
    folder: Path, load_format: str, entry: dict[str, Any], method: str
) -> None:
    (folder / "config.json").write_text(json.dumps(_HF_CONFIG | entry))
    with pytest.raises(ModelLoadError, match=f"quant_method {method}"):
        _resolve(folder, load_format=load_format)


def test_an_empty_quantization_config_is_none(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps(_HF_CONFIG | {"quantization_config": None}))
    assert _resolve(folder).path == folder


def test_a_missing_shard_is_found_with_the_folder(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    index = {"weight_map": {"a": "model-00001-of-00001.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelLoadError, match="model-00001-of-00001"):
        _resolve(folder)


def test_pickles_are_refused_with_the_folder(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ModelLoadError, match=r"pytorch_model\.bin is not read"):
        _resolve(folder)


def test_options_that_do_not_fit_the_name_are_refused(
    folder: Path, tmp_path: Path, asked: list[Any]
) -> None:
    gguf = tmp_path / "some.gguf"
    gguf.write_bytes(b"GGUF")
    with pytest.raises(ModelLoadError, match="load_format='safetensors' does not fit"):
        _resolve(gguf, load_format="safetensors")
    for model in (folder, "owner/name"):
        with pytest.raises(ModelLoadError, match=r"load_format='gguf' needs a \.gguf file"):
            _resolve(model, load_format="gguf")
    for model in (folder, gguf, "smollm2"):
        with pytest.raises(ModelLoadError, match="revision='v2' is for hub models"):
            _resolve(model, revision="v2")
    assert asked == []


def test_finding_a_model_imports_no_transformers(folder: Path) -> None:
    code = (
        "import sys; from rtlang.runtime.config import EngineConfig;"
        "from rtlang.runtime.models.source import resolve_model;"
        f"resolve_model(EngineConfig(model={str(folder)!r}));"
        "assert not {'transformers', 'gguf'} & set(sys.modules)"
    )
    environment = {"PYTHONPATH": ":".join(p for p in sys.path if p)}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment, timeout=100)
