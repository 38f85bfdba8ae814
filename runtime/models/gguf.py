"""The conversion itself: a GGUF's weights and tokenizer, read by transformers, written anew.

transformers takes what it knows of a file and skips the rest without a word. So this module
refuses what would be lost, says the tokenizer's settings again, and counts the tensors.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
from gguf import GGUFReader
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.normalizers import NFC
from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence
from tokenizers.processors import TemplateProcessing
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from rtlang.errors import ModelLoadError
from rtlang.runtime.models.convert import no_space

#: ``general.architecture``; Mistral's files call themselves llama.
_ARCHITECTURES = ("gemma3", "llama", "qwen2", "qwen3")
_LLAMA3 = ("llama-bpe", "llama3", "llama-v3")
#: ``tokenizer.ggml.pre`` of byte-level vocabularies: how text is cut before the merges.
_PRE_TYPES = (*_LLAMA3, "gpt-2", "qwen2", "smollm", "tekken")
#: ``tokenizer.ggml.token_type`` of control tokens.
_CONTROL = 3
_KV = "tokenizer.ggml."


def convert_gguf(gguf: Path, folder: Path) -> None:
    """Write fp32 safetensors, configs and tokenizer files into ``folder``.

    Raises ``ModelLoadError`` for a broken file and for what the conversion cannot keep, before
    the long part where that can be known; whatever transformers raises goes through.
    """
    reader = _open(gguf)
    metadata = _read_metadata(gguf, reader)
    _check_convertible(gguf, reader, metadata)
    need = 4 * sum(int(tensor.n_elements) for tensor in reader.tensors)
    if shutil.disk_usage(folder).free < need:
        raise no_space(gguf.name, need, folder.parent)
    with tempfile.TemporaryDirectory(prefix="rtlang-gguf-") as alone:
        # Beside the file there may be configs and tokenizers of other models.
        (Path(alone) / "model.gguf").symlink_to(gguf.resolve())
        model: Any = AutoModelForCausalLM.from_pretrained(
            alone, gguf_file="model.gguf", dtype=torch.float32
        )
        tokenizer = AutoTokenizer.from_pretrained(alone, gguf_file="model.gguf")
    fixed = _fix_tokenizer(gguf, tokenizer.backend_tokenizer, metadata)
    _save_weights(gguf, model, len(reader.tensors), folder)
    _save_configs(model, metadata, folder)
    fixed.save_pretrained(folder)


def _open(gguf: Path) -> Any:
    try:
        return GGUFReader(gguf)
    except (ValueError, LookupError, OverflowError, TypeError, OSError) as error:
        raise ModelLoadError(f"{gguf} is broken or cut off: {error}") from error


def _read_metadata(gguf: Path, reader: Any) -> dict[str, Any]:
    """Every field that is no array, and the arrays of the vocabulary."""
    arrays = (f"{_KV}tokens", f"{_KV}token_type")
    try:
        return {
            key: field.contents()
            for key, field in reader.fields.items()
            if key in arrays or len(field.types) == 1
        }
    except (ValueError, LookupError) as error:
        raise ModelLoadError(f"{gguf} is broken: {error}") from error


def _check_convertible(gguf: Path, reader: Any, metadata: dict[str, Any]) -> None:
    name = metadata.get("general.architecture")
    if name not in _ARCHITECTURES:
        built = ", ".join(_ARCHITECTURES)
        raise ModelLoadError(f"{gguf}: a GGUF of architecture {name!r} is not built; {built} are")
    scaling = metadata.get(f"{name}.rope.scaling.type", "none")
    factors = [t.name for t in reader.tensors if t.name.startswith("rope_")]
    if factors or scaling != "none":
        raise ModelLoadError(
            f"{gguf}: its scaled rotary embeddings ({', '.join(factors) or scaling}) would be "
            f"lost; use the model's safetensors checkpoint"
        )
    kind, pre = metadata.get(f"{_KV}model"), metadata.get(f"{_KV}pre")
    if f"{_KV}tokens" not in metadata or f"{_KV}token_type" not in metadata:
        raise ModelLoadError(f"{gguf} has no vocabulary (tokenizer.ggml.tokens and token_type)")
    if kind not in ("gpt2", "llama"):
        raise ModelLoadError(f"{gguf}: a tokenizer of type {kind!r} is not built")
    if kind == "gpt2" and pre not in _PRE_TYPES:
        raise ModelLoadError(
            f"{gguf}: tokenizer.ggml.pre is {pre!r}; known are {', '.join(_PRE_TYPES)}"
        )
    if kind == "llama" and name != "gemma3" and metadata.get(f"{_KV}add_space_prefix") is False:
        raise ModelLoadError(f"{gguf}: add_space_prefix = false is not built")


def _fix_tokenizer(
    gguf: Path, fast: Tokenizer, metadata: dict[str, Any]
) -> PreTrainedTokenizerFast:
    """Say again what the generic conversion may lose: which tokens are control tokens, how text
    is cut and normalized, which token ends a turn, whether a BOS is added, the chat template."""
    tokens: list[str] = metadata[f"{_KV}tokens"]
    kinds: list[int] = metadata[f"{_KV}token_type"]
    pre = metadata.get(f"{_KV}pre")
    fast.add_special_tokens([t for t, kind in zip(tokens, kinds, strict=True) if kind == _CONTROL])
    if pre == "smollm":
        digits, words = Digits(individual_digits=True), ByteLevel(add_prefix_space=False)
        fast.pre_tokenizer = Sequence([digits, words])
    elif pre == "qwen2":
        fast.normalizer = NFC()
    bos, eos = _token(metadata, "bos"), _token(metadata, "eos")
    fast.post_processor = _bos_first(metadata, bos) if bos and _adds_bos(metadata) else None
    fixed = PreTrainedTokenizerFast(
        tokenizer_object=fast,
        bos_token=bos,
        eos_token=eos,
        unk_token=_token(metadata, "unknown"),
        pad_token=_token(metadata, "padding"),
        clean_up_tokenization_spaces=False,
    )
    fixed.chat_template = metadata.get("tokenizer.chat_template")
    if len(fixed) != len(tokens):
        raise ModelLoadError(
            f"{gguf}: the converted tokenizer has {len(fixed)} tokens instead of {len(tokens)}; "
            f"use the model's safetensors checkpoint"
        )
    return fixed


def _token(metadata: dict[str, Any], role: str) -> str | None:
    at = metadata.get(f"{_KV}{role}_token_id")
    return None if at is None else metadata[f"{_KV}tokens"][int(at)]


def _adds_bos(metadata: dict[str, Any]) -> bool:
    """Files from before the flag: SentencePiece vocabularies and Llama 3's have a BOS."""
    default = metadata[f"{_KV}model"] == "llama" or metadata.get(f"{_KV}pre") in _LLAMA3
    return bool(metadata.get(f"{_KV}add_bos_token", default))


