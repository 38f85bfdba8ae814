"""A GGUF becomes the model that it was written from, or is refused with its cause."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGUFWriter
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from rtlang.errors import ModelLoadError
from rtlang.runtime.hf_tokenizer import HFTokenizer
from rtlang.runtime.models import gguf as conversion
from rtlang.runtime.models.convert import converted
from rtlang.runtime.models.gguf import convert_gguf
from rtlang.runtime.models.weights import iterate_weights

WriteGGUF = Callable[..., Any]
PRE = "tokenizer.ggml.pre"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    folder = tmp_path / "out"
    folder.mkdir()
    return folder


@pytest.mark.parametrize(
    ("architecture", "vocabulary", "pre"),
    [
        ("llama", "byte_level", "smollm"),
        ("llama", "spm", "default"),
        ("qwen2", "byte_level", "qwen2"),
        ("qwen3", "byte_level", "qwen2"),
        ("gemma3", "gemma", "default"),
    ],
)
def test_the_converted_model_has_the_logits_of_the_original(
    write_gguf: WriteGGUF, out: Path, architecture: str, vocabulary: str, pre: str
) -> None:
    tiny = write_gguf(architecture, vocabulary, fields={PRE: pre})
    convert_gguf(tiny.path, out)
    model = AutoModelForCausalLM.from_pretrained(out).eval()
    ids = torch.arange(3, 60)[None]  # longer than Gemma's window
    with torch.inference_mode():
        expected, got = tiny.model(ids).logits, model(ids).logits
    assert torch.equal(expected, got)
    assert type(model) is type(tiny.model)


def test_a_head_tied_to_the_embeddings_is_stored_once(write_gguf: WriteGGUF, out: Path) -> None:
    convert_gguf(write_gguf().path, out)
    names = {name for name, _ in iterate_weights(out)}
    assert "model.embed_tokens.weight" in names
    assert "lm_head.weight" not in names
    config = json.loads((out / "config.json").read_text())
    assert config["tie_word_embeddings"] is True
    assert config["architectures"] == ["LlamaForCausalLM"]


def test_no_path_of_this_machine_gets_into_the_config(write_gguf: WriteGGUF, out: Path) -> None:
    tiny = write_gguf()
    convert_gguf(tiny.path, out)
    for name in ("config.json", "generation_config.json", "tokenizer_config.json"):
        assert "/" not in (out / name).read_text()


def test_configs_beside_the_file_are_not_taken_for_its_own(
    write_gguf: WriteGGUF, out: Path
) -> None:
    tiny = write_gguf()
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "adapter_config.json"):
        (tiny.path.parent / name).write_text("{this is another model's")
    convert_gguf(tiny.path, out)
    assert HFTokenizer(out).encode("abc") == [261]


def test_both_ends_of_a_turn_are_eos(write_gguf: WriteGGUF, out: Path) -> None:
    convert_gguf(write_gguf(fields={"tokenizer.ggml.eot_token_id": 0}).path, out)
    for name in ("config.json", "generation_config.json"):
        assert json.loads((out / name).read_text())["eos_token_id"] == [0, 2]


@pytest.mark.parametrize(
    ("pre", "split"),
    [("smollm", ["1", "2", "1", "2"]), ("qwen2", ["1", "2", "1", "2"]), ("llama-bpe", ["121", "2"]),
     ("gpt-2", ["1212"])],
)  # fmt: skip
def test_digits_are_cut_as_the_pre_type_says(
    write_gguf: WriteGGUF, out: Path, pre: str, split: list[str]
) -> None:
    convert_gguf(write_gguf(fields={PRE: pre}).path, out)
    fast = HFTokenizer(out).hf.backend_tokenizer
    assert [word for word, _ in fast.pre_tokenizer.pre_tokenize_str("1212")] == split


def test_digits_of_smollm_never_merge(write_gguf: WriteGGUF, out: Path) -> None:
    convert_gguf(write_gguf().path, out)
    tokenizer = HFTokenizer(out)
    one, two = (tokenizer.encode(digit)[0] for digit in "12")
    assert tokenizer.encode("12") == [one, two]


def test_qwen_composes_characters(write_gguf: WriteGGUF, out: Path) -> None:
    convert_gguf(write_gguf("qwen2", fields={PRE: "qwen2"}).path, out)
    # Read without transformers, whose Qwen class would compose by itself.
    fast = Tokenizer.from_file(str(out / "tokenizer.json"))
    assert fast.encode("e\u0301").ids == fast.encode("\u00e9").ids


def test_control_tokens_keep_their_flag(write_gguf: WriteGGUF, out: Path) -> None:
    convert_gguf(write_gguf().path, out)
    tokenizer = HFTokenizer(out)
    assert tokenizer.special_ids == {0, 1, 2}
    assert tokenizer.encode("<|endoftext|>abc") == [0, 261]
    assert tokenizer.eos_ids == {2}


@pytest.mark.parametrize("text", ["hello abc 1212", " é 🙂👩‍👩‍👧 \n\n\t日本", "<|im_end|>", ""])
@pytest.mark.parametrize("vocabulary", ["byte_level", "spm"])
def test_text_comes_back_as_it_was(
    write_gguf: WriteGGUF, out: Path, vocabulary: str, text: str
) -> None:
    convert_gguf(write_gguf(vocabulary=vocabulary).path, out)
    tokenizer = HFTokenizer(out)
    ids = tokenizer.encode(text, add_bos=False)
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


@pytest.mark.parametrize(
    ("vocabulary", "fields", "adds"),
    [
        ("byte_level", {}, False),
        ("byte_level", {"tokenizer.ggml.add_bos_token": True}, True),
        ("byte_level", {"tokenizer.ggml.add_bos_token": None}, False),
        ("byte_level", {"tokenizer.ggml.add_bos_token": None, PRE: "llama-bpe"}, True),
        ("spm", {}, True),
        ("spm", {"tokenizer.ggml.add_bos_token": None}, True),
        ("spm", {"tokenizer.ggml.add_bos_token": False}, False),
    ],
)
def test_i1_a_bos_is_added_where_the_file_says_so(
    write_gguf: WriteGGUF, out: Path, vocabulary: str, fields: dict[str, Any], adds: bool
) -> None:
    convert_gguf(write_gguf(vocabulary=vocabulary, fields=fields).path, out)
    ids = HFTokenizer(out).encode("hello")
    assert (ids[0] == 1, ids.count(1)) == (adds, int(adds))


def test_the_chat_template_is_kept(write_gguf: WriteGGUF, out: Path) -> None:
    convert_gguf(write_gguf().path, out)
    tokenizer = HFTokenizer(out)
    rendered = tokenizer.render_chat([{"role": "user", "content": "abc"}])
    assert tokenizer.encode_rendered(rendered) == [261, 2]


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        ({"fields": {PRE: "exotic"}}, "tokenizer.ggml.pre is 'exotic'"),
        ({"fields": {PRE: None}}, "tokenizer.ggml.pre is None"),
        ({"fields": {"tokenizer.ggml.model": "bert"}}, "tokenizer of type 'bert'"),
        ({"fields": {"tokenizer.ggml.tokens": None}}, "has no vocabulary"),
        ({"fields": {"llama.rope.scaling.type": "yarn"}}, "scaled rotary embeddings"),
        ({"extra": {"rope_freqs.weight": np.ones(4, np.float32)}}, "rope_freqs.weight"),
        ({"extra": {"blk.0.attn_q.bias": np.ones(32, np.float32)}}, "some would be lost"),
        ({"vocabulary": "spm", "fields": {"tokenizer.ggml.add_space_prefix": False}},
         "add_space_prefix"),
    ],
)  # fmt: skip
def test_what_a_conversion_would_lose_is_refused(
    write_gguf: WriteGGUF, cache: Path, change: dict[str, Any], cause: str
) -> None:
    with pytest.raises(ModelLoadError, match=cause) as raised:
        converted(write_gguf(**change).path)
    assert "tiny.gguf" in str(raised.value)
    assert _entries(cache) == []


def test_an_architecture_that_is_not_built_is_refused(tmp_path: Path, cache: Path) -> None:
    writer = GGUFWriter(tmp_path / "mamba.gguf", "mamba")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(ModelLoadError, match=r"mamba\.gguf: a GGUF of architecture 'mamba'"):
        converted(tmp_path / "mamba.gguf")


@pytest.mark.parametrize("part", [0.01, 0.3, 0.6, 0.95, 0.999])
def test_a_truncated_file_is_refused_before_the_conversion(
    write_gguf: WriteGGUF, cache: Path, monkeypatch: pytest.MonkeyPatch, part: float
) -> None:
    path = write_gguf().path
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * part)])
    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", _never)
    with pytest.raises(ModelLoadError, match=r"tiny\.gguf is broken or cut off"):
        converted(path)
    assert _entries(cache) == []


@pytest.mark.parametrize("start", [b"", b"GG", b"PK\x03\x04 no model at all"])
def test_a_file_that_is_no_gguf_is_refused(tmp_path: Path, cache: Path, start: bytes) -> None:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(start)
    with pytest.raises(ModelLoadError, match=r"tiny\.gguf is no GGUF file"):
        converted(path)
    assert not cache.exists()


def test_too_little_space_is_found_before_the_conversion(
    write_gguf: WriteGGUF, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_gguf().path
    usage = shutil.disk_usage(path.parent)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", _never)
    with pytest.raises(ModelLoadError, match=r"no space left for tiny\.gguf: it needs about 1 MB"):
        converted(path)
    assert _entries(cache) == []


def test_a_disk_that_fills_up_while_the_weights_are_written_leaves_nothing(
    write_gguf: WriteGGUF, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def half(tensors: Any, path: Path, metadata: Any) -> None:
        path.write_bytes(b"half of it")
        raise OSError(errno.ENOSPC, "No space left on device")

    tiny = write_gguf()
    with monkeypatch.context() as patch:
        patch.setattr(conversion, "save_file", half)
        with pytest.raises(ModelLoadError, match="no space left") as raised:
            converted(tiny.path)
    assert str(cache) in str(raised.value)
    assert _entries(cache) == []
    assert (converted(tiny.path) / "model.safetensors").exists()  # and can be tried again


def _never(*_: Any, **__: Any) -> Any:
    raise AssertionError("the conversion has begun")


def _entries(cache: Path) -> list[str]:
    """What is in the cache, locks aside."""
    return sorted(p.name for p in cache.iterdir() if p.suffix != ".lock")
