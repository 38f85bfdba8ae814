"""StepProfiler: a torch profiler trace of some steps, for chrome://tracing or Perfetto."""

from __future__ import annotations

import torch
from torch.profiler import ProfilerActivity, profile


class StepProfiler:
    """Records from its start for ``num_steps`` steps, then writes ``path``."""

    def __init__(self, path: str, num_steps: int) -> None:
        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(ProfilerActivity.CUDA)
        self._path = path
        self._left = num_steps
        self._profile = profile(activities=activities)
        self._profile.start()

    def step(self) -> bool:
        """A step was launched. True: it was the last one, and the trace is written."""
        self._left -= 1
        if self._left > 0:
            return False
        self.stop()
        return True

    def stop(self) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self._profile.stop()
        self._profile.export_chrome_trace(self._path)
