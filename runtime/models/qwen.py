"""Qwen2 and 2.5 (biases on QKV), Qwen3 (norms on q and k instead)."""

from __future__ import annotations

from rtlang.runtime.layers.spec import DecoderSpec, HFConfig, base_spec, layer_windows


def qwen2_spec(config: HFConfig) -> DecoderSpec:
    return base_spec(config, qkv_bias=True, windows=_windows(config))


def qwen3_spec(config: HFConfig) -> DecoderSpec:
    bias = bool(config.get("attention_bias", False))
    return base_spec(config, qk_norm=True, qkv_bias=bias, o_bias=bias, windows=_windows(config))


def _windows(config: HFConfig) -> tuple[int | None, ...]:
    """The first ``max_window_layers`` layers attend to everything, the others to a window."""
    window = config.get("sliding_window")
    if not config.get("use_sliding_window") or not window:
        return ()
    kinds = config.get("layer_types")
    if kinds:
        return layer_windows(kinds, window)
    first = config.get("max_window_layers", 28)
    return tuple(None if i < first else window for i in range(config["num_hidden_layers"]))
