"""Checks at a kernel's border: the wrong argument is named, the body stays free of them."""

from __future__ import annotations

import torch


def check(
    tensor: torch.Tensor,
    name: str,
    shape: tuple[int | None, ...],
    dtype: torch.dtype | None = None,
) -> None:
    """Raises ``ValueError`` unless ``tensor`` has this shape (None: any size) and dtype."""
    fits = tensor.dim() == len(shape) and all(
        want is None or want == got for want, got in zip(shape, tensor.shape, strict=True)
    )
    if not fits or (dtype is not None and tensor.dtype != dtype):
        wanted = "x".join("?" if s is None else str(s) for s in shape)
        raise ValueError(
            f"{name}: expected [{wanted}] {dtype or 'any dtype'}, "
            f"got {list(tensor.shape)} {tensor.dtype}"
        )
