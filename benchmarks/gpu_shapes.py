"""The models of ``gpu.py``: which folder or alias an engine is made from.

The dummy shapes are folders with only a ``config.json``. At the scale "tiny" each shape has a
stand-in of two small layers, named as ``module:factory`` so that any process can make it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rtlang.testing import TinyModel

SHAPES = ("llama8b", "qwen06b", "smollm2")
_TINY_SIZES: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
}


def llama8b() -> TinyModel:
    return TinyModel("llama", **_TINY_SIZES, tie_word_embeddings=False)


def qwen06b() -> TinyModel:
    return TinyModel("qwen3", **_TINY_SIZES)


def smollm2() -> TinyModel:
    return TinyModel("llama", **_TINY_SIZES)


def is_dummy(shape: str) -> bool:
    """Whether its weights are random and it has no tokenizer."""
    return shape != "smollm2"


def model_options(shape: str, scale: str) -> dict[str, Any]:
    """The options of ``Engine`` that choose the model."""
    if scale == "tiny":
        return {"model": f"{__name__}:{shape}"}
    if not is_dummy(shape):
        return {"model": shape}
    folder = Path(__file__).parent / "shapes" / shape
    return {"model": str(folder), "load_format": "dummy"}
