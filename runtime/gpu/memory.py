"""Where the GPU's memory goes: measured, sized, and reported."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

import torch

from rtlang.errors import ConfigError

logger = logging.getLogger(__name__)

GIB = 2**30
#: What capturing graphs may take, as a share of the device; it is measured afterwards.
GRAPH_SHARE = 0.015


class MemoryLedger:
    """Bytes by what they are for. ``device`` None: not a GPU, nothing is measured."""

    def __init__(self, device: torch.device | None) -> None:
        self._device = device
        self.bytes: dict[str, int] = {}
        self._last = self._used()

    def note(self, name: str) -> None:
        """What was taken since the last call is for ``name``."""
        used = self._used()
        self.bytes[name] = self.bytes.get(name, 0) + used - self._last
        self._last = used

    def report(self) -> None:
        if self._device is None:
            return
        total = torch.cuda.mem_get_info(self._device)[1]
        parts = ", ".join(f"{name} {size / GIB:.2f}" for name, size in self.bytes.items())
        free = torch.cuda.mem_get_info(self._device)[0]
        logger.info("GPU memory in GiB: %s; free %.2f of %.2f", parts, free / GIB, total / GIB)

    def _used(self) -> int:
        if self._device is None:
            return 0
        free, total = torch.cuda.mem_get_info(self._device)
        return total - free


@contextlib.contextmanager
def out_of_memory_is_explained(doing: str, hint: str) -> Iterator[None]:
    """Out of GPU memory becomes a ``ConfigError`` that says which knob to turn."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise ConfigError(f"out of GPU memory while {doing}: {hint} ({error})") from error
