"""Calls of Hermes and Qwen: ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``."""

from __future__ import annotations

from collections.abc import Sequence

from rtlang.runtime.parsers.call_reader import CallReader

BEGIN, END = "<tool_call>", "</tool_call>"
MARKERS = (BEGIN, END)


class HermesReader(CallReader):
    tail = (END,)

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(names, (BEGIN,))

    def begin(self, trigger: str) -> None:
        self.state = self.before_object
