"""What a checkpoint's ``config.json`` says of its quantization: FP8 is built, in two formats."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from rtlang.errors import ModelLoadError

Config = Mapping[str, Any]
#: Of compressed-tensors: those whose weights are stored as plain FP8 tensors.
_FORMATS = (None, "float-quantized", "naive-quantized")
_ADVICE = (
    "use the checkpoint in 16 bits (it can be quantized while loading, quantization='fp8'), or "
    "one in FP8 with a scale per output channel or per tensor"
)


@dataclasses.dataclass(frozen=True, slots=True)
class Quantization:
    """A quantization that ``WeightReader`` reads; its tensors say which weights have it."""

    method: str  # "fp8" | "compressed-tensors"
    static_activations: bool  # the checkpoint brings activation scales; they are not used
    kv_scales: bool  # it says that it brings scales for an FP8 KV cache


def checkpoint_quantization(config: Config) -> Quantization | None:
    """None for plain weights. Raises ``ModelLoadError`` for a scheme that is not built."""
    text = config.get("text_config") or {}
    given = None
    for place in (config, text):
        given = given or place.get("quantization_config") or place.get("compression_config")
    if not given:
        return None
    if not isinstance(given, Mapping):
        raise ModelLoadError(f"config.json: its quantization is no object but {given!r}")
    method = given.get("quant_method")
    if method == "fp8":
        return _fp8(given)
    if method == "compressed-tensors":
        return _compressed_tensors(given)
    raise _not_built(f"{method!r} is unknown")


def _fp8(given: Config) -> Quantization:
    """Hugging Face's, vLLM's and AutoFP8's own format."""
    scheme = given.get("activation_scheme")
    if scheme not in ("dynamic", "static"):
        raise _not_built(f"'fp8' with activation_scheme {scheme!r}")
    if given.get("weight_block_size"):
        blocks = "x".join(map(str, given["weight_block_size"]))
        raise _not_built(f"'fp8' with one scale per block (weight_block_size {blocks})")
    for key, built in (("scale_fmt", "float"), ("fmt", "e4m3"), ("expert_dtype", "fp8")):
        if given.get(key, built) not in (built, None):
            raise _not_built(f"'fp8' with {key} {given[key]!r}")
    kv = given.get("kv_cache_scheme")
    has_kv = kv == "static" if isinstance(kv, str | None) else _kv_cache(kv, "fp8")
    return Quantization("fp8", scheme == "static", has_kv)


def _compressed_tensors(given: Config) -> Quantization:
    name = "compressed-tensors"
    groups = given.get("config_groups")
    if not isinstance(groups, Mapping) or not groups:
        raise _not_built(f"'{name}' without config_groups")
    static = False
    for key, group in groups.items():
        where = f"'{name}', {key}"
        if not isinstance(group, Mapping):
            raise _not_built(f"{where}: no object but {group!r}")
        stored = group.get("format") or given.get("format")
        if stored not in _FORMATS:
            raise _not_built(f"{where}: format {stored!r}")
        _check_arguments(group.get("weights"), f"{where}: weights", ("channel", "tensor"))
        inputs = group.get("input_activations")
        if inputs is None:
            raise _not_built(f"{where}: weights alone, with activations in 16 bits")
        _check_arguments(inputs, f"{where}: input_activations", ("token", "tensor"))
        if group.get("output_activations"):
            raise _not_built(f"{where}: output_activations")
        static |= not inputs.get("dynamic")
    for key in ("sparsity_config", "transform_config"):
        part = given.get(key) or {}
        if part and part.get("format", "") != "dense" and any(part.values()):
            raise _not_built(f"'{name}' with {key}")
    return Quantization(name, static, _kv_cache(given.get("kv_cache_scheme"), name))


def _kv_cache(scheme: Any, method: str) -> bool:
    if not scheme:
        return False
    where = f"'{method}', kv_cache_scheme"
    _check_arguments(scheme, where, ("tensor",))
    if scheme.get("dynamic"):
        raise _not_built(f"{where}: dynamic scales")
    return True


def _check_arguments(given: Any, where: str, strategies: tuple[str, ...]) -> None:
    """compressed-tensors' description of one kind of tensor: FP8, symmetric, no groups."""
    if not isinstance(given, Mapping):
        raise _not_built(f"{where}: no object but {given!r}")
    kind, bits = given.get("type", "int"), given.get("num_bits", 8)
    if (kind, bits) != ("float", 8):
        raise _not_built(f"{where} are {kind} with {bits} bits")
    if given.get("strategy") not in strategies:
        raise _not_built(f"{where} have the strategy {given.get('strategy')!r}")
    if not given.get("symmetric", True):
        raise _not_built(f"{where} are not symmetric")


def _not_built(what: str) -> ModelLoadError:
    return ModelLoadError(f"the weights are quantized: quant_method {what}; not built: {_ADVICE}")
