"""Readers: how consumers follow a state's streams. Late, slow and second ones get everything."""

from __future__ import annotations

from typing import Protocol

from rtlang.core import Core
from rtlang.plan import Slot
from rtlang.unknown import unknown_variable


class Reader(Protocol):
    """Both methods are called under the run's lock."""

    def ready(self) -> bool:
        """Whether ``take`` has something to say."""
        ...

    def take(self) -> str | None:
        """The next chunk; None at the end. Raises what ended the stream too early."""
        ...


class VariableReader:
    """The chunks of one variable, the newest of its name.

    ``live``: the reader stands outside of the program's body, so as long as the body runs the
    variable may still come.
    """

    def __init__(self, core: Core, name: str, *, live: bool) -> None:
        self._core = core
        self._name = name
        self._live = live
        self._slot: Slot | None = None
        self._next = 0

    def ready(self) -> bool:
        if self._slot is None:
            self._slot = self._core.slots.get(self._name)
        if self._slot is not None:
            return self._next < len(self._slot.chunks) or self._slot.ended
        return self._core.error is not None or not self._live or self._core.run.ended

    def take(self) -> str | None:
        slot = self._slot
        if slot is None:
            if self._core.error is not None:
                self._core.error_seen = True
                raise self._core.error
            raise unknown_variable(self._name, self._core.slots)
        if self._next < len(slot.chunks):
            self._next += 1
            return slot.chunks[self._next - 1]
        if slot.error is not None:
            self._core.error_seen = True
            raise slot.error
        return None


class TextReader:
    """All text of a state, the program's and the model's, with the template's markers."""

    def __init__(self, core: Core, *, live: bool) -> None:
        self._core = core
        self._live = live
        self._next = 0

    def ready(self) -> bool:
        core = self._core
        if self._next < len(core.feed) or core.error is not None:
            return True
        return core.settled and (core.run.ended or not self._live)

    def take(self) -> str | None:
        core = self._core
        if self._next == len(core.feed) and core.error is None:
            core.update_feed()  # what was appended after the last call
        if self._next < len(core.feed):
            self._next += 1
            return core.feed[self._next - 1]
        if core.error is not None:
            core.error_seen = True
            raise core.error
        return None
