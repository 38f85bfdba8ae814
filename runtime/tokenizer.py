"""Text to ids and back, and the model's own chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from rtlang.errors import InvalidPrompt

Message = Mapping[str, Any]


def check_text(text: str) -> None:
    """Raises ``InvalidPrompt`` for what is no text, or has no UTF-8 (a lone surrogate)."""
    if not isinstance(text, str):
        raise InvalidPrompt(f"expected text, got {type(text).__name__}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidPrompt(f"the text has no UTF-8 form: {error}") from error


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
        """Text of ids as the continuation of a prompt; invalid UTF-8 becomes U+FFFD.

        Ids from ``vocab_size`` on only pad a model's vocabulary: no text. Raises
        ``InvalidPrompt`` for a negative id.
        """
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

        ``continue_final_message``: the last message stays open, nothing comes after its text
        (so there is no generation prompt either). ``tools`` and other ``template_kwargs`` go to
        the template. Changes nothing that it is given. Raises ``InvalidPrompt`` for what is no
        message, ``ChatTemplateError`` with the template's own message, or with a hint if there
        is no template.
        """
        ...

    def encode_rendered(self, rendered: str, *, continued: bool = False) -> list[int]:
        """Ids of a rendered chat: no BOS added, the template writes its own.

        ``continued``: it is the rest of a chat whose ids are known up to here; only then is a
        first word, too, without the dummy space of SentencePiece-style tokenizers.
        """
        ...

    def defuse(self, text: str) -> str:
        """A user's text as ``render_chat`` puts it into a rendering: control tokens marked.

        ``defuse(a + b)`` starts with ``defuse(a)``.
        """
        ...

    def plain(self, rendered: str) -> str:
        """A rendered chat as a reader should see it: without the marks of ``render_chat``."""
        ...
