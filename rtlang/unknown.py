"""The error for a name that nothing sets."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from rtlang.errors import UnknownVariable


def unknown_variable(name: str, known: Iterable[str]) -> UnknownVariable:
    names = list(known)
    near = difflib.get_close_matches(name, names, cutoff=0.5)
    if near:
        hint = "did you mean " + " or ".join(map(repr, near)) + "?"
    elif names:
        hint = "there are " + ", ".join(map(repr, names))
    else:
        hint = "there is none yet"
    return UnknownVariable(f"no variable {name!r}; {hint}")
