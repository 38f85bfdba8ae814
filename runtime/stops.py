"""Stop strings and stop regexes, on the generated text as it grows.

The match that *ends* first wins (of two that end together, the longer): so the result does not
depend on how the text was cut into tokens. A regex is tried after each token.
"""

from __future__ import annotations

import codecs

import regex

from rtlang.errors import EngineError, InvalidParameter
from rtlang.runtime.messages import FinishReason
from rtlang.runtime.sampling_params import SamplingParams
from rtlang.runtime.tokenizer import Tokenizer

#: One look of a stop regex at the text may take so long.
REGEX_TIMEOUT_S = 0.05


def compile_stop_regex(pattern: str) -> regex.Pattern[str]:
    """Raises ``InvalidParameter`` for a pattern that is none, or that matches the empty text."""
    try:
        compiled = regex.compile(pattern)
    except regex.error as error:
        raise InvalidParameter(f"stop_regex {pattern!r}: {error}", param="stop_regex") from error
    if compiled.fullmatch(""):
        raise InvalidParameter(f"stop_regex {pattern!r} matches the empty text", param="stop_regex")
    return compiled


class StopMatcher:
    """Feeds on text, releases what can be no part of a stop any more. Cost O(total)."""

    def __init__(self, strings: tuple[str, ...] = (), patterns: tuple[str, ...] = ()) -> None:
        self._strings = strings
        self._patterns = [compile_stop_regex(p) for p in patterns]
        self._held = ""  # unreleased text
        self._released = 0  # characters released
        self.matched: str | None = None
        self.detail = ""
        self.start = -1  # character offsets of the match in all generated text
        self.end = -1

    def feed(self, text: str, *, match: bool = True) -> str:
        """Text that is now safe to show. After a match: what stood before it, then nothing.

        ``match=False`` (before ``min_new_tokens``): all is released, and no later match may
        start in it.
        """
        if self.matched is not None:
            return ""
        text = self._held + text
        if match and self._search(text):
            safe = self.start - self._released
            self._released, self._held = self.start, ""
            return text[:safe]
        safe = len(text) - (self._hold_len(text) if match else 0)
        self._held = text[safe:]
        self._released += safe
        return text[:safe]

    @property
    def released(self) -> int:
        """Characters released; no match can start before it."""
        return self._released

    def _search(self, text: str) -> bool:
        found: list[tuple[int, int, str, str]] = []  # (end, start, stop, kind): least wins
        for stop in self._strings:
            at = text.find(stop)
            if at >= 0:
                found.append((at + len(stop), at, stop, "string"))
        for pattern in self._patterns:
            match = self._try(pattern, text, partial=False)
            if match is not None:
                found.append((match.end(), match.start(), pattern.pattern, "regex"))
        if not found:
            return False
        end, start, self.matched, self.detail = min(found)
        self.start, self.end = self._released + start, self._released + end
        return True

    def _hold_len(self, text: str) -> int:
        """Length of the longest end of ``text`` that may still become a stop."""
        hold = 0
        for stop in self._strings:
            for length in range(min(len(stop) - 1, len(text)), hold, -1):
                if text.endswith(stop[:length]):
                    hold = length
                    break
        for pattern in self._patterns:
            match = self._try(pattern, text, partial=True)
            if match is not None:
                hold = max(hold, len(text) - match.start())
        return hold

    def _try(
        self, pattern: regex.Pattern[str], text: str, *, partial: bool
    ) -> regex.Match[str] | None:
        try:
            return pattern.search(text, partial=partial, timeout=REGEX_TIMEOUT_S)
        except TimeoutError as error:
            raise EngineError(
                f"stop_regex {pattern.pattern!r} takes more than {REGEX_TIMEOUT_S} s a token"
            ) from error


class TokenText:
    """Ids to text, as the bytes become whole characters; invalid bytes become U+FFFD."""

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool) -> None:
        self._bytes = tokenizer.token_bytes
        self._skip = tokenizer.special_ids if skip_special_tokens else frozenset()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    @property
    def pending(self) -> bool:
        """Whether the bytes so far end inside a character."""
        return bool(self._decoder.getstate()[0])

    def feed(self, token: int) -> str:
        if token in self._skip or token >= len(self._bytes):
            return ""  # control tokens, and ids that only pad the vocabulary
        return self._decoder.decode(self._bytes[token])

    def flush(self) -> str:
        return self._decoder.decode(b"", final=True)


class StopChecker:
    """The scheduler's side: does the generated text stop here? The detokenizer cuts it."""

    def __init__(self, tokenizer: Tokenizer, params: SamplingParams) -> None:
        self._text = TokenText(tokenizer, skip_special_tokens=params.skip_special_tokens)
        self._matcher = StopMatcher(params.stop, params.stop_regex)
        self._min_new_tokens = params.min_new_tokens

    def match_token(self, token: int, output_len: int) -> FinishReason | None:
        """``output_len``: generated tokens, this one included."""
        matcher = self._matcher
        matcher.feed(self._text.feed(token), match=output_len > self._min_new_tokens)
        if matcher.matched is None:
            return None
        return FinishReason("stop", matcher.matched, matcher.detail)
