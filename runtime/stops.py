"""Stop strings and stop regexes, on the generated text as it grows.

The match that *ends* first wins, of two that end together the one that starts first; so the
result does not depend on how the text was cut into tokens, and nothing is generated past a stop.
A regex is asked after every character, as if the text ended there: ``$`` and a negative
look-ahead are judged by what is known then.
"""

from __future__ import annotations

import codecs
import re
import time

import regex

from rtlang.errors import EngineError, InvalidParameter
from rtlang.runtime.messages import FinishReason
from rtlang.runtime.sampling_params import SamplingParams
from rtlang.runtime.stop_trie import StopTrie
from rtlang.runtime.tokenizer import Tokenizer

#: CPU seconds that the stop regexes of one request may take for one token.
REGEX_TIMEOUT_S = 0.05
#: A regex match may be so many characters long; what waits longer for its end is released.
MAX_REGEX_MATCH_LEN = 2048
#: Released characters that look-behinds and anchors of a regex still see.
REGEX_CONTEXT_LEN = 256
#: Counted repetitions are written out when a pattern is compiled: its parts, at the most.
MAX_REGEX_SIZE = 50_000
#: A count, behind what it repeats.
_COUNT = re.compile(r"(.?)\{(\d*)(?:,(\d*))?\}", re.DOTALL)
#: With it, a count could be written in pieces.
_VERBOSE = re.compile(r"\(\?[A-Za-z0-9]*x")
#: ``\\K`` (not an escaped backslash before a K): what may be released could not be told.
_MOVES_START = re.compile(r"(?<!\\)(?:\\\\)*\\K")


def compile_stop_regex(pattern: str) -> regex.Pattern[str]:
    """Raises ``InvalidParameter`` for a pattern that is none, that matches the empty text, or that
    is too large: compiling it cannot be interrupted."""
    if _VERBOSE.search(pattern) or _size(pattern) > MAX_REGEX_SIZE:
        raise InvalidParameter(
            f"stop_regex {pattern!r}: (?x), or repetitions that large, are not supported",
            param="stop_regex",
        )
    try:
        compiled = regex.compile(pattern)
    except (regex.error, OverflowError, RecursionError) as error:
        raise InvalidParameter(f"stop_regex {pattern!r}: {error}", param="stop_regex") from error
    if compiled.flags & regex.REVERSE or _MOVES_START.search(pattern):
        raise InvalidParameter(
            f"stop_regex {pattern!r}: (?r) and \\K are not supported", param="stop_regex"
        )
    if compiled.fullmatch(""):
        raise InvalidParameter(f"stop_regex {pattern!r} matches the empty text", param="stop_regex")
    return compiled


def _size(pattern: str) -> int:
    """No less than the parts that it is compiled to. A count behind a group multiplies all."""
    single, factor = len(pattern), 1
    for before, low, high in _COUNT.findall(pattern):
        count = max(int(low or 0), int(high or 0), 1)
        if before in ")}?+*":
            factor *= count
        else:
            single += count
    return factor * single


