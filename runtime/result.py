"""GenerateResult: all of one generation, put together from its chunks."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from rtlang.runtime.chunk import Chunk
from rtlang.runtime.messages import FinishReason, TokenLogprobs, Usage


@dataclasses.dataclass(slots=True, kw_only=True)
class GenerateResult:
    """``token_ids``: all generated ids, EOS or stop token included. ``text``: what they say,
    without the stop. ``logprobs``: one per generated id, if asked; ``prompt_logprobs``: one per
    prompt position from ``logprob_start_len`` on, if asked (the very first token has None).
    ``reasoning``: what a server told apart from the text."""

    text: str
    token_ids: list[int]
    finish_reason: FinishReason
    usage: Usage
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs] | None = None
    index: int = 0
    choice: int = 0
    kept_ids: int = 0
    kept_text: str = ""
    reasoning: str = ""


def collect(chunks: Sequence[Chunk]) -> GenerateResult:
    """Join one request's chunks, which are complete and in order."""
    last = chunks[-1]
    assert last.finish is not None and last.usage is not None, "the request has not ended"
    logprobs = [entry for c in chunks for entry in c.logprobs or ()]
    prompt_logprobs = [entry for c in chunks for entry in c.prompt_logprobs or ()]
    return GenerateResult(
        text="".join(c.text for c in chunks),
        token_ids=[i for c in chunks for i in c.token_ids],
        finish_reason=last.finish,
        usage=last.usage,
        logprobs=logprobs if any(c.logprobs is not None for c in chunks) else None,
        prompt_logprobs=prompt_logprobs or None,
        index=last.index,
        choice=last.choice,
        kept_ids=last.kept_ids,
        kept_text=last.kept_text,
        reasoning="".join(c.reasoning for c in chunks),
    )
