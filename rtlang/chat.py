"""ChatPrompt: the token ids of a program with roles, as the model's chat template renders them."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from rtlang.errors import ChatTemplateError
from rtlang.runtime.tokenizer import Tokenizer
from rtlang.where import Where

#: Stands for a message's content when only what the template puts before it is wanted.
_PROBE = "qXzrtlangprobezXq"


class ChatTemplateWarning(UserWarning):
    """A template changed earlier turns, so that ids (and with them cached KV) were lost."""


def check_template(tokenizer: Tokenizer, template_kwargs: Mapping[str, Any]) -> None:
    """Raises ``ChatTemplateError`` where there is no template, or none that renders a user turn."""
    tokenizer.render_chat([{"role": "user", "content": _PROBE}], **template_kwargs)


class ChatPrompt:
    """Implements ``Prompt`` for roles.

    ``ids`` cover ``_rendered``, the template's text with its marks. What later renderings add is
    tokenized as it is; where one differs from ``_rendered``, the ids of the common prefix stay.
    ``_borders`` are places where a token ends with a character: (number of ids, of characters).
    """

    def __init__(self, tokenizer: Tokenizer, template_kwargs: Mapping[str, Any]) -> None:
        self._tokenizer = tokenizer
        self._template_kwargs = dict(template_kwargs)
        self.ids: list[int] = []
        self.flow: list[str] = []
        self._rendered = ""
        self._borders = [(0, 0)]
        self._messages: list[dict[str, str]] = []
        self._role: str | None = None
        self._content = ""
        self._head: str | None = None  # rendering up to the open role's content
        self._target: str | None = None  # rendering of everything, when it is known

    # -- changes ----------------------------------------------------------------------------

    def begin_role(self, role: str, template_kwargs: Mapping[str, Any]) -> None:
        """``template_kwargs`` are added to those for the template, from here on."""
        assert self._role is None
        self._template_kwargs |= template_kwargs
        self._role, self._content, self._head, self._target = role, "", None, None

    def end_role(self) -> None:
        assert self._role is not None
        self._messages.append({"role": self._role, "content": self._content})
        self._role = self._head = self._target = None

    def add_text(self, text: str, *, control: bool) -> None:
        assert self._role is not None and not control
        self.flow.append(text)
        self._content += text
        self._target = None

    def describe_tools(self, schemas: Sequence[Mapping[str, Any]]) -> None:
        """Let the template tell of these tools, in the place that it has for them. Where earlier
        turns were rendered without, they are rendered again."""
        known = list(self._template_kwargs.get("tools") or ())
        new = [schema for schema in schemas if schema not in known]
        if new:
            self._template_kwargs["tools"] = known + new
            self._head = self._target = None

    def add_generated(self, ids: Sequence[int], text: str, kept_text: str) -> None:
        assert self._head is not None and text.endswith(kept_text)
        self.flow.append(text)
        self._content += text
        self._target = None
        covered = self._content[: len(self._content) - len(kept_text)]
        rendered = self._head + self._tokenizer.defuse(covered)
        assert rendered.startswith(self._rendered), "marks of a text do not depend on what follows"
        self.ids += ids
        self._covers(rendered)

    # -- views ------------------------------------------------------------------------------

    def sync(self, where: Where) -> list[int]:
        self._cover(self._render_all(), where)
        return list(self.ids)

    def freeze(self, where: Where) -> list[int]:
        # Some templates refuse half a chat (a system turn alone): then its ids have to wait for
        # the next call, which renders the whole and reports what the template says.
        with contextlib.suppress(ChatTemplateError):
            self.sync(where)
        return list(self.ids)

    def text(self) -> str:
        if self._role is None and not self._messages:
            return ""
        return self._tokenizer.plain(self._render_all())

    def messages(self) -> list[dict[str, str]]:
        found = [dict(message) for message in self._messages]
        if self._role is not None:
            found.append({"role": self._role, "content": self._content})
        return found

    def copy(self) -> ChatPrompt:
        twin = ChatPrompt(self._tokenizer, self._template_kwargs)
        twin.ids, twin.flow = list(self.ids), list(self.flow)
        twin._rendered, twin._borders = self._rendered, list(self._borders)
        twin._messages = list(self._messages)  # finished messages never change
        twin._role, twin._content, twin._head = self._role, self._content, self._head
        twin._target = self._target
        return twin

    # -- rendering --------------------------------------------------------------------------

    def _render(self, messages: Sequence[Mapping[str, Any]], *, generation: bool = False) -> str:
        return self._tokenizer.render_chat(
            messages, add_generation_prompt=generation, **self._template_kwargs
        )

    def _render_all(self) -> str:
        if self._target is None:
            if self._role is None:
                self._target = self._render(self._messages)
            else:
                self._head = self._head if self._head is not None else self._render_head()
                self._target = self._head + self._tokenizer.defuse(self._content)
        return self._target

    def _render_head(self) -> str:
        """What stands before the content of the open role."""
        if self._role == "assistant" and self._messages:
            return self._render(self._messages, generation=True)
        probe = {"role": self._role, "content": _PROBE}
        rendered = self._render([*self._messages, probe])
        head, found, _ = rendered.rpartition(_PROBE)
        if not found:
            raise ChatTemplateError(f"the chat template does not render a {self._role!r} turn here")
        return head

    # -- ids --------------------------------------------------------------------------------

    def _covers(self, rendered: str) -> None:
        self._rendered = rendered
        self._borders.append((len(self.ids), len(rendered)))

    def _cover(self, target: str, where: Where) -> None:
        """Make the ids cover ``target``, keeping those of the common prefix."""
        if not target.startswith(self._rendered):
            self._cut(target, where)
        rest = target[len(self._rendered) :]
        if rest:
            self.ids += self._tokenizer.encode_rendered(rest, continued=bool(self._rendered))
            self._covers(target)

    def _cut(self, target: str, where: Where) -> None:
        """Forget the ids behind the first difference, and say so."""
        common = _common_len(target, self._rendered)
        at = max(i for i, (_, chars) in enumerate(self._borders) if chars <= common)
        num_ids, num_chars = self._borders[at]
        if at + 1 < len(self._borders):
            more_ids, more_chars = self._inside(num_ids, num_chars, self._borders[at + 1], common)
            num_ids, num_chars = num_ids + more_ids, num_chars + more_chars
        filename, lineno = where
        warnings.warn_explicit(
            "the chat template changed earlier turns: rendered again from the first differing "
            f"index (character {common}, token {num_ids} of {len(self.ids)})",
            ChatTemplateWarning,
            filename,
            lineno,
        )
        del self.ids[num_ids:], self._borders[at + 1 :]
        self._rendered = self._rendered[:num_chars]
        self._borders.append((num_ids, num_chars))

    def _inside(
        self, num_ids: int, num_chars: int, end: tuple[int, int], common: int
    ) -> tuple[int, int]:
        """How many (ids, characters) after a border, and before the next one, are still common."""
        text = self._rendered[num_chars : end[1]]
        pieces = [self._tokenizer.token_bytes[i] for i in self.ids[num_ids : end[0]]]
        if b"".join(pieces) != text.encode():
            return 0, 0  # marks, or control tokens that are not shown: no token by token account
        room = len(self._rendered[num_chars:common].encode())
        size = count = 0
        best = (0, 0)
        for piece in pieces:
            size, count = size + len(piece), count + 1
            if size > room:
                break
            with contextlib.suppress(UnicodeDecodeError):  # a token may end inside a character
                best = (count, len(b"".join(pieces[:count]).decode()))
        return best


def _common_len(a: str, b: str) -> int:
    pairs = zip(a, b, strict=False)
    return next((i for i, (x, y) in enumerate(pairs) if x != y), min(len(a), len(b)))
