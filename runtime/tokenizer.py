"""Text to ids and back, and the model's own chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

Message = Mapping[str, Any]


class Tokenizer(Protocol):
    """What the engine and the language need of a tokenizer; all of it is thread-safe."""

    @property
    def vocab_size(self) -> int:
        """Ids are below it."""
        ...

    @property
    def eos_ids(self) -> frozenset[int]: ...

    @property
    def token_bytes(self) -> Sequence[bytes]:
        """Id -> the bytes it adds to a text; control tokens give their spelling."""
        ...

    @property
    def special_ids(self) -> frozenset[int]:
        """Control tokens: left out of generated text unless asked for."""
        ...

    def encode(self, text: str, *, add_bos: bool = True, control: bool = True) -> list[int]:
        """Ids of a text at the start of a prompt, with the tokenizer's own BOS if it has one.

        ``add_bos=False``: the text continues other ids; no BOS and no dummy leading space.
        ``control=False``: a control token that the text spells becomes ordinary text.
        """
        ...

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of ids as the continuation of a prompt; invalid UTF-8 becomes U+FFFD."""
        ...

    def render_chat(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **template_kwargs: Any,
    ) -> str:
        """The chat template's text. What users wrote is marked so that ``encode_rendered`` can
        tell it from the template's own: control tokens spelled in it are made harmless.

        Raises ``ChatTemplateError`` with the template's own message, or with a hint if there is
        no template.
        """
        ...

    def encode_rendered(self, rendered: str) -> list[int]:
        """Ids of (the rest of) a rendered chat: no BOS added, the template writes its own."""
        ...

    def plain(self, rendered: str) -> str:
        """A rendered chat as a reader should see it: without the marks of ``render_chat``."""
        ...
