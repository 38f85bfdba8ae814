"""Architecture name -> how to read its config."""

from __future__ import annotations

from collections.abc import Callable

from rtlang.errors import ModelLoadError
from rtlang.runtime.layers.spec import DecoderSpec, HFConfig
from rtlang.runtime.models.gemma3 import gemma3_spec
from rtlang.runtime.models.llama import llama_spec
from rtlang.runtime.models.mistral import mistral_spec
from rtlang.runtime.models.quantization import checkpoint_quantization
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
    checkpoint_quantization(config)
    names = config.get("architectures") or []
    for name in names:
        if name in ARCHITECTURES:
            return ARCHITECTURES[name](config)
    built = ", ".join(sorted(ARCHITECTURES))
    raise ModelLoadError(
        f"architecture {', '.join(names) or 'unnamed'} is not built; it may be {built}"
    )
