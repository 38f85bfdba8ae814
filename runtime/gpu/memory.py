"""Where the GPU's memory goes: measured, sized, and reported."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator

import torch

from rtlang.errors import ConfigError

logger = logging.getLogger(__name__)

GIB = 2**30
#: What capturing graphs may take, as a share of the device; it is measured afterwards.
GRAPH_SHARE = 0.015


class Ledger:
    """Bytes and seconds of the start, by what they went to. ``device`` None: not a GPU, no bytes
    are measured."""

    def __init__(self, device: torch.device | None) -> None:
        self._device = device
        self.bytes: dict[str, int] = {}
        self.seconds: dict[str, float] = {}
        self._last, self._last_s = self._used(), time.monotonic()

    def note(self, name: str) -> None:
        """What was taken since the last call is for ``name``."""
        if self._device is not None:
            torch.cuda.empty_cache()
        used, now = self._used(), time.monotonic()
        self.bytes[name] = self.bytes.get(name, 0) + used - self._last
        self.seconds[name] = self.seconds.get(name, 0.0) + now - self._last_s
        self._last, self._last_s = used, now

    def report(self) -> None:
        spent = ", ".join(f"{name} {s:.1f}" for name, s in self.seconds.items())
        logger.info("seconds of the start: %s", spent)
        if self._device is None:
            return
        parts = ", ".join(f"{name} {size / GIB:.2f}" for name, size in self.bytes.items())
        free, total = torch.cuda.mem_get_info(self._device)
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
