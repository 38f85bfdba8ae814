"""ByteTokenizer: one byte, one token. For tests, and for models that have no tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rtlang.errors import InvalidParameter, InvalidPrompt
from rtlang.runtime.chat_template import ControlTokens, no_template, prepare_messages
from rtlang.runtime.tokenizer import Message, check_text

EOS, BOS, IM_START, IM_END = 256, 257, 258, 259
_CONTROL = {"<|endoftext|>": EOS, "<|bos|>": BOS, "<|im_start|>": IM_START, "<|im_end|>": IM_END}
_MIN_VOCAB_SIZE = 256 + len(_CONTROL)


class ByteTokenizer:
    """Ids 0..255 are bytes, then come four control tokens; further ids have no text.

    Its chat template is ChatML: ``<|im_start|>role\\ncontent<|im_end|>\\n`` a turn, nothing added.
    """

    def __init__(self, vocab_size: int = 264, *, chat: bool = True, bos: bool = False) -> None:
        """``chat=False``: no chat template. ``bos=True``: prompts of plain text begin with BOS."""
        assert vocab_size >= _MIN_VOCAB_SIZE, vocab_size
        self.vocab_size = vocab_size
        self.eos_ids = frozenset({EOS})
        self.special_ids = frozenset(_CONTROL.values())
        spelled = [text.encode() for text in _CONTROL]
        padding = [b""] * (vocab_size - _MIN_VOCAB_SIZE)
        self.token_bytes: Sequence[bytes] = [bytes([i]) for i in range(256)] + spelled + padding
        self._control = ControlTokens(_CONTROL)
        self._chat = chat
        self._bos = [BOS] if bos else []

    @property
    def options(self) -> dict[str, Any]:
        """What makes an equal one."""
        return {"vocab_size": self.vocab_size, "chat": self._chat, "bos": bool(self._bos)}

    def __repr__(self) -> str:
        return f"ByteTokenizer(vocab_size={self.vocab_size})"

    def encode(self, text: str, *, add_bos: bool = True, control: bool = True) -> list[int]:
        check_text(text)
        ids = list(text.encode())
        if control:
            ids = self.encode_rendered(self._control.escape(text))
        return self._bos + ids if add_bos and ids[:1] != self._bos else ids

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        if min(ids, default=0) < 0:
            raise InvalidPrompt(f"there is no token id {min(ids)}")
        skip = self.special_ids if skip_special_tokens else frozenset[int]()
        shown = (i for i in ids if i < self.vocab_size and i not in skip)
        return b"".join(self.token_bytes[i] for i in shown).decode(errors="replace")

    def render_chat(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **template_kwargs: Any,
    ) -> str:
        if not self._chat:
            raise no_template()
        for name in template_kwargs:
            raise InvalidParameter(f"the ChatML template has no variable {name!r}", param=name)
        turns = [
            f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n"
            for m in prepare_messages(messages, self._control.defuse)
        ]
        text = "".join(turns)
        if continue_final_message:
            return text.removesuffix("<|im_end|>\n")
        return text + "<|im_start|>assistant\n" if add_generation_prompt else text

    def encode_rendered(self, rendered: str, *, continued: bool = False) -> list[int]:
        check_text(rendered)  # a byte has no dummy space: ``continued`` makes no difference
        ids: list[int] = []
        for piece, is_control in self._control.pieces(rendered):
            ids += [_CONTROL[piece]] if is_control else list(piece.encode())
        return ids

    def defuse(self, text: str) -> str:
        return self._control.defuse(text)

    def plain(self, rendered: str) -> str:
        return self._control.plain(rendered)
