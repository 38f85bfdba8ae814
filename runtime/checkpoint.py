"""CheckpointSource: a model by name, as the engine loads it."""

from __future__ import annotations

import functools
from pathlib import Path

from rtlang.errors import ConfigError
from rtlang.runtime.config import EngineConfig
from rtlang.runtime.executor import Executor
from rtlang.runtime.hf_tokenizer import HFTokenizer
from rtlang.runtime.model_runner import ModelRunner
from rtlang.runtime.models.source import resolve_model


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
        return HFTokenizer(self.files.path, chat_template=self._chat_template)

    def create_executor(self, config: EngineConfig) -> Executor:
        eos = self.tokenizer.eos_ids if self.tokenizer is not None else frozenset[int]()
        return ModelRunner(config, self.files, eos)
