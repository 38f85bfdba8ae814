"""From a model's files to its weights on a device, and to what the engine must know of it."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterable

import torch

from rtlang.errors import ConfigError
from rtlang.kernels.ops import Ops
from rtlang.runtime.config import EngineConfig
from rtlang.runtime.executor import ModelInfo
from rtlang.runtime.layers.decoder import Decoder
from rtlang.runtime.layers.spec import DecoderSpec
from rtlang.runtime.layers.weights import DummyReader, WeightReader
from rtlang.runtime.mem.kv_pool import kv_bytes_per_token
from rtlang.runtime.models.registry import decoder_spec
from rtlang.runtime.models.source import ModelFiles
from rtlang.runtime.models.weights import iterate_weights

logger = logging.getLogger(__name__)

_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
_CHAT_DEFAULTS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


@dataclasses.dataclass(frozen=True, slots=True)
class LoadedModel:
    model: Decoder
    spec: DecoderSpec
    dtype: torch.dtype  # of weights and activations
    kv_dtype: torch.dtype
    kv_bytes_per_token: int


def load_model(
    config: EngineConfig, files: ModelFiles, device: torch.device, ops: Ops
) -> LoadedModel:
    """Raises ``ModelLoadError`` or ``ConfigError``."""
    spec = decoder_spec(files.hf_config)
    dtype = _dtype(config, files, device)
    limit = spec.max_positions
    if config.context_length is not None and config.context_length > limit:
        raise ConfigError(
            f"context_length={config.context_length} is longer than the model's {limit}"
        )
    dummy = files.load_format == "dummy"
    tensors = [] if dummy else list(iterate_weights(files.path))
    quantize = config.quantization == "fp8"
    reader = (
        DummyReader(dtype, device=device, quantize=quantize)
        if dummy
        else WeightReader(tensors, dtype, device, quantize)
    )
    fp8_kv = config.kv_cache_dtype == "fp8"
    if fp8_kv and not reader.has_kv_scales:
        logger.warning("the checkpoint has no scales for an FP8 KV cache; all are taken as 1.0")
    with torch.inference_mode():
        model = Decoder(spec, reader, ops, use_kv_scales=fp8_kv)
    reader.finish(tied=spec.tied)
    kv_dtype = torch.float8_e4m3fn if fp8_kv else dtype
    return LoadedModel(model, spec, dtype, kv_dtype, kv_bytes_per_token(spec, kv_dtype))


def _dtype(config: EngineConfig, files: ModelFiles, device: torch.device) -> torch.dtype:
    """``auto``: fp32 on the CPU, on a GPU the checkpoint's 16-bit type, else bf16."""
    if config.dtype != "auto":
        return _DTYPES[config.dtype]
    if device.type != "cuda":
        return torch.float32
    given = files.hf_config.get("torch_dtype") or files.hf_config.get("dtype")
    return torch.float16 if given == "float16" else torch.bfloat16


def make_info(
    loaded: LoadedModel,
    config: EngineConfig,
    files: ModelFiles,
    tokenizer_eos: frozenset[int],
    max_total_tokens: int,
) -> ModelInfo:
    generation = files.generation_config
    text = files.hf_config.get("text_config") or {}
    defaults = {k: generation[k] for k in _CHAT_DEFAULTS if generation.get(k) is not None}
    if not generation.get("do_sample", True):
        defaults = {}
    return ModelInfo(
        vocab_size=loaded.spec.vocab_size,
        context_length=config.context_length or loaded.spec.max_positions,
        eos_ids=tokenizer_eos
        | _ids(files.hf_config.get("eos_token_id"))
        | _ids(text.get("eos_token_id"))
        | _ids(generation.get("eos_token_id")),
        kv_bytes_per_token=loaded.kv_bytes_per_token,
        max_total_tokens=max_total_tokens,
        chat_defaults=defaults,
        model_path=str(files.path),
    )


def _ids(value: int | Iterable[int] | None) -> frozenset[int]:
    if value is None:
        return frozenset()
    return frozenset((value,) if isinstance(value, int) else value)
