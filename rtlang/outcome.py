"""What the text of a constrained call says: its values, or that it was cut."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from rtlang.errors import TruncatedOutput
from rtlang.runtime.result import GenerateResult


class Meaning(Protocol):
    """How values are read from a text that was generated under a constraint."""

    @property
    def names(self) -> tuple[str, ...]:
        """Variables that a text sets beside the call's own."""
        ...

    def is_cut(self, text: str, *, by_length: bool) -> bool:
        """Whether a text that did not end by itself is not, or may not be, a whole one."""
        ...

    def read(self, text: str) -> tuple[Any, Mapping[str, Any]]:
        """The call's own value, and those of ``names``."""
        ...


class OneOption:
    """Implements ``Meaning``: the text is one of a few."""

    names = ()

    def __init__(self, options: Sequence[str]) -> None:
        self._options = options

    def is_cut(self, text: str, *, by_length: bool) -> bool:
        longer = any(o.startswith(text) and o != text for o in self._options)
        return text not in self._options or (by_length and longer)

    def read(self, text: str) -> tuple[Any, Mapping[str, Any]]:
        return text, {}


#: The value of the call, those of the names that it sets beside, and (for n > 1) lists of them.
Values = tuple[Any, dict[str, Any]]


def values(meaning: Meaning | None, results: Sequence[GenerateResult], name: str) -> Values:
    """Of one call, or of its n siblings. Raises ``TruncatedOutput`` (``text``, ``name``) if a
    limit or a stop has cut a text, and what a type's own checks raise."""
    if meaning is None:
        return _joined([(result.text, {}) for result in results])
    return _joined([_read(meaning, result, name) for result in results])


def _read(meaning: Meaning, result: GenerateResult, name: str) -> Values:
    reason, text = result.finish_reason, result.text
    if reason.detail != "eos":
        by_length = reason.type == "length"
        if meaning.is_cut(text, by_length=by_length):
            limit = {"context": "the end of the context"}.get(reason.detail, reason.detail)
            message = f"{name!r} is not complete: {limit if by_length else 'a stop'} came first"
            raise TruncatedOutput(message, text=text, name=name)
    try:
        value, others = meaning.read(text)
    except Exception as error:  # from the checks of the user's own class
        error.add_note(f"the text of {name!r} is {text!r}")
        raise
    return value, dict(others)


def _joined(found: list[Values]) -> Values:
    if len(found) == 1:
        return found[0]
    names = found[0][1]
    return [value for value, _ in found], {k: [others[k] for _, others in found] for k in names}
