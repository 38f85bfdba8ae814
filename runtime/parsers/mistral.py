"""Calls of Mistral: ``[TOOL_CALLS] [{...}, {...}]``, newer ``[TOOL_CALLS]name[ARGS]{...}``."""

from __future__ import annotations

from collections.abc import Sequence

from rtlang.runtime.parsers.call_reader import CallReader
from rtlang.runtime.parsers.scanning import space_end

BEGIN, ARGS, CALL_ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
MARKERS = (BEGIN, ARGS, CALL_ID)


class MistralReader(CallReader):
    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(names, (BEGIN,))

    def begin(self, trigger: str) -> None:
        self.state = self._opened

    def _opened(self, text: str, at: int) -> int:
        end = space_end(text, at)
        self.raw.append(text[at:end])
        if end == len(text):
            return end
        if text[end] == "[":
            self.raw.append("[")
            self.after_call = self.in_list
            self.state = self.before_object
            return end + 1
        if text[end] == "{":
            self.open_object()
        else:
            self.collect((ARGS, CALL_ID, "{"), self._named, words=self.names)
        return end

    def _named(self, name: str, marker: str) -> None:
        self._called = name.strip()
        if self._called not in self.names:
            self.fail()
        elif marker == CALL_ID:
            self.collect((ARGS,), self._identified)
        else:
            self.open_arguments(self._called)
            if marker == "{":
                self.reread(marker)

    def _identified(self, call_id: str, marker: str) -> None:
        self.open_arguments(self._called)
