"""Gemma 3, text: norms around both branches, local layers with their own RoPE and a window."""

from __future__ import annotations

from rtlang.kernels.activation import gelu_tanh_mul
from rtlang.runtime.layers.spec import DecoderSpec, HFConfig, RopeSpec, base_spec, rope_spec


def gemma3_spec(config: HFConfig) -> DecoderSpec:
    text = {"tie_word_embeddings": True, "head_dim": 256, **(config.get("text_config") or config)}
    layers = int(text["num_hidden_layers"])
    pattern = text.get("sliding_window_pattern") or text.get("_sliding_window_pattern") or 6
    kinds = text.get("layer_types") or [
        "full_attention" if (i + 1) % pattern == 0 else "sliding_attention" for i in range(layers)
    ]
    window = text.get("sliding_window")
    by_kind = (text.get("rope_parameters") or {}).get("sliding_attention")
    local = RopeSpec(float(text.get("rope_local_base_freq", 10000.0)), {})
    return base_spec(
        {"rope_theta": 1_000_000.0, **text},
        qk_norm=True,
        norm_offset=1.0,
        post_norms=True,
        activation=gelu_tanh_mul,
        embed_scale=float(text["hidden_size"]) ** 0.5,
        attention_scale=float(text.get("query_pre_attn_scalar", 256)) ** -0.5,
        soft_cap=text.get("attn_logit_softcapping"),
        windows=tuple(window if k == "sliding_attention" else None for k in kinds),
        local_rope=rope_spec(text, kind="sliding_attention") if by_kind else local,
    )
