"""The conversion itself: a GGUF's weights and tokenizer, read by transformers, written anew."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from gguf import GGUFReader
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from rtlang.errors import ModelLoadError

#: ``tokenizer.ggml.token_type`` of control tokens.
_CONTROL = 3


def convert_gguf(gguf: Path, folder: Path) -> None:
    """Write fp32 safetensors, configs and tokenizer files into ``folder``."""
    metadata = _read_metadata(gguf)
    where, name = str(gguf.parent), gguf.name
    model: Any = AutoModelForCausalLM.from_pretrained(where, gguf_file=name, dtype=torch.float32)
    tokenizer = _fix_tokenizer(AutoTokenizer.from_pretrained(where, gguf_file=name), metadata)
    eos = tokenizer.eos_token_id
    model.config.eos_token_id = eos
    model.generation_config.eos_token_id = eos
    _save_weights(model, folder)
    config = model.config.to_dict()
    config.pop("quantization_config", None)  # the weights are plain now
    config["architectures"] = [type(model).__name__]
    (folder / "config.json").write_text(json.dumps(config, indent=2, default=str) + "\n")
    model.generation_config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _read_metadata(gguf: Path) -> dict[str, Any]:
    try:
        reader = GGUFReader(gguf)
        wanted = ("tokenizer.ggml.pre", "tokenizer.ggml.token_type", "tokenizer.chat_template",
                  "tokenizer.ggml.tokens", "tokenizer.ggml.eos_token_id",
                  "tokenizer.ggml.bos_token_id", "tokenizer.ggml.add_bos_token")  # fmt: skip
        return {key: reader.fields[key].contents() for key in wanted if key in reader.fields}
    except (ValueError, IndexError, OverflowError, OSError) as error:
        raise ModelLoadError(f"{gguf} is broken or cut off: {error}") from error


def _fix_tokenizer(tokenizer: Any, metadata: dict[str, Any]) -> PreTrainedTokenizerFast:
    """Say again what the generic conversion loses: control tokens, how digits are split, which
    token ends a turn, the chat template, and that no BOS is added."""
    fast: Tokenizer = tokenizer.backend_tokenizer
    tokens = metadata["tokenizer.ggml.tokens"]
    kinds = metadata["tokenizer.ggml.token_type"]
    control = [t for t, kind in zip(tokens, kinds, strict=True) if kind == _CONTROL]
    fast.add_special_tokens(control)
    if metadata.get("tokenizer.ggml.pre") == "smollm":
        digits, words = Digits(individual_digits=True), ByteLevel(add_prefix_space=False)
        fast.pre_tokenizer = Sequence([digits, words])
    eos = tokens[int(metadata["tokenizer.ggml.eos_token_id"])]
    bos = metadata.get("tokenizer.ggml.bos_token_id")
    fixed = PreTrainedTokenizerFast(
        tokenizer_object=fast,
        eos_token=eos,
        bos_token=None if bos is None else tokens[int(bos)],
        clean_up_tokenization_spaces=False,
    )
    fixed.chat_template = metadata.get("tokenizer.chat_template")
    return fixed


def _save_weights(model: Any, folder: Path) -> None:
    """One safetensors file; a head tied to the embeddings is stored once."""
    tensors = {name: t.contiguous() for name, t in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        tensors.pop("lm_head.weight", None)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
