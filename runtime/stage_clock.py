"""StageClock: how long a request has been in each stage, by the scheduler's clock."""

from __future__ import annotations

import dataclasses

import msgspec

from rtlang.runtime.messages import Timings


@dataclasses.dataclass(slots=True)
class StageClock:
    """A request is in one stage at a time, from its arrival to its end: the stages add up to its
    whole time at the scheduler. All times in seconds."""

    arrived: float = 0.0
    since: float = 0.0  # when the stage began that it is in
    stage: str = "queued_s"  # the field of ``Timings`` that its time goes to
    awaits_token: bool = True  # ``token`` is to be told of the next one
    timings: Timings = dataclasses.field(default_factory=Timings)

    def arrive(self, now: float, *, compiling: bool) -> None:
        self.arrived = self.since = now
        self.stage = "compiling_s" if compiling else "queued_s"

    def queue(self, now: float) -> None:
        """Into the queue: its constraint is compiled, or its memory was taken away."""
        self._enter("queued_s", now)

    def prefill(self, now: float) -> None:
        """Out of the queue; the stage lasts until the next token is known."""
        self._enter("prefill_s", now)
        self.awaits_token = True

    def token(self, now: float) -> None:
        """The first token of all, or the first one after a prefill. (A token that a constraint
        forces can be known in the queue, and leaves it there.)"""
        self.awaits_token = False
        if self.timings.first_token_s is None:
            self.timings.first_token_s = max(0.0, now - self.arrived)
        if self.stage == "prefill_s":
            self._enter("decode_s", now)

    def read(self, now: float) -> Timings:
        """All stages so far, with the one that it is in until ``now``."""
        self._enter(self.stage, now)
        return msgspec.structs.replace(self.timings)

    def _enter(self, stage: str, now: float) -> None:
        spent = max(0.0, now - self.since)  # a step's time of its end serves all its requests
        setattr(self.timings, self.stage, getattr(self.timings, self.stage) + spent)
        self.stage, self.since = stage, max(now, self.since)
