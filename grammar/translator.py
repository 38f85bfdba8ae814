"""Translating constraints without holding up the threads of this process, which share its GIL."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Iterator

from rtlang.grammar.helper import Helper, command
from rtlang.grammar.spec import GrammarSpec

COMMAND = command("rtlang.grammar.translator_main")

#: Below all of these, translating took under 30 ms for every kind of constraint tried.
_MAX_SOURCE, _MAX_CHOICES_SOURCE, _MAX_PRODUCT = 1024, 4096, 100_000
#: What combines automata or schemas with each other, and classes of thousands of characters.
_COMBINES = re.compile(
    r'"(?:allOf|oneOf|not|if|pattern|format|multipleOf|contains|uniqueItems|propertyNames'
    r"|(?:min|max)Properties|(?:pattern|unevaluated)\w+|depend\w+|\$\w*[rR]ef)\""
    r"|\(\?|\\[pP]"
)
_NUMBER = re.compile(r"\d+")


def is_quick(spec: GrammarSpec) -> bool:
    """Whether translating it surely takes no time that others could notice: it is short, counts
    little, and combines nothing."""
    if spec.kind == "choice":
        return len(spec.source) <= _MAX_CHOICES_SOURCE
    if len(spec.source) > _MAX_SOURCE or _COMBINES.search(spec.source):
        return False
    product = 1
    for digits in _NUMBER.findall(spec.source):
        product *= max(1, int(digits[:9]))
        if product > _MAX_PRODUCT:
            return False
    return True


class Translators:
    """Processes that translate, as many as there are threads that ask at once. Thread-safe."""

    def __init__(self, commands: tuple[str, ...] = COMMAND) -> None:
        self._command = commands
        self._lock = threading.Lock()
        self._all: list[Helper] = []
        self._free: list[Helper] = []  # the last one first: others may never be needed again
        self._closed = False

    @contextlib.contextmanager
    def one(self) -> Iterator[Helper]:
        """One that runs, for this thread alone; asked for a ``GrammarSpec`` it answers
        ``Written``.
        Raises ``GrammarTimeout`` if it does not start."""
        with self._lock:
            helper = self._free.pop() if self._free else self._new()
        try:
            helper.start()
            yield helper
        finally:
            with self._lock:
                self._free.append(helper)

    def _new(self) -> Helper:
        helper = Helper(self._command, "translate")
        self._all.append(helper)
        if self._closed:
            helper.close()
        return helper

    def close(self) -> None:
        """Ends the processes. A translation that runs is lost."""
        with self._lock:
            self._closed = True
            helpers = list(self._all)
        for helper in helpers:
            helper.close()
