"""Calls of DeepSeek: V3 and R1 fence the arguments' JSON, V3.1 and later do not."""

from __future__ import annotations

from collections.abc import Sequence

from rtlang.runtime.parsers.call_reader import CallReader
from rtlang.runtime.parsers.scanning import begins, space_end
from rtlang.runtime.tools.formats import (
    DEEPSEEK_CALL,
    DEEPSEEK_CALL_END,
    DEEPSEEK_CALLS,
    DEEPSEEK_CALLS_END,
    DEEPSEEK_SEP,
)

CALLS, CALLS_END = DEEPSEEK_CALLS, DEEPSEEK_CALLS_END
CALL, CALL_END, SEP = DEEPSEEK_CALL, DEEPSEEK_CALL_END, DEEPSEEK_SEP
KIND, FENCE, FENCE_END = "function", "```json", "```"
#: Those that may be control tokens.
MARKERS = (CALLS, CALLS_END, CALL, CALL_END, SEP)


class DeepSeekReader(CallReader):
    """``CALLS CALL name SEP {...} CALL_END ... CALLS_END``; ``fenced``: a call is ``CALL function
    SEP name``, then a block of JSON code."""

    def __init__(self, names: Sequence[str], *, fenced: bool) -> None:
        super().__init__(names, (CALLS, CALL, CALLS_END))
        self._fenced = fenced
        self.tail = (FENCE_END, CALL_END) if fenced else (CALL_END,)

    def begin(self, trigger: str) -> None:
        if trigger == CALL:
            words = (KIND,) if self._fenced else self.names
            self.collect((SEP,), self._separated, words=words)
        elif trigger == CALLS:
            self.state = self._opened
        elif self.behind_call:
            self.raw = []
            self.state = self.between
        else:
            self.fail()

    def _opened(self, text: str, at: int) -> int:
        """Between ``CALLS`` and the first ``CALL``."""
        end = space_end(text, at)
        self.raw.append(text[at:end])
        if end == len(text):
            return end
        stands = begins(text, end, CALL)
        if stands:
            self.raw.append(CALL)
            self.begin(CALL)
            return end + len(CALL)
        if stands is False:
            self.fail()
        return end

    def _separated(self, kind: str, marker: str) -> None:
        if self._fenced:
            self.collect((FENCE,), self._named, words=self.names)
        else:
            self._named(kind, marker)

    def _named(self, name: str, marker: str) -> None:
        if name.strip() in self.names:
            self.open_arguments(name.strip())
        else:
            self.fail()
