"""Detokenizer: one request's ids to text deltas that are final once given."""

from __future__ import annotations

import bisect
from collections.abc import Sequence

from rtlang.runtime.messages import FinishReason
from rtlang.runtime.sampling_params import SamplingParams
from rtlang.runtime.stops import StopMatcher, TokenText
from rtlang.runtime.tokenizer import Tokenizer


class Detokenizer:
    """Holds back only an incomplete character, or what may still become a stop. O(total).

    After the end, ``kept_ids`` generated ids lie whole before the stop, and ``kept_text`` is what
    remains of the text before it (the start of a token that the stop cut).
    """

    def __init__(self, tokenizer: Tokenizer, params: SamplingParams) -> None:
        self._text = TokenText(tokenizer, skip_special_tokens=params.skip_special_tokens)
        self._matcher = StopMatcher(params.stop, params.stop_regex)
        self._keep_stop = params.no_stop_trim
        self._min_new_tokens = params.min_new_tokens
        self._num_ids = 0
        self._num_chars = 0  # decoded characters
        # Borders: after so many ids, so many characters, and no byte of a further one.
        self._border_ids = [0]
        self._border_chars = [0]
        self._tail = ""  # text since the last border that the matcher has not passed
        self.kept_ids = 0
        self.kept_text = ""

    def feed(self, ids: Sequence[int], finish: FinishReason | None = None) -> str:
        """The text that ``ids`` add. With ``finish`` nothing is held back any more."""
        delta = ""
        ended_by_token = finish is not None and finish.detail in ("eos", "token")
        shown = ids[:-1] if ended_by_token and not self._keep_stop else ids
        decoded = ""
        for token in shown:
            text = self._text.feed(token)
            decoded += text
            self._num_ids += 1
            self._num_chars += len(text)
            delta += self._matcher.feed(text, match=self._num_ids > self._min_new_tokens)
            if self._matcher.matched is not None:
                break
            if not self._text.pending:
                self._border_ids.append(self._num_ids)
                self._border_chars.append(self._num_chars)
        self._tail += decoded
        if finish is not None:
            delta += self._end()
        elif len(self._border_ids) > 256 and self._matcher.matched is None:
            self._forget_borders()
        return delta

    def _end(self) -> str:
        matcher = self._matcher
        if matcher.matched is None:
            rest = matcher.feed(self._text.flush(), match=False)
            self.kept_ids = self._num_ids
            return rest
        cut = matcher.end if self._keep_stop else matcher.start
        at = bisect.bisect_right(self._border_chars, cut) - 1
        self.kept_ids = self._border_ids[at]
        base = self._num_chars - len(self._tail)
        self.kept_text = self._tail[self._border_chars[at] - base : cut - base]
        return self._tail[matcher.start - base : cut - base]

    def _forget_borders(self) -> None:
        """Borders before the released text can be no cut any more; keep the last of them."""
        at = bisect.bisect_right(self._border_chars, self._matcher.released) - 1
        base = self._num_chars - len(self._tail)
        self._tail = self._tail[self._border_chars[at] - base :]
        del self._border_ids[:at], self._border_chars[:at]
