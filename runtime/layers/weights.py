"""WeightReader: hands a model its tensors, checked, and knows at the end what was left over."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch

from rtlang.errors import ModelLoadError
from rtlang.kernels.fp8 import FP8, dequantize
from rtlang.kernels.linear import Weight, pack, pack_fp8

Shape = tuple[int, ...]
#: What one weight's scale may be called; both names multiply.
_WEIGHT_SCALES = ("weight_scale", "weight_scale_inv")
#: Below ``self_attn``; the names that come first are today's.
_K_SCALES = ("k_scale", "attn.k_scale", "k_proj.k_scale", "k_proj.output_scale")
_V_SCALES = ("v_scale", "attn.v_scale", "v_proj.v_scale", "v_proj.output_scale")
_BOTH_SCALES = ("kv_scale", "attn.kv_scale")
_KV_SUFFIXES = tuple(f".self_attn.{n}" for n in (*_K_SCALES, *_V_SCALES, *_BOTH_SCALES))
#: Nobody needs them: old buffers; scales of activations, which are scaled by what they are.
_IGNORED = (
    *("rotary_emb.inv_freq", "masked_bias"),
    *(".input_scale", ".activation_scale", ".q_scale", ".prob_scale"),
    *_KV_SUFFIXES,
)
#: Prefixes of the text part in checkpoints that hold more than it.
_TEXT_PREFIXES = ("language_model.model.", "model.language_model.")
_PLAIN = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


class WeightReader:
    """Tensors by their Hugging Face names. Raises ``ModelLoadError`` that names the tensor.

    Each is copied to ``device`` as it is stored and converted to ``dtype`` there. FP8 weights
    stay FP8 where they are read with ``linear``; with ``quantize``, plain ones become FP8 there
    too, unless the checkpoint has some in FP8: then those that it left alone stay plain.
    """

    def __init__(
        self,
        tensors: Iterable[tuple[str, torch.Tensor]],
        dtype: torch.dtype,
        device: torch.device = torch.device("cpu"),  # noqa: B008  (immutable)
        quantize: bool = False,
    ) -> None:
        self._tensors = {_text_name(name): tensor for name, tensor in tensors}
        self._dtype = dtype
        self._device = device
        self._quantize = quantize and all(t.dtype != FP8 for t in self._tensors.values())
        #: Whether the checkpoint brings scales of an FP8 KV cache.
        self.has_kv_scales = any(name.endswith(_KV_SUFFIXES) for name in self._tensors)

    def take(self, name: str, shape: Shape) -> torch.Tensor:
        """In ``dtype``, whatever it is stored in."""
        tensor = self._stored(name, shape)
        if tensor.dtype == FP8:
            return dequantize(tensor, self._weight_scale(name, shape[0]), self._dtype)
        return tensor.to(self._dtype)

    def fused(self, parts: list[tuple[str, Shape]]) -> torch.Tensor:
        """Several tensors, one under the other."""
        return torch.cat([self.take(name, shape) for name, shape in parts])

    def linear(self, parts: list[tuple[str, Shape]]) -> Weight:
        """Several matrices, one under the other, packed for products; FP8 if all of them are
        stored so (then with their own scales), or if they are to be quantized."""
        stored = [self._tensors.get(name) for name, _ in parts]
        if all(tensor is not None and tensor.dtype == FP8 for tensor in stored):
            values = [self._stored(name, shape) for name, shape in parts]
            scales = [self._weight_scale(name, shape[0]) for name, shape in parts]
            return pack_fp8(_joined(values), _joined(scales), self._dtype)
        return pack(_joined([self.take(*part) for part in parts]), quantize=self._quantize)

    def norm(self, name: str, size: int, offset: float) -> torch.Tensor:
        weight = self.take(name, (size,))
        return weight + offset if offset else weight

    def kv_scales(self, layer_prefix: str) -> tuple[float, float]:
        """(k_scale, v_scale) of a layer such as "model.layers.0"; 1.0 where there is none.

        A stored FP8 key times k_scale is the key.
        """
        at = f"{layer_prefix}.self_attn"
        both = self._number([f"{at}.{name}" for name in _BOTH_SCALES])
        k = self._number([f"{at}.{name}" for name in _K_SCALES]) or both
        v = self._number([f"{at}.{name}" for name in _V_SCALES]) or both
        if (k is None) != (v is None):
            lacks = "v_scale" if v is None else "k_scale"
            raise ModelLoadError(f"the checkpoint has only one KV scale of {at}: it lacks {lacks}")
        return (1.0, 1.0) if k is None or v is None else (k, v)

    def finish(self, *, tied: bool) -> None:
        """Raises for a tensor that no part of the model took."""
        if tied:
            for name in ("weight", *_WEIGHT_SCALES):
                self._tensors.pop(f"lm_head.{name}", None)
        left = [n for n in self._tensors if not n.endswith(_IGNORED) and "vision" not in n
                and "multi_modal_projector" not in n]  # fmt: skip
        if left:
            raise ModelLoadError(f"the checkpoint has tensors that this model has not: {left[:5]}")

    def _stored(self, name: str, shape: Shape) -> torch.Tensor:
        """As it is stored, on the device."""
        tensor = self._tensors.pop(name, None)
        if tensor is None:
            raise ModelLoadError(f"the checkpoint has no tensor {name}")
        if tuple(tensor.shape) != shape:
            raise ModelLoadError(f"{name} has the shape {tuple(tensor.shape)}, not {shape}")
        if tensor.dtype not in _PLAIN and not (tensor.dtype == FP8 and tensor.dim() == 2):
            raise ModelLoadError(f"{name} is stored as {tensor.dtype}, which is not built")
        return tensor.to(self._device)

    def _weight_scale(self, name: str, size: int) -> torch.Tensor:
        """[size] fp32 on the device, of an FP8 weight."""
        names = [f"{name.removesuffix('.weight')}.{ending}" for ending in _WEIGHT_SCALES]
        found = next((n for n in names if n in self._tensors), None)
        if found is None:
            raise ModelLoadError(f"{name} is FP8, but the checkpoint has no {names[0]}")
        scale = self._tensors.pop(found)
        if scale.numel() != 1 and tuple(scale.shape) not in ((size,), (size, 1)):
            raise ModelLoadError(
                f"{found} has the shape {tuple(scale.shape)}: neither one scale nor one for each "
                f"of {size} output channels (scales of blocks are not built)"
            )
        if scale.dtype not in _PLAIN:
            raise ModelLoadError(f"{found} is stored as {scale.dtype}, which is not built")
        scale = scale.float().reshape(-1)
        if not bool(((scale >= 0) & scale.isfinite()).all()):
            raise ModelLoadError(f"{found} has negative or infinite scales")
        return scale.to(self._device).expand(size).contiguous()

    def _number(self, names: list[str]) -> float | None:
        """The only element of the first tensor of these that is there."""
        name = next((n for n in names if n in self._tensors), None)
        if name is None:
            return None
        tensor = self._tensors[name]
        if tensor.numel() != 1:
            raise ModelLoadError(
                f"{name} has the shape {tuple(tensor.shape)}: only one KV scale per layer is built"
            )
        value = float(tensor.item())
        if not (value > 0.0 and math.isfinite(value)):
            raise ModelLoadError(f"{name} is {value}: a KV scale must be positive and finite")
        return value


#: Elements of the largest tensor that dummy weights have alike on every device.
SAME_EVERYWHERE = 1 << 18


class DummyReader(WeightReader):
    """Random weights from a fixed seed, small enough that logits stay finite. Small tensors are
    the same on every device; large ones are made on the device, by its own generator."""

    def __init__(
        self,
        dtype: torch.dtype,
        seed: int = 0,
        device: torch.device = torch.device("cpu"),  # noqa: B008  (immutable)
        quantize: bool = False,
    ) -> None:
        super().__init__([], dtype, device, quantize)
        self._generator = torch.Generator(device).manual_seed(seed)
        self._cpu_generator = torch.Generator().manual_seed(seed)

    def take(self, name: str, shape: Shape) -> torch.Tensor:
        if len(shape) == 1:  # norms and biases
            make = torch.ones if "norm" in name else torch.zeros
            return make(shape, dtype=self._dtype, device=self._device)
        std = shape[-1] ** -0.5
        if math.prod(shape) <= SAME_EVERYWHERE:
            values = torch.empty(shape).normal_(0.0, std, generator=self._cpu_generator)
            return values.to(self._device, self._dtype)
        values = torch.empty(shape, device=self._device)
        return values.normal_(0.0, std, generator=self._generator).to(self._dtype)

    def norm(self, name: str, size: int, offset: float) -> torch.Tensor:
        return self.take(name, (size,))


def _joined(tensors: list[torch.Tensor]) -> torch.Tensor:
    """One below the other; no copy of a single one."""
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors)


def _text_name(name: str) -> str:
    for prefix in _TEXT_PREFIXES:
        if name.startswith(prefix):
            return "model." + name[len(prefix) :]
    return name.removeprefix("language_model.")
