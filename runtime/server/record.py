"""CallRecord: what is known of one HTTP call's generation, and the seam to whoever counts it."""

from __future__ import annotations

import dataclasses
import time
from typing import Protocol

from rtlang.errors import RtlangError
from rtlang.runtime.chunk import Chunk
from rtlang.runtime.messages import Timings, Usage
from rtlang.runtime.sampling_params import SamplingParams


@dataclasses.dataclass(slots=True, kw_only=True)
class CallRecord:
    """Times are of this process' monotonic clock, in seconds; None: it has not come to that."""

    request_id: str
    route: str  # "/v1/chat/completions", ...
    key: str  # name of the API key, "" without keys
    model: str
    stream: bool
    num_sequences: int  # prompts times n
    received: float
    sent: float | None = None  # checked, tokenized, given to the scheduler
    first_token: float | None = None
    finished: float | None = None
    error: RtlangError | None = None
    usage: Usage = dataclasses.field(default_factory=Usage)  # of all sequences that have ended
    finish_reasons: list[str] = dataclasses.field(default_factory=list)
    timings: list[Timings] = dataclasses.field(default_factory=list)  # likewise, in any order
    params: SamplingParams | None = None  # of the first prompt
    traceparent: str = ""  # headers by which the client's trace goes on
    tracestate: str = ""
    prompt: str = ""  # only where the server shows prompts to operators
    text: str = ""


class Sink(Protocol):
    """Whoever follows calls: metrics, traces, usage rows, logs, the page. Each method is called
    in the event loop and must be quick; what it raises is logged once and harms nobody."""

    def started(self, record: CallRecord) -> None:
        """Given to the scheduler (or refused: then ``ended`` follows at once)."""
        ...

    def tokens(self, record: CallRecord, chunk: Chunk, gap: float | None) -> None:
        """A chunk came, ``gap`` seconds after the one before of the same sequence (None: its
        first)."""
        ...

    def ended(self, record: CallRecord) -> None:
        """All its sequences have ended, and said so (or, the scheduler being stuck, it is taken
        for ended)."""
        ...


def now() -> float:
    return time.monotonic()
