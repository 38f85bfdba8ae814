"""WeightReader: hands a model its tensors, checked, and knows at the end what was left over."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from rtlang.errors import ModelLoadError

Shape = tuple[int, ...]
#: Buffers that old checkpoints carry and nobody needs.
_IGNORED = ("rotary_emb.inv_freq", "masked_bias")
#: Prefixes of the text part in checkpoints that hold more than it.
_TEXT_PREFIXES = ("language_model.model.", "model.language_model.")


class WeightReader:
    """Tensors by their Hugging Face names. Raises ``ModelLoadError`` that names the tensor."""

    def __init__(self, tensors: Iterable[tuple[str, torch.Tensor]], dtype: torch.dtype) -> None:
        self._tensors = {_text_name(name): tensor for name, tensor in tensors}
        self._dtype = dtype

    def take(self, name: str, shape: Shape) -> torch.Tensor:
        tensor = self._tensors.pop(name, None)
        if tensor is None:
            raise ModelLoadError(f"the checkpoint has no tensor {name}")
        if tuple(tensor.shape) != shape:
            raise ModelLoadError(f"{name} has the shape {tuple(tensor.shape)}, not {shape}")
        return tensor.to(self._dtype)

    def fused(self, parts: list[tuple[str, Shape]]) -> torch.Tensor:
        """Several tensors, one under the other."""
        return torch.cat([self.take(name, shape) for name, shape in parts])

    def norm(self, name: str, size: int, offset: float) -> torch.Tensor:
        weight = self.take(name, (size,))
        return weight + offset if offset else weight

    def finish(self, *, tied: bool) -> None:
        """Raises for a tensor that no part of the model took."""
        if tied:
            self._tensors.pop("lm_head.weight", None)
        left = [n for n in self._tensors if not n.endswith(_IGNORED) and "vision" not in n
                and "multi_modal_projector" not in n]  # fmt: skip
        if left:
            raise ModelLoadError(f"the checkpoint has tensors that this model has not: {left[:5]}")


class DummyReader(WeightReader):
    """Random weights from a fixed seed, small enough that logits stay finite."""

    def __init__(self, dtype: torch.dtype, seed: int = 0) -> None:
        super().__init__([], dtype)
        self._generator = torch.Generator().manual_seed(seed)

    def take(self, name: str, shape: Shape) -> torch.Tensor:
        if len(shape) == 1:  # norms and biases
            return (torch.ones if "norm" in name else torch.zeros)(shape, dtype=self._dtype)
        std = shape[-1] ** -0.5
        values = torch.empty(shape).normal_(0.0, std, generator=self._generator)
        return values.to(self._dtype)

    def norm(self, name: str, size: int, offset: float) -> torch.Tensor:
        return self.take(name, (size,))


def _text_name(name: str) -> str:
    for prefix in _TEXT_PREFIXES:
        if name.startswith(prefix):
            return "model." + name[len(prefix) :]
    return name.removeprefix("language_model.")
