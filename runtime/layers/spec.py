"""DecoderSpec: what distinguishes one decoder-only architecture from another."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch

from rtlang.errors import ModelLoadError
from rtlang.kernels.activation import silu_mul

HFConfig = Mapping[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class RopeSpec:
    theta: float
    scaling: Mapping[str, Any]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DecoderSpec:
    """Sizes, and the switches that the architectures differ in."""

    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    max_positions: int
    norm_eps: float
    rope: RopeSpec
    tied: bool
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    norm_offset: float = 0.0  # RMSNorm multiplies with offset + weight
    post_norms: bool = False  # a norm behind attention and MLP too, before the residual
    activation: Callable[[torch.Tensor], torch.Tensor] = silu_mul
    embed_scale: float = 1.0
    attention_scale: float | None = None  # None: head_dim ** -0.5
    soft_cap: float | None = None
    windows: tuple[int | None, ...] = ()  # per layer; empty: none has one
    local_rope: RopeSpec | None = None  # of the layers that have a window


def base_spec(config: HFConfig, **changes: Any) -> DecoderSpec:
    """The settings that every Llama-like ``config.json`` spells alike.

    Raises ``ModelLoadError`` for a missing size, and for features that are not built.
    """
    try:
        heads, hidden = int(config["num_attention_heads"]), int(config["hidden_size"])
        fields: dict[str, Any] = {
            "vocab_size": int(config["vocab_size"]),
            "hidden_size": hidden,
            "num_layers": int(config["num_hidden_layers"]),
            "num_heads": heads,
            "num_kv_heads": int(config.get("num_key_value_heads") or heads),
            "head_dim": int(config.get("head_dim") or hidden // heads),
            "intermediate_size": int(config["intermediate_size"]),
            "max_positions": int(config.get("max_position_embeddings", 2048)),
            "norm_eps": float(config.get("rms_norm_eps", 1e-6)),
            "rope": rope_spec(config),
            "tied": bool(config.get("tie_word_embeddings", False)),
        }
    except KeyError as error:
        raise ModelLoadError(f"config.json has no {error}") from error
    fields |= changes
    spec = DecoderSpec(**fields)
    if spec.num_heads % spec.num_kv_heads:
        raise ModelLoadError(
            f"{spec.num_heads} heads do not divide among {spec.num_kv_heads} KV heads"
        )
    return spec


def rope_spec(config: HFConfig, *, kind: str = "full_attention") -> RopeSpec:
    """From either form: ``rope_theta`` and ``rope_scaling``, or transformers 5's
    ``rope_parameters`` (flat, or one per kind of layer)."""
    given: Mapping[str, Any] = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if isinstance(given.get(kind), Mapping):
        given = given[kind]
    scaling = dict(given)
    if "type" in scaling:
        scaling.setdefault("rope_type", scaling.pop("type"))
    theta = scaling.pop("rope_theta", None) or config.get("rope_theta") or 10000.0
    if scaling.get("rope_type", "default") not in ("default", "linear", "llama3"):
        raise ModelLoadError(
            f"rope type {scaling['rope_type']!r} is not built; built are default, linear, llama3"
        )
    if scaling.get("partial_rotary_factor", 1.0) != 1.0:
        raise ModelLoadError("partial rotary embeddings are not built")
    return RopeSpec(float(theta), scaling)