class StopMatcher:
    """Feeds on text, releases what can be no part of a stop any more.

    Strings cost O(total) and hold back exactly the longest end of the text that is a proper prefix
    of one. A regex costs one search a character, in a window of bounded length; it holds back
    from the start of its leftmost partial match. ``matched`` is the stop string or pattern, or
    None; ``start`` and ``end`` are its offsets in characters of all text that was fed.
    """

    def __init__(self, strings: tuple[str, ...] = (), patterns: tuple[str, ...] = ()) -> None:
        self._trie = StopTrie(strings)
        self._state = self._trie.ROOT
        self._patterns = [compile_stop_regex(p) for p in patterns]
        self._window = ""  # context of the regexes, then what is held back
        self._window_start = 0  # offset of the window's first character
        self.released = 0  # characters released; no match can start before it
        self.matched: str | None = None
        self.detail = ""  # "string" or "regex"
        self.start = -1
        self.end = -1

    def feed(self, text: str, *, match: bool = True) -> str:
        """Text that is now safe to show. After a match: what stood before it, then nothing.

        ``match=False`` (before ``min_new_tokens``): all is released, and no later match may
        start in it. Raises ``EngineError`` when a regex takes too long.
        """
        if self.matched is not None:
            return ""
        begin = len(self._window)
        self._window += text
        if not match:
            self._state = self._trie.ROOT
            return self._release(0)
        started = time.thread_time() if self._patterns else 0.0
        for at in range(begin, len(self._window)):
            self._state = self._trie.step(self._state, self._window[at])
            if self._find(at + 1):
                return self._release(len(self._window) + self._window_start - self.start)
            if self._patterns and time.thread_time() - started > REGEX_TIMEOUT_S:
                raise _too_slow(*(p.pattern for p in self._patterns))
        return self._release(self._hold_len())

    def _find(self, end: int) -> bool:
        """Whether a stop ends at ``end`` of the window; notes which."""
        found: list[tuple[int, int, str, str]] = []  # (start, end, stop, kind)
        stop = self._trie.stop(self._state)
        if stop is not None:
            found.append((end - len(stop), end, stop, "string"))
        for pattern in self._patterns:
            match = self._search(pattern, end, partial=False)
            if match is not None:
                found.append((match.start(), match.end(), pattern.pattern, "regex"))
        if not found:
            return False
        start, end, self.matched, self.detail = min(found, key=lambda f: f[0])
        self.start, self.end = self._window_start + start, self._window_start + end
        return True

    def _hold_len(self) -> int:
        """Length of the longest end of the text that may still become a stop."""
        hold = self._trie.depth(self._state)
        for pattern in self._patterns:
            match = self._search(pattern, len(self._window), partial=True)
            if match is not None:
                hold = max(hold, min(len(self._window) - match.start(), MAX_REGEX_MATCH_LEN))
        return hold

    def _search(
        self, pattern: regex.Pattern[str], end: int, *, partial: bool
    ) -> regex.Match[str] | None:
        unreleased = self.released - self._window_start
        try:
            return pattern.search(
                self._window, unreleased, end, partial=partial, timeout=REGEX_TIMEOUT_S
            )
        except TimeoutError as error:
            raise _too_slow(pattern.pattern) from error

    def _release(self, hold: int) -> str:
        """Release all but the last ``hold`` characters, and drop what nobody will look at."""
        cut = len(self._window) - hold
        safe = self._window[self.released - self._window_start : cut]
        self.released = self._window_start + cut
        drop = max(cut - REGEX_CONTEXT_LEN, 0) if self._patterns else cut
        self._window = self._window[drop:]
        self._window_start += drop
        return safe


def _too_slow(*patterns: str) -> EngineError:
    names = ", ".join(map(repr, patterns))
    return EngineError(f"stop_regex {names} took more than {REGEX_TIMEOUT_S} s for one token")


class TokenText:
    """Ids to text, as the bytes become whole characters; invalid bytes become U+FFFD.

    The same characters as ``bytes.decode(errors="replace")`` of all bytes. Ids that only pad the
    model's vocabulary, and control tokens unless asked for, add nothing.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool) -> None:
        self._bytes = tokenizer.token_bytes
        self._skip = tokenizer.special_ids if skip_special_tokens else frozenset[int]()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    @property
    def pending(self) -> bool:
        """Whether the bytes so far end inside a character."""
        return bool(self._decoder.getstate()[0])

    def hides(self, token: int) -> bool:
        return token in self._skip

    def feed(self, token: int) -> str:
        if token in self._skip or token >= len(self._bytes):
            return ""
        return self._decoder.decode(self._bytes[token])

    def flush(self) -> str:
        """U+FFFD if the bytes end inside a character; only at the very end."""
        return self._decoder.decode(b"", final=True)


def hidden_stops(tokenizer: Tokenizer, params: SamplingParams) -> dict[int, str]:
    """Control tokens that the text leaves out and that are a stop string: they stop by their id."""
    if not params.stop or not params.skip_special_tokens:
        return {}
    stops = {stop.encode(errors="surrogatepass"): stop for stop in params.stop}
    spelled = {i: tokenizer.token_bytes[i] for i in tokenizer.special_ids}
    return {i: stops[data] for i, data in spelled.items() if data in stops}


class StopChecker:
    """The scheduler's side: does the generated text stop here? The detokenizer cuts it."""

    def __init__(self, tokenizer: Tokenizer, params: SamplingParams) -> None:
        self._text = TokenText(tokenizer, skip_special_tokens=params.skip_special_tokens)
        self._matcher = StopMatcher(params.stop, params.stop_regex)
        self._hidden = hidden_stops(tokenizer, params)
        self._min_new_tokens = params.min_new_tokens

    def match_token(self, token: int, output_len: int) -> FinishReason | None:
        """``output_len``: generated tokens, this one included. Each token is asked for once.

        Raises ``EngineError`` when a stop regex takes too long: that request is lost.
        """
        matcher = self._matcher
        may_stop = output_len > self._min_new_tokens
        if may_stop and token in self._hidden:
            return FinishReason("stop", self._hidden[token], "string")
        matcher.feed(self._text.feed(token), match=may_stop)
        if matcher.matched is None:
            return None
        return FinishReason("stop", matcher.matched, matcher.detail)
