"""What ``get_meta_info`` gives, under SGLang's keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rtlang.choices import Logprobs
from rtlang.runtime.messages import FinishReason, Usage
from rtlang.runtime.result import GenerateResult
from rtlang.runtime.tokenizer import Tokenizer

#: (log-probability, token id, text of the token or None)
Entry = tuple[float | None, int, str | None]
_COUNTS = (
    "prompt_tokens", "cached_tokens", "computed_tokens", "completion_tokens", "forced_tokens",
)  # fmt: skip


def gen_meta(
    result: GenerateResult,
    usage: Usage | None,
    tokenizer: Tokenizer | None,
    *,
    logprobs: bool,
    with_text: bool,
) -> dict[str, Any]:
    """Of one generation. The counts are None if nobody told the ``usage``. The lists of
    log-probabilities are there if ``logprobs``; the ids unless there is no ``tokenizer``, so that
    there are none; the reasoning if a server told some."""
    counts = {name: None if usage is None else getattr(usage, name) for name in _COUNTS}
    finish = _finish(result.finish_reason, counts["completion_tokens"])
    meta: dict[str, Any] = {"finish_reason": finish, **counts}
    if result.reasoning:
        meta["reasoning"] = result.reasoning
    if tokenizer is not None:
        meta["token_ids"] = list(result.token_ids)
    if logprobs:
        names = tokenizer if with_text else None
        for side, entries in (("input", result.prompt_logprobs), ("output", result.logprobs)):
            found = entries or []
            meta[f"{side}_token_logprobs"] = [_entry(e.logprob, e.token_id, names) for e in found]
            meta[f"{side}_top_logprobs"] = [
                [_entry(logprob, token, names) for token, logprob in e.top] for e in found
            ]
    return meta


def select_meta(options: Sequence[Sequence[int]], logprobs: Logprobs) -> dict[str, Any]:
    """Of one selection: scores of all options, in the order given."""
    return {
        "normalized_prompt_logprobs": [sum(row) / len(row) for row in logprobs],
        "input_token_logprobs": [
            [(logprob, token, None) for logprob, token in zip(row, ids, strict=True)]
            for row, ids in zip(logprobs, options, strict=True)
        ],
        "output_token_logprobs": [[] for _ in options],
    }


def _finish(reason: FinishReason, completion_tokens: int | None) -> dict[str, Any]:
    if reason.type == "length":
        return {"type": "length", "length": completion_tokens, "detail": reason.detail}
    return {"type": reason.type, "matched": reason.matched, "detail": reason.detail}


def _entry(logprob: float | None, token: int, names: Tokenizer | None) -> Entry:
    text = None if names is None else names.token_bytes[token].decode(errors="replace")
    return logprob, token, text
