"""Detokenizer: one request's ids to text deltas that are final once given."""

from __future__ import annotations

import bisect
from collections.abc import Sequence

from rtlang.runtime.messages import FinishReason
from rtlang.runtime.sampling_params import SamplingParams
from rtlang.runtime.stops import StopMatcher, TokenText, hidden_stops
from rtlang.runtime.tokenizer import Tokenizer

#: So many token borders are remembered before those that no stop can reach any more are dropped.
MAX_BORDERS = 256


class Detokenizer:
    """Holds back only an incomplete character, or what may still become a stop. O(total).

    A stop is left out of the text unless ``no_stop_trim``: a string or regex from its first
    character on, a stop token or EOS whole. After the end, ``kept_ids`` generated ids lie whole
    before the cut, and ``kept_text`` is the text between them and the cut (of the token that the
    stop cut); without a stop, all ids are kept.

    ``spaces_between_special_tokens`` needs no work here: only slow tokenizers insert such spaces,
    and we read fast ones alone, so False always holds and True means the same.
    """

    def __init__(self, tokenizer: Tokenizer, params: SamplingParams) -> None:
        self._text = TokenText(tokenizer, skip_special_tokens=params.skip_special_tokens)
        self._matcher = StopMatcher(params.stop, params.stop_regex)
        self._hidden_stops = hidden_stops(tokenizer, params)
        self._keep_stop = params.no_stop_trim
        self._min_new_tokens = params.min_new_tokens
        self._num_ids = 0
        self._num_chars = 0  # decoded characters, shown or not
        # Borders: after so many ids, so many characters, and no byte of a further one.
        self._border_ids = [0]
        self._border_chars = [0]
        self._tail: list[str] = []  # text since the first border
        self._max_borders = MAX_BORDERS
        self.kept_ids = 0
        self.kept_text = ""

    def feed(self, ids: Sequence[int], finish: FinishReason | None = None) -> str:
        """The text that ``ids`` add. With ``finish`` nothing is held back any more.

        Raises ``EngineError`` when a stop regex takes too long.
        """
        by_token = finish is not None and bool(ids) and self._ends_by_token(ids[-1], finish)
        text_ids = ids[:-1] if by_token else ids
        parts = [self._push(i, match=True) for i in text_ids]
        if by_token and self._keep_stop:
            parts.append(self._push(ids[-1], match=False))
        if finish is not None:
            by_text = finish.detail in ("string", "regex") and not by_token
            assert by_text == (self._matcher.matched is not None), (finish, self._matcher.matched)
            parts.append(self._end())
        elif len(self._border_ids) > self._max_borders:
            self._forget_borders()
        return "".join(parts)

    def _ends_by_token(self, token: int, finish: FinishReason) -> bool:
        """Whether the last token is itself the stop: EOS, a stop id, or a hidden stop string."""
        if finish.detail in ("eos", "token"):
            return True
        hidden = self._hidden_stops.get(token)
        return hidden is not None and finish.matched == hidden and self._matcher.matched is None

    def _push(self, token: int, *, match: bool) -> str:
        if self._matcher.matched is not None:
            return ""
        text = self._text.feed(token)
        self._num_ids += 1
        self._num_chars += len(text)
        self._tail.append(text)
        safe = self._matcher.feed(text, match=match and self._num_ids > self._min_new_tokens)
        if not self._text.pending:
            self._border_ids.append(self._num_ids)
            self._border_chars.append(self._num_chars)
        return safe

    def _end(self) -> str:
        matcher = self._matcher
        if matcher.matched is None:
            self.kept_ids = self._num_ids
            return matcher.feed(self._text.flush(), match=False)
        cut = matcher.end if self._keep_stop else matcher.start
        self.kept_ids, self.kept_text = self._split(cut)
        if not self._keep_stop:
            return ""
        tail, base = "".join(self._tail), self._border_chars[0]
        return tail[matcher.start - base : cut - base]

    def _split(self, cut: int) -> tuple[int, str]:
        """(ids that lie before the character offset ``cut``, text between them and it)."""
        at = bisect.bisect_right(self._border_chars, cut) - 1
        tail, base = "".join(self._tail), self._border_chars[0]
        return self._border_ids[at], tail[self._border_chars[at] - base : cut - base]

    def _forget_borders(self) -> None:
        """No cut comes before the released text: keep the last border before its end."""
        at = bisect.bisect_right(self._border_chars, self._matcher.released) - 1
        tail = "".join(self._tail)[self._border_chars[at] - self._border_chars[0] :]
        self._tail = [tail]
        del self._border_ids[:at], self._border_chars[:at]
        self._max_borders = max(MAX_BORDERS, 2 * len(self._border_ids))
