"""Mistral: Llama with a sliding window in every layer (or in none, as from v0.2 on)."""

from __future__ import annotations

from rtlang.runtime.layers.spec import DecoderSpec, HFConfig, base_spec


def mistral_spec(config: HFConfig) -> DecoderSpec:
    spec = base_spec(config)
    window = config.get("sliding_window")
    return base_spec(config, windows=(window,) * spec.num_layers if window else ())
