"""CheckpointSource: a model by name, as the engine loads it."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from rtlang.errors import ConfigError
from rtlang.runtime.config import EngineConfig
from rtlang.runtime.executor import Executor
from rtlang.runtime.model_runner import ModelRunner
from rtlang.runtime.models.source import ModelFiles, resolve_model

if TYPE_CHECKING:
    from rtlang.runtime.hf_tokenizer import HFTokenizer


class CheckpointSource:
    """A folder with ``config.json``, weights and (maybe) a tokenizer; found when it is made."""

    def __init__(self, config: EngineConfig) -> None:
        self.files = resolve_model(config)
        self._chat_template: str | None = None
        if config.chat_template is not None:
            try:
                self._chat_template = Path(config.chat_template).read_text()
            except OSError as error:
                raise ConfigError(f"chat_template: {error}") from error

    @functools.cached_property
    def tokenizer(self) -> HFTokenizer | None:
        if not self.files.has_tokenizer:
            return None
        # transformers takes most of a second to import, and dummy shapes do without.
        from rtlang.runtime.hf_tokenizer import HFTokenizer  # noqa: PLC0415

        return HFTokenizer(self.files.path, chat_template=self._chat_template)

    def create_executor(self, config: EngineConfig) -> Executor:
        eos = self.tokenizer.eos_ids if self.tokenizer is not None else frozenset[int]()
        return create_runner(config, self.files, eos)


def create_runner(
    config: EngineConfig, files: ModelFiles, tokenizer_eos: frozenset[int] = frozenset()
) -> Executor:
    """The executor for the configured device. Raises ``ConfigError`` and ``ModelLoadError``."""
    config = config.resolve("cpu")
    backend = config.attention_backend
    if config.device == "cpu" and backend in ("auto", "torch"):
        for name in ("kv_cache_dtype", "cuda_graph_max_tokens"):
            value = getattr(config, name)
            if value != EngineConfig.__dataclass_fields__[name].default:
                raise ConfigError(f"{name}={value!r} needs device='cuda'")
        return ModelRunner(config, files, tokenizer_eos)
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device='cuda': torch finds no GPU here")
    if config.device == "cpu" and backend == "flashinfer":
        raise ConfigError("attention_backend='flashinfer' needs an NVIDIA GPU")
    # Triton takes a second to import, and the CPU does not need it.
    from rtlang.runtime.gpu.runner import GpuRunner  # noqa: PLC0415

    if config.device == "cpu" and not GpuRunner.interpreted():
        raise ConfigError("attention_backend='triton' runs on a CPU only in Triton's interpreter")
    return GpuRunner(config, files, tokenizer_eos)
