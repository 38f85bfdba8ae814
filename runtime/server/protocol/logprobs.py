"""Log-probabilities in the two shapes of OpenAI's endpoints: chat's and completion's."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any

from rtlang.errors import InvalidParameter
from rtlang.runtime.messages import FinishReason, LogprobOptions, TokenLogprobs
from rtlang.runtime.sampling_params import SamplingParams
from rtlang.runtime.tokenizer import Tokenizer

#: The most alternatives of a position.
MAX_TOP = 20


def logprob_options(
    *, output_top: int | None, prompt_top: int | None = None, prompt_param: str = "prompt_logprobs"
) -> LogprobOptions | None:
    """For so many alternatives (0: of the token alone, None: no log-probabilities at all) of each
    generated token, and of each prompt token. Raises ``InvalidParameter``."""
    for name, value in (("logprobs", output_top), (prompt_param, prompt_top)):
        if value is not None and not 0 <= value <= MAX_TOP:
            raise InvalidParameter(f"{name} must be in [0, {MAX_TOP}], got {value}", param=name)
    if output_top is None and prompt_top is None:
        return None
    start = -1 if prompt_top is None else 0
    return LogprobOptions(start_len=start, top_num=max(output_top or 0, prompt_top or 0))


def num_shown(count: int, finish: FinishReason | None, params: SamplingParams) -> int:
    """How many of the last ``count`` tokens belong to the answer: not the one that ended it."""
    by_token = finish is not None and finish.detail in ("eos", "token")
    return count - 1 if by_token and not params.no_stop_trim and count else count


def chat_entries(
    tokenizer: Tokenizer, entries: Sequence[TokenLogprobs], top_num: int
) -> list[dict[str, Any]]:
    return [
        {
            **_chat_token(tokenizer, entry.token_id, entry.logprob),
            "top_logprobs": [_chat_token(tokenizer, i, v) for i, v in entry.top[:top_num]],
        }
        for entry in entries
    ]


def _chat_token(tokenizer: Tokenizer, token_id: int, logprob: float | None) -> dict[str, Any]:
    data = _bytes(tokenizer, token_id)
    return {"token": data.decode(errors="replace"), "bytes": list(data), "logprob": logprob}


def _bytes(tokenizer: Tokenizer, token_id: int) -> bytes:
    """Ids that only pad the vocabulary have none."""
    table = tokenizer.token_bytes
    return table[token_id] if token_id < len(table) else b""


def prompt_entries(
    tokenizer: Tokenizer, entries: Sequence[TokenLogprobs], top_num: int
) -> list[dict[str, Any] | None]:
    """vLLM's ``prompt_logprobs``: null for the first token, then id -> what is known of it. The
    rank of a token that is not among the best is not known."""
    found: list[dict[str, Any] | None] = []
    for entry in entries:
        if entry.logprob is None:
            found.append(None)
            continue
        best = {i: (rank, value) for rank, (i, value) in enumerate(entry.top[:top_num], 1)}
        known = {entry.token_id: best.get(entry.token_id, (None, entry.logprob)), **best}
        found.append(
            {
                str(i): {
                    "logprob": value,
                    "rank": rank,
                    "decoded_token": _bytes(tokenizer, i).decode(errors="replace"),
                }
                for i, (rank, value) in known.items()
            }
        )
    return found


class CompletionLogprobs:
    """The columns of one choice of ``/v1/completions``, piece by piece. Offsets count characters
    of the choice's own text (the prompt, where it is echoed, included)."""

    def __init__(self, tokenizer: Tokenizer, top_num: int, *, skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._top_num = top_num
        self._hidden = tokenizer.special_ids if skip_special_tokens else frozenset[int]()
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._offset = 0

    def columns(self, entries: Sequence[TokenLogprobs]) -> dict[str, list[Any]]:
        """Of the tokens that come next."""
        offsets: list[int] = []
        for entry in entries:
            offsets.append(self._offset)
            if entry.token_id not in self._hidden:
                data = _bytes(self._tokenizer, entry.token_id)
                self._offset += len(self._decoder.decode(data))
        return {
            "tokens": [self._name(entry.token_id) for entry in entries],
            "token_logprobs": [entry.logprob for entry in entries],
            "top_logprobs": [self._top(entry) for entry in entries],
            "text_offset": offsets,
        }

    def _top(self, entry: TokenLogprobs) -> dict[str, float] | None:
        """The best ones, and the token itself."""
        if entry.logprob is None:
            return None
        found = {self._name(i): value for i, value in entry.top[: self._top_num]}
        found.setdefault(self._name(entry.token_id), entry.logprob)
        return found

    def _name(self, token_id: int) -> str:
        """Half a character has no text: then it is the bytes."""
        data = _bytes(self._tokenizer, token_id)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
