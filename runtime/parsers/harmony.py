"""Answers of gpt-oss, in the harmony format: messages on channels, calls among them.

<|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>final<|message|>...
<|start|>assistant<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{...}<|call|>
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from rtlang.runtime.parsers.call_reader import CallReader
from rtlang.runtime.parsers.events import Content, Reasoning

START, CHANNEL, MESSAGE, CONSTRAIN = "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"
ENDS = ("<|end|>", "<|return|>", "<|call|>")
MARKERS = (START, CHANNEL, MESSAGE, CONSTRAIN, *ENDS)

_TO = re.compile(r"\bto=(\S+?)(?=[\s<]|$)")
_ANALYSIS = re.compile(r"<\|channel\|>\s*analysis\b")
_FUNCTIONS = "functions."


class HarmonyReader(CallReader):
    """The analysis channel is reasoning, messages to functions are calls, all else is content."""

    def __init__(self, names: Sequence[str], *, reasoning: bool, in_reasoning: bool) -> None:
        """``reasoning=False``: the analysis is content too."""
        super().__init__(names, (START, CHANNEL, MESSAGE, *ENDS))
        self._splits = reasoning
        self._kind: type[Content | Reasoning] = Reasoning if in_reasoning else Content

    def text(self, text: str) -> None:
        self.events.add(self._kind(text))

    def begin(self, trigger: str) -> None:
        if trigger in ENDS or trigger == MESSAGE:  # between messages, and no text
            self._kind = self._kind if trigger == MESSAGE else Content
            self.raw = []
            self.state = self.between if self.behind_call else self.free
        else:
            self._kind = Content
            self.collect((MESSAGE,), self._headed)

    def end(self, rest: str) -> None:
        if self.state != self.collecting:  # what a message begins with is no text of it
            super().end(rest)

    def _headed(self, header: str, marker: str) -> None:
        whole = "".join(self.raw)
        to = _TO.search(whole)
        name = to[1].removeprefix(_FUNCTIONS) if to is not None else ""
        if to is not None and to[1].startswith(_FUNCTIONS) and name in self.names:
            self.open_arguments(name)
        elif to is not None:
            self.fail()
        else:
            if self._splits and _ANALYSIS.search(whole):
                self._kind = Reasoning
            self.raw, self.behind_call = [], False
            self.state = self.free
