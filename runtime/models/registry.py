"""Architecture name -> how to read its config."""

from __future__ import annotations

from collections.abc import Callable

from rtlang.errors import ModelLoadError
from rtlang.runtime.layers.spec import DecoderSpec, HFConfig
from rtlang.runtime.models.gemma3 import gemma3_spec
from rtlang.runtime.models.llama import llama_spec
from rtlang.runtime.models.mistral import mistral_spec
from rtlang.runtime.models.qwen import qwen2_spec, qwen3_spec

ARCHITECTURES: dict[str, Callable[[HFConfig], DecoderSpec]] = {
    "Gemma3ForCausalLM": gemma3_spec,
    "Gemma3ForConditionalGeneration": gemma3_spec,
    "LlamaForCausalLM": llama_spec,
    "MistralForCausalLM": mistral_spec,
    "Qwen2ForCausalLM": qwen2_spec,
    "Qwen3ForCausalLM": qwen3_spec,
}


def decoder_spec(config: HFConfig) -> DecoderSpec:
    """Raises ``ModelLoadError`` for an architecture or a quantization that is not built."""
    names = config.get("architectures") or []
    if config.get("quantization_config"):
        method = config["quantization_config"].get("quant_method", "unknown")
        raise ModelLoadError(f"quantization {method!r} is not built")
    for name in names:
        if name in ARCHITECTURES:
            return ARCHITECTURES[name](config)
    built = ", ".join(sorted(ARCHITECTURES))
    raise ModelLoadError(f"architecture {names or 'unnamed'} is not built; built are {built}")