def _bos_first(metadata: dict[str, Any], bos: str) -> TemplateProcessing:
    at = int(metadata[f"{_KV}bos_token_id"])
    return TemplateProcessing(single=f"{bos} $A", pair=f"{bos} $A $B", special_tokens=[(bos, at)])


def _save_weights(gguf: Path, model: Any, num_tensors: int, folder: Path) -> None:
    """One safetensors file; a head tied to the embeddings is stored once."""
    tensors = {name: t.contiguous() for name, t in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        tensors.pop("lm_head.weight", None)
    if len(tensors) != num_tensors:
        raise ModelLoadError(
            f"{gguf} has {num_tensors} tensors, but {type(model).__name__} has {len(tensors)}: "
            f"some would be lost or random; use the model's safetensors checkpoint"
        )
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def _save_configs(model: Any, metadata: dict[str, Any], folder: Path) -> None:
    ends = (metadata.get(f"{_KV}{role}_token_id") for role in ("eos", "eot"))
    eos_ids = sorted({int(at) for at in ends if at is not None})
    config = model.config.to_dict()
    for key in ("quantization_config", "_name_or_path", "_model_name_or_path"):
        config.pop(key, None)  # the weights are plain now, and the paths were ours
    config |= {"architectures": [type(model).__name__], "eos_token_id": eos_ids}
    (folder / "config.json").write_text(json.dumps(config, indent=2, default=str) + "\n")
    model.generation_config.eos_token_id = eos_ids
    model.generation_config.save_pretrained(folder)
