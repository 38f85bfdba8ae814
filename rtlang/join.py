"""Join: how the branches of a fork come together again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rtlang.core import Core
from rtlang.errors import ForkErrors, ProgramError, RequestAborted, Unsupported
from rtlang.ir import SetVar
from rtlang.where import Where


class Failed:
    """Stands in a joined list for the value of a branch that failed. It is false."""

    def __init__(self, index: int, error: BaseException) -> None:
        self.index = index
        self.error = error

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return f"<Failed branch {self.index}: {self.error!r}>"


class Join:
    """One join: when it is over, and what it gives. ``k`` is None where all branches count."""

    def __init__(
        self, parent: Core, branches: Sequence[Core], mode: str, on_error: str, k: int | None
    ) -> None:
        """Raises ``ProgramError`` or ``Unsupported`` for modes that do not exist."""
        if mode == "concate_and_append":
            raise Unsupported(f"join({mode!r}) is not built: no engine can join KV", param="mode")
        if mode not in ("gather", "gather_variable", "first"):
            raise ProgramError(f"join has no mode {mode!r}; there are 'gather' and 'first'")
        if on_error not in ("raise", "keep", "cancel"):
            raise ProgramError(f"on_error is 'raise', 'keep' or 'cancel', not {on_error!r}")
        self._first = mode == "first"
        if k is not None and not self._first:
            raise ProgramError("k goes with join('first') only")
        if self._first and k is None:
            k = 1
        if k is not None and not 1 <= k <= len(branches):
            raise ProgramError(f"k must be in [1, {len(branches)}], got {k!r}")
        self._parent = parent
        self._branches = branches
        self._on_error = on_error
        self._k = k

    def kick(self) -> None:
        for branch in self._branches:
            branch.kick()

    def ready(self) -> bool:
        if self._parent.error is not None:
            return True
        settled = [b for b in self._branches if b.settled]
        failed = [b for b in settled if b.error is not None]
        if len(settled) == len(self._branches):
            return True
        if self._on_error == "cancel" and failed and not self._first:
            return True
        return self._k is not None and len(settled) - len(failed) >= self._k

    def finish(self, where: Where) -> dict[str, list[Any]]:
        """Set the parent's variables; the lists by name. Raises ``ForkErrors``, or what the
        parent had failed with."""
        parent, branches = self._parent, self._branches
        if parent.error is not None:
            parent.error_seen = True
            raise parent.error
        chosen = self._winners() if self._first else list(range(len(branches)))
        errors = self._errors()
        for branch in branches:
            if not branch.settled:
                branch.fail(RequestAborted("another branch decided the join"))
            branch.error_seen = True
            branch.close()
        missing = self._k is not None and len(chosen) < self._k
        if errors and (missing or (not self._first and self._on_error != "keep")):
            count = f"{len(errors)} of {len(branches)} branches failed"
            raise ForkErrors(count, errors)
        lists = {name: [self._value(i, name) for i in chosen] for name in self._names(chosen)}
        for name, values in lists.items():
            metas = [self._meta(i, name) for i in chosen]
            parent.append(SetVar(name, values, metas), where)
        return lists

    def _winners(self) -> list[int]:
        done = [i for i, b in enumerate(self._branches) if b.settled and b.error is None]
        done.sort(key=lambda i: self._branches[i].finished_at or 0)
        return sorted(done[: self._k])

    def _errors(self) -> list[Exception]:
        """What branches failed with, each with its branch in ``index``."""
        found: list[Exception] = []
        for i, branch in enumerate(self._branches):
            if isinstance(branch.error, Exception):
                branch.error.index = i  # type: ignore[attr-defined]
                found.append(branch.error)
        return found

    def _names(self, chosen: Sequence[int]) -> list[str]:
        return list(dict.fromkeys(name for i in chosen for name in self._branches[i].assigned))

    def _value(self, index: int, name: str) -> Any:
        branch = self._branches[index]
        if branch.error is not None:
            return Failed(index, branch.error)
        return branch.slots[name].value if name in branch.assigned else None

    def _meta(self, index: int, name: str) -> Any:
        branch = self._branches[index]
        known = branch.error is None and name in branch.assigned
        return branch.slots[name].meta if known else None
