"""Copies between the host and the device that nobody waits for, and the pinned memory they need."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from rtlang.runtime.batch import Int32s

#: Host buffers used in turn: of a step that may still be copied, or was not read yet, of one that
#: is prepared behind it, and of the one that is being written.
STAGES = 3


def pinned_ints(shape: int | Sequence[int], device: torch.device) -> torch.Tensor:
    """Zeros on the host, int32, from which (and to which) ``device`` copies."""
    return torch.zeros(shape, dtype=torch.int32, pin_memory=device.type == "cuda")


class PrefixCopy:
    """The first elements of one tensor to another. Their views are kept, which cost more to make
    than the copy to launch: for few lengths."""

    def __init__(self, target: torch.Tensor, source: torch.Tensor) -> None:
        self._tensors = target, source
        self._views: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def __call__(self, count: int) -> None:
        views = self._views.get(count)
        if views is None:
            target, source = self._tensors
            views = self._views[count] = target[:count], source[:count]
        views[0].copy_(views[1], non_blocking=True)


class Stages:
    """``STAGES`` host buffers for one on the device, int32.

    hosts  their memory, by turn
    """

    def __init__(self, on_device: torch.Tensor, *, to_device: bool) -> None:
        pinned = [pinned_ints(on_device.shape, on_device.device) for _ in range(STAGES)]
        self.hosts: list[Int32s] = [stage.numpy() for stage in pinned]
        pairs = [(on_device, stage) if to_device else (stage, on_device) for stage in pinned]
        self._copies = [PrefixCopy(*pair) for pair in pairs]
        self._turn = 0

    def take(self) -> int:
        """The next turn. What had it last must be over."""
        self._turn = (self._turn + 1) % STAGES
        return self._turn

    def copy(self, turn: int, count: int) -> None:
        """The first ``count`` ints, the way that was said."""
        self._copies[turn](count)
