"""StepProfiler: a torch profiler trace of some steps, for chrome://tracing or Perfetto."""

from __future__ import annotations

import torch
from torch.profiler import ProfilerActivity, profile


class StepProfiler:
    """Records from its start for ``num_steps`` steps, or until it is finished, into ``path``."""

    def __init__(self, path: str, num_steps: int) -> None:
        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(ProfilerActivity.CUDA)
        self.path = path
        self.num_recorded = 0
        self._num_steps = num_steps
        self._recording = True
        self._profile = profile(activities=activities, acc_events=True)
        self._profile.start()

    def step(self) -> None:
        """A step was launched."""
        if self._recording:
            self.num_recorded += 1
            if self.num_recorded == self._num_steps:
                self._stop()

    def finish(self) -> int:
        """Write the trace; returns the number of steps in it."""
        if self._recording:
            self._stop()
        self._profile.export_chrome_trace(self.path)
        return self.num_recorded

    def _stop(self) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self._profile.stop()
        self._recording = False
