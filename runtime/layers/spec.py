"""DecoderSpec: what distinguishes one decoder-only architecture from another."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from rtlang.errors import ModelLoadError
from rtlang.kernels.ops import ACTIVATIONS

HFConfig = Mapping[str, Any]
ROPE_TYPES = ("default", "linear", "llama3")


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
    activation: str = "silu"  # one of ACTIVATIONS
    embed_scale: float = 1.0
    attention_scale: float | None = None  # None: head_dim ** -0.5
    soft_cap: float | None = None
    windows: tuple[int | None, ...] = ()  # per layer; empty: none has one
    local_rope: RopeSpec | None = None  # of the layers that have a window

    @property
    def score_scale(self) -> float:
        """What attention scores are multiplied with."""
        return self.head_dim**-0.5 if self.attention_scale is None else self.attention_scale


def base_spec(config: HFConfig, **changes: Any) -> DecoderSpec:
    """The settings that every Llama-like ``config.json`` spells alike.

    Raises ``ModelLoadError`` for a size that is missing or no number, and for features that are
    not built.
    """
    heads, hidden = _size(config, "num_attention_heads"), _size(config, "hidden_size")
    fields: dict[str, Any] = {
        "vocab_size": _size(config, "vocab_size"),
        "hidden_size": hidden,
        "num_layers": _size(config, "num_hidden_layers"),
        "num_heads": heads,
        "num_kv_heads": _size(config, "num_key_value_heads", heads),
        "head_dim": _size(config, "head_dim", hidden // heads),
        "intermediate_size": _size(config, "intermediate_size"),
        "max_positions": _size(config, "max_position_embeddings", 2048),
        "norm_eps": float(config.get("rms_norm_eps", 1e-6)),
        "rope": rope_spec(config),
        "activation": _activation(config),
        "tied": bool(config.get("tie_word_embeddings", False)),
    }
    spec = DecoderSpec(**(fields | changes))
    _check_sizes(spec)
    return spec


def layer_windows(kinds: Sequence[str], window: int | None) -> tuple[int | None, ...]:
    """One entry per layer, from ``layer_types``. Raises ``ModelLoadError`` for another kind."""
    other = set(kinds) - {"full_attention", "sliding_attention"}
    if other:
        raise ModelLoadError(f"layers of type {', '.join(sorted(other))} are not built")
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def _size(config: HFConfig, name: str, default: int | None = None) -> int:
    value = config.get(name)
    value = default if value is None else value
    if not isinstance(value, int) or value < 1:
        raise ModelLoadError(f"config.json: {name} must be a positive number, got {value!r}")
    return value


def _check_sizes(spec: DecoderSpec) -> None:
    if spec.num_heads % spec.num_kv_heads:
        raise ModelLoadError(
            f"config.json: {spec.num_heads} heads do not divide among {spec.num_kv_heads} KV heads"
        )
    if spec.head_dim % 2:
        raise ModelLoadError(f"config.json: head_dim {spec.head_dim} is odd, RoPE needs pairs")
    if spec.windows and len(spec.windows) != spec.num_layers:
        raise ModelLoadError(
            f"config.json: layer_types names {len(spec.windows)} of {spec.num_layers} layers"
        )


def _activation(config: HFConfig) -> str:
    name: str = config.get("hidden_activation") or config.get("hidden_act") or "silu"
    if name not in ACTIVATIONS:
        raise ModelLoadError(
            f"activation {name!r} is not built; built are {', '.join(ACTIVATIONS)}"
        )
    return name


def rope_spec(config: HFConfig, *, kind: str = "full_attention") -> RopeSpec:
    """From either form: ``rope_theta`` and ``rope_scaling``, or transformers 5's
    ``rope_parameters`` (flat, or one per kind of layer)."""
    given: Mapping[str, Any] = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if isinstance(given.get(kind), Mapping):
        given = given[kind]
    scaling = dict(given)
    if "type" in scaling:  # the oldest name
        scaling.setdefault("rope_type", scaling.pop("type"))
    theta = scaling.pop("rope_theta", None) or config.get("rope_theta") or 10000.0
    name = scaling.setdefault("rope_type", "default")
    if name not in ROPE_TYPES:
        raise ModelLoadError(f"rope type {name!r} is not built; built are {', '.join(ROPE_TYPES)}")
    if scaling.get("partial_rotary_factor", config.get("partial_rotary_factor") or 1.0) != 1.0:
        raise ModelLoadError("partial_rotary_factor (rotating a part of each head) is not built")
    missing = [key for key in _ROPE_KEYS.get(name, ()) if scaling.get(key) is None]
    if missing:
        raise ModelLoadError(f"rope type {name!r} lacks {', '.join(missing)} in config.json")
    return RopeSpec(float(theta), scaling)


_ROPE_KEYS = {
    "linear": ("factor",),
    "llama3": (
        "factor",
        "low_freq_factor",
        "high_freq_factor",
        "original_max_position_embeddings",
    ),
}
