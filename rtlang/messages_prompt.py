"""MessagesPrompt: a program's turns as text, for backends that take messages and no token ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rtlang.where import Where


class MessagesPrompt:
    """Implements ``Prompt`` for roles, without ids and without a template: what stands between
    the turns is the server's affair."""

    def __init__(self) -> None:
        self.ids: list[int] = []  # none, ever
        self.flow: list[str] = []
        self._messages: list[dict[str, str]] = []
        self._role: str | None = None
        self._content = ""

    def begin_role(self, role: str, template_kwargs: Mapping[str, Any]) -> None:
        assert self._role is None and not template_kwargs
        self._role, self._content = role, ""

    def end_role(self) -> None:
        assert self._role is not None
        self._messages.append({"role": self._role, "content": self._content})
        self._role = None

    def add_text(self, text: str, *, control: bool) -> None:
        assert self._role is not None and not control
        self.flow.append(text)
        self._content += text

    def add_generated(self, ids: Sequence[int], text: str, kept_text: str) -> None:
        assert self._role is not None and not ids
        self.flow.append(text)
        self._content += text

    def sync(self, where: Where) -> list[int]:
        return []

    def freeze(self, where: Where) -> list[int]:
        return []

    def text(self) -> str:
        return "".join(self.flow)

    def messages(self) -> list[dict[str, str]]:
        found = [dict(message) for message in self._messages]
        if self._role is not None:
            found.append({"role": self._role, "content": self._content})
        return found

    def asked(self) -> list[dict[str, str]]:
        """The messages to be answered. A last one of the assistant is what the answer begins
        with: without text it is left out."""
        found = self.messages()
        return found[:-1] if self._role == "assistant" and not self._content else found

    def copy(self) -> MessagesPrompt:
        twin = MessagesPrompt()
        twin.flow, twin._messages = list(self.flow), list(self._messages)
        twin._role, twin._content = self._role, self._content
        return twin
