"""What a caller gets of a running request, piece by piece."""

from __future__ import annotations

import dataclasses

from rtlang.runtime.messages import FinishReason, Timings, TokenLogprobs, Usage


@dataclasses.dataclass(slots=True, kw_only=True)
class Chunk:
    """One piece of a stream. Text deltas are final; the last chunk of a request has ``finish``."""

    text: str
    token_ids: list[int]
    reasoning: str = ""  # what a server tells apart from the text: a new piece of it
    index: int = 0  # position of the prompt in its batch
    choice: int = 0  # which of n siblings
    finish: FinishReason | None = None
    usage: Usage | None = None  # with ``finish``; None even so: a server did not tell
    timings: Timings | None = None  # with ``finish``
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs] | None = None
    #: with ``finish``: how many of all generated ids belong to the text before the stop, and the
    #: text that remains of the token the stop cut (not covered by those ids). EOS is not kept.
    kept_ids: int = 0
    kept_text: str = ""
