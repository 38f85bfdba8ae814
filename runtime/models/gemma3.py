"""Gemma 3, text: norms around both branches, local layers with their own RoPE and a window."""

from __future__ import annotations

from typing import Any

from rtlang.errors import ModelLoadError
from rtlang.runtime.layers.spec import (
    DecoderSpec,
    HFConfig,
    RopeSpec,
    base_spec,
    layer_windows,
    rope_spec,
)

#: What published configurations leave out.
_DEFAULTS: dict[str, Any] = {
    "vocab_size": 262208,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "hidden_act": "gelu_pytorch_tanh",
    "max_position_embeddings": 131072,
    "rope_theta": 1_000_000.0,
    "rope_local_base_freq": 10_000.0,
    "sliding_window": 4096,
    "query_pre_attn_scalar": 256,
    "tie_word_embeddings": True,
}


def gemma3_spec(config: HFConfig) -> DecoderSpec:
    text = {**_DEFAULTS, **(config.get("text_config") or config)}
    for name in ("final_logit_softcapping", "use_bidirectional_attention"):
        if text.get(name):
            raise ModelLoadError(f"{name} is not built for Gemma 3")
    layers = int(text["num_hidden_layers"])
    pattern = text.get("sliding_window_pattern") or text.get("_sliding_window_pattern") or 6
    kinds = text.get("layer_types") or [
        "full_attention" if (i + 1) % pattern == 0 else "sliding_attention" for i in range(layers)
    ]
    by_kind = (text.get("rope_parameters") or {}).get("sliding_attention")
    local = RopeSpec(float(text["rope_local_base_freq"]), {})
    bias = bool(text.get("attention_bias", False))
    return base_spec(
        text,
        qkv_bias=bias,
        o_bias=bias,
        qk_norm=True,
        norm_offset=1.0,
        post_norms=True,
        embed_scale=float(text["hidden_size"]) ** 0.5,
        attention_scale=float(text["query_pre_attn_scalar"]) ** -0.5,
        soft_cap=text.get("attn_logit_softcapping"),
        windows=layer_windows(kinds, text["sliding_window"]),
        local_rope=rope_spec(text, kind="sliding_attention") if by_kind else local,
    )
