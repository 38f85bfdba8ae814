"""Llama 2 and 3.x (SmolLM2 too)."""

from __future__ import annotations

from rtlang.runtime.layers.spec import DecoderSpec, HFConfig, base_spec


def llama_spec(config: HFConfig) -> DecoderSpec:
    bias = bool(config.get("attention_bias", False))
    mlp_bias = bool(config.get("mlp_bias", False))
    return base_spec(config, qkv_bias=bias, o_bias=bias, mlp_bias=mlp_bias)
