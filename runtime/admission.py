"""What can be refused before a request is sent: everything that its sender got wrong."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from rtlang.errors import InvalidParameter, InvalidPrompt, PromptTooLong, Unsupported
from rtlang.runtime.executor import ModelInfo
from rtlang.runtime.messages import LogprobOptions
from rtlang.runtime.sampling_params import SamplingParams, check_against_vocab, is_int, is_int64
from rtlang.runtime.stops import compile_stop_regex
from rtlang.runtime.tokenizer import check_text

MAX_TOP_LOGPROBS = 1000


def pack_prompt(ids: Sequence[int], info: ModelInfo) -> bytes:
    """As int32. Raises ``InvalidPrompt`` for an empty prompt or an id outside the vocabulary."""
    if not len(ids):
        raise InvalidPrompt("the prompt is empty")
    # A prompt may be long: no Python loop over the usual one, and no object for each id.
    try:
        packed = np.array(msgspec.convert(ids, list[int]), np.int64)
    except (msgspec.ValidationError, OverflowError):
        return pack_prompt([_plain_id(i, info) for i in ids], info)
    if packed.min() < 0 or packed.max() >= info.vocab_size:
        bad = packed[(packed < 0) | (packed >= info.vocab_size)][0]
        raise InvalidPrompt(f"token id {bad} is outside the vocabulary of {info.vocab_size}")
    return packed.astype(np.int32).tobytes()


def _plain_id(i: Any, info: ModelInfo) -> int:
    if not is_int(i):
        raise InvalidPrompt(f"token ids must be integers, got {i!r}")
    if not 0 <= i < info.vocab_size:
        raise InvalidPrompt(f"token id {i} is outside the vocabulary of {info.vocab_size}")
    return int(i)


def check_length(prompt_len: int, params: SamplingParams, limits: dict[str, Any]) -> None:
    """Raises ``PromptTooLong`` for a prompt that can never run, naming context and pool."""
    room = 0 if params.max_new_tokens == 0 else 1
    if prompt_len + room > limits["limit_len"]:
        raise PromptTooLong(
            f"the prompt has {prompt_len} tokens; with room for an answer at most "
            f"{limits['limit_len'] - room} fit (context {limits['context_length']}, "
            f"KV pool {limits['pool']} tokens)",
            limit=limits["limit_len"] - room,
        )


def check_params(params: SamplingParams, info: ModelInfo, *, has_tokenizer: bool) -> None:
    """What ``SamplingParams`` could not check without knowing the model."""
    check_against_vocab(params, info.vocab_size)
    if (params.stop or params.stop_regex) and not has_tokenizer:
        raise Unsupported("stop strings need a tokenizer, and this model has none", param="stop")
    if params.grammar is not None and not has_tokenizer:
        raise Unsupported(
            "a constraint needs a tokenizer, and this model has none", param="grammar"
        )
    for pattern in params.stop_regex:
        compile_stop_regex(pattern)


def check_call(*, priority: int, timeout_s: float | None, namespace: str) -> None:
    """What travels beside prompt and parameters; the scheduler could not read another type."""
    if not is_int64(priority):
        raise InvalidParameter(f"priority must be an int64, got {priority!r}", param="priority")
    if timeout_s is not None:
        number = isinstance(timeout_s, int | float) and not isinstance(timeout_s, bool)
        if not number or not 0 < timeout_s < math.inf:
            raise InvalidParameter(
                f"timeout must be a positive number of seconds, got {timeout_s!r}", param="timeout"
            )
    check_text(namespace)


def check_logprobs(options: LogprobOptions, prompt_len: int, info: ModelInfo) -> None:
    for name, value in (("logprob_start_len", options.start_len),
                        ("top_logprobs_num", options.top_num),
                        *(("token_ids_logprob", i) for i in options.token_ids)):  # fmt: skip
        if not is_int(value):
            raise InvalidParameter(f"{name} takes integers, got {value!r}", param=name)
    if not -1 <= options.start_len <= prompt_len:
        raise InvalidParameter(
            f"logprob_start_len must be in [-1, {prompt_len}], got {options.start_len}",
            param="logprob_start_len",
        )
    if not 0 <= options.top_num <= min(MAX_TOP_LOGPROBS, info.vocab_size):
        raise InvalidParameter(
            f"top_logprobs_num must be in [0, {MAX_TOP_LOGPROBS}], got {options.top_num}",
            param="top_logprobs_num",
        )
    for i in options.token_ids:
        if not 0 <= i < info.vocab_size:
            raise InvalidParameter(f"token_ids_logprob: no token id {i}", param="token_ids_logprob")
