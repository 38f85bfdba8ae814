"""A cache of its own for each test, and tiny models written as GGUF files."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from tokenizers.pre_tokenizers import ByteLevel
from transformers import AutoConfig, AutoModelForCausalLM

CHAT_TEMPLATE = "{% for m in messages %}{{ m['content'] }}<|im_end|>{% endfor %}"
_LAYERS, _HEADS, _KV_HEADS, _HIDDEN, _MLP, _CONTEXT, _WINDOW = 2, 4, 2, 48, 64, 256, 16
_NORM_EPS, _ROPE_THETA = 2e-5, 500.0  # no architecture's defaults
#: None: hidden size / heads. Qwen 3's is the same in all its sizes, so its files need not say it.
_HEAD_DIM = {"llama": 8, "qwen2": None, "qwen3": 128, "gemma3": 8}
_ARCHITECTURES = {
    "llama": gguf.MODEL_ARCH.LLAMA,
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
    "gemma3": gguf.MODEL_ARCH.GEMMA3,
}


@dataclasses.dataclass(frozen=True)
class TinyGGUF:
    path: Path
    model: Any  # the transformers model that the file was written from


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty model cache; also away from the hub's."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "rtlang" / "models"


@pytest.fixture
def write_gguf(tmp_path: Path) -> Callable[..., TinyGGUF]:
    """``write_gguf(architecture)``: random weights from a fixed seed. ``vocabulary`` is
    "byte_level", "spm" or "gemma"; ``fields`` replace metadata ("tokenizer.ggml.pre"), None
    leaves one out; ``extra`` adds tensors by name."""

    def write(
        architecture: str = "llama",
        vocabulary: str = "byte_level",
        name: str = "tiny.gguf",
        fields: dict[str, Any] | None = None,
        extra: dict[str, np.ndarray] | None = None,
    ) -> TinyGGUF:
        words = _VOCABULARIES[vocabulary]()
        metadata = _sizes(architecture) | words | (fields or {})
        model = _random_model(architecture, vocab_size=len(words["tokenizer.ggml.tokens"]))
        writer = gguf.GGUFWriter(tmp_path / name, architecture)
        for key, value in metadata.items():
            _add(writer, key, value)
        for key, tensor in (_gguf_tensors(architecture, model) | (extra or {})).items():
            writer.add_tensor(key, tensor)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return TinyGGUF(tmp_path / name, model)

    return write


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if value is None or key == "general.architecture":
        return
    match value:
        case bool():
            writer.add_bool(key, value)
        case int():
            writer.add_uint32(key, value)
        case float():
            writer.add_float32(key, value)
        case str():
            writer.add_string(key, value)
        case _:
            writer.add_array(key, value)


def _sizes(architecture: str) -> dict[str, Any]:
    a, head_dim = architecture, _HEAD_DIM[architecture]
    sizes = {
        f"{a}.block_count": _LAYERS,
        f"{a}.context_length": _CONTEXT,
        f"{a}.embedding_length": _HIDDEN,
        f"{a}.feed_forward_length": _MLP,
        f"{a}.attention.head_count": _HEADS,
        f"{a}.attention.head_count_kv": _KV_HEADS,
        f"{a}.attention.layer_norm_rms_epsilon": _NORM_EPS,
    }
    if a == "gemma3":
        sizes["gemma3.attention.sliding_window"] = _WINDOW
    else:
        sizes[f"{a}.rope.freq_base"] = _ROPE_THETA
    if a == "llama":
        return sizes | {"llama.rope.dimension_count": head_dim}
    return sizes | {f"{a}.attention.{what}_length": head_dim for what in ("key", "value")}


def _byte_level_vocabulary() -> dict[str, Any]:
    """Three control tokens, the bytes, and three merges, one of which joins two digits."""
    control = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    merges = ["a b", "1 2", "ab c"]
    tokens = [*control, *sorted(ByteLevel.alphabet()), "ab", "12", "abc"]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3] * len(control) + [1] * (len(tokens) - len(control)),
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }


def _spm_vocabulary() -> dict[str, Any]:
    """SentencePiece-style: a space is U+2581, bytes are spelled out, pieces have scores."""
    head = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces = ["▁", *"abcdehlorwt", "he", "▁he", "ll", "▁hell", "▁hello"]
    kinds = [2, 3, 3, *[6] * 256, *[1] * len(pieces)]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": [*head, *pieces],
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.scores": [0.0] * len(head) + [-float(i) for i in range(len(pieces))],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.add_bos_token": True,
    }


def _gemma_vocabulary() -> dict[str, Any]:
    plain = _spm_vocabulary()
    head = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]
    return plain | {
        "tokenizer.ggml.tokens": [*head, *plain["tokenizer.ggml.tokens"][3:]],
        "tokenizer.ggml.token_type": [3, 3, 3, 2, 3, *plain["tokenizer.ggml.token_type"][3:]],
        "tokenizer.ggml.scores": [0.0, 0.0, *plain["tokenizer.ggml.scores"]],
        "tokenizer.ggml.bos_token_id": 2,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.unknown_token_id": 3,
        "tokenizer.ggml.padding_token_id": 0,
        "tokenizer.ggml.add_space_prefix": False,
    }


_VOCABULARIES = {
    "byte_level": _byte_level_vocabulary,
    "spm": _spm_vocabulary,
    "gemma": _gemma_vocabulary,
}


def _random_model(architecture: str, vocab_size: int) -> Any:
    name = {"gemma3": "gemma3_text"}.get(architecture, architecture)
    head_dim = _HEAD_DIM[architecture]
    rope = {"rope_theta": _ROPE_THETA, "rope_type": "default"}
    special = {"sliding_window": _WINDOW} if name == "gemma3_text" else {"rope_parameters": rope}
    config = AutoConfig.for_model(
        name,
        vocab_size=vocab_size,
        hidden_size=_HIDDEN,
        intermediate_size=_MLP,
        num_hidden_layers=_LAYERS,
        num_attention_heads=_HEADS,
        num_key_value_heads=_KV_HEADS,
        max_position_embeddings=_CONTEXT,
        rms_norm_eps=_NORM_EPS,
        tie_word_embeddings=True,
        **({} if head_dim is None else {"head_dim": head_dim}),
        **special,
    )
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.1)
    return model


def _gguf_tensors(architecture: str, model: Any) -> dict[str, np.ndarray]:
    """The weights as llama.cpp keeps them: its names, Llama's q and k rows interleaved for its
    rotary embeddings, Gemma's norms with their one added."""
    names = gguf.get_tensor_name_map(_ARCHITECTURES[architecture], _LAYERS)
    found = {}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight":
            continue
        values = tensor.numpy()
        heads = {"q_proj": _HEADS, "k_proj": _KV_HEADS}.get(name.split(".")[-2])
        if architecture == "llama" and heads is not None:
            halves = values.reshape(heads, 2, values.shape[0] // heads // 2, -1)
            values = halves.swapaxes(1, 2).reshape(values.shape)
        if architecture == "gemma3" and name.endswith("norm.weight"):
            values = values + 1
        stored = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert stored is not None, name
        found[stored] = np.ascontiguousarray(values, dtype=np.float32)
    return found
