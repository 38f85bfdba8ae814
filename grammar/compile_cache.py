"""What was compiled, within a bound of bytes, and what was refused, for a while."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

from rtlang.errors import GrammarError
from rtlang.grammar.matcher import Compiled

_MAX_ERRORS = 1024


class CompileCache:
    """The least recently used leave first. Not thread-safe: its owner has a lock.

    A sequence keeps what it was made from: leaving the cache takes nothing from those that run.
    """

    def __init__(
        self,
        max_bytes: int,
        *,
        error_ttl_s: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``error_ttl_s``: how long a refusal is remembered."""
        self.size_bytes = 0
        self._max_bytes = max_bytes
        self._error_ttl_s = error_ttl_s
        self._clock = clock
        self._compiled: OrderedDict[str, Compiled] = OrderedDict()
        self._errors: OrderedDict[str, tuple[float, GrammarError]] = OrderedDict()

    def get(self, key: str) -> Compiled | None:
        found = self._compiled.get(key)
        if found is not None:
            self._compiled.move_to_end(key)
        return found

    def put(self, key: str, compiled: Compiled) -> None:
        """What is larger than the whole cache is not kept, nor a second one of a key."""
        self._errors.pop(key, None)
        if compiled.size_bytes > self._max_bytes or key in self._compiled:
            return
        self._compiled[key] = compiled
        self.size_bytes += compiled.size_bytes
        while self.size_bytes > self._max_bytes:
            _, oldest = self._compiled.popitem(last=False)
            self.size_bytes -= oldest.size_bytes

    def get_error(self, key: str) -> GrammarError | None:
        found = self._errors.get(key)
        if found is None:
            return None
        until, error = found
        if self._clock() < until:
            return error
        del self._errors[key]
        return None

    def put_error(self, key: str, error: GrammarError) -> None:
        self._errors.pop(key, None)
        self._errors[key] = (self._clock() + self._error_ttl_s, error)
        if len(self._errors) > _MAX_ERRORS:
            self._errors.popitem(last=False)
