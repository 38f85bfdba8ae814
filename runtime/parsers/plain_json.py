"""Calls that are bare JSON: of Llama 3, and of constraints where a format cannot be enforced.

Llama 3: ``{"name": ..., "parameters": {...}}``, ``; `` between two, maybe ``<|python_tag|>``
before the first. JSON: one such object, or a list of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from rtlang.runtime.parsers.call_reader import CallReader

PYTHON_TAG = "<|python_tag|>"


class Llama3Reader(CallReader):
    separators = ";"
    known_start = True

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(names, ("{", PYTHON_TAG))

    def begin(self, trigger: str) -> None:
        if trigger == PYTHON_TAG:
            self.state = self.before_object
        else:
            self.open_object()
            self.reread(trigger)


class JsonReader(CallReader):
    separators = ","
    known_start = True

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(names, ("{", "["))

    def begin(self, trigger: str) -> None:
        if trigger == "[":
            self.after_call = self.in_list
            self.state = self.before_object
        else:
            self.open_object()
            self.reread(trigger)
