"""TinyModel: two random layers of any supported architecture, fp32, from a fixed seed."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from rtlang.runtime.byte_tokenizer import EOS, ByteTokenizer
from rtlang.runtime.checkpoint import create_runner
from rtlang.runtime.config import EngineConfig
from rtlang.runtime.executor import Executor
from rtlang.runtime.models.source import ModelFiles
from rtlang.runtime.tokenizer import Tokenizer

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gemma3": "Gemma3ForCausalLM",
}


class TinyModel:
    """A model source for ``Engine(model=...)``; ``changes`` replace entries of its config."""

    def __init__(self, architecture: str = "llama", **changes: Any) -> None:
        self.tokenizer: Tokenizer = ByteTokenizer()
        self.hf_config: dict[str, Any] = {
            "architectures": [ARCHITECTURES[architecture]],
            "vocab_size": self.tokenizer.vocab_size,
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "max_position_embeddings": 2048,
            "rms_norm_eps": 1e-5,
            "eos_token_id": EOS,
            "tie_word_embeddings": True,
            **changes,
        }

    def create_executor(self, config: EngineConfig) -> Executor:
        files = ModelFiles(Path(), "dummy", self.hf_config, {}, has_tokenizer=False)
        return create_runner(config, files)

    def write_config(self) -> Path:
        """A temporary folder with only ``config.json``, for ``load_format="dummy"``."""
        folder = Path(tempfile.mkdtemp(prefix="rtlang-tiny-"))
        (folder / "config.json").write_text(json.dumps(self.hf_config))
        return folder
