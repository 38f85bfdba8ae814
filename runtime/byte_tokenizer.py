"""ByteTokenizer: one byte, one token. For tests, and for models that have no tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rtlang.errors import InvalidPrompt
from rtlang.runtime.chat_template import ControlTokens, no_template, prepare_messages
from rtlang.runtime.tokenizer import Message

EOS, IM_START, IM_END = 256, 257, 258
_CONTROL = {"<|endoftext|>": EOS, "<|im_start|>": IM_START, "<|im_end|>": IM_END}


class ByteTokenizer:
    """Ids 0..255 are bytes; 256 is EOS; then ChatML's two control tokens. No BOS."""

    def __init__(self, vocab_size: int = 264, *, chat: bool = True) -> None:
        """``chat=False``: a tokenizer without a chat template."""
        self.vocab_size = vocab_size
        self.eos_ids = frozenset({EOS})
        self.special_ids = frozenset(_CONTROL.values())
        spelled = [text.encode() for text in _CONTROL]
        padding = [b""] * (vocab_size - 256 - len(spelled))
        self.token_bytes: Sequence[bytes] = [bytes([i]) for i in range(256)] + spelled + padding
        self._control = ControlTokens(_CONTROL)
        self._chat = chat

    def __repr__(self) -> str:
        return f"ByteTokenizer(vocab_size={self.vocab_size})"

    def encode(self, text: str, *, add_bos: bool = True, control: bool = True) -> list[int]:
        if not control:
            return list(text.encode())
        ids: list[int] = []
        for piece, is_control in self._control.pieces(text.replace("\uf8e5", "\uf8e5\uf8e5")):
            ids += [_CONTROL[piece]] if is_control else list(piece.encode())
        return ids

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        skip = self.special_ids if skip_special_tokens else frozenset()
        data = b"".join(self.token_bytes[i] for i in ids if i not in skip)
        return data.decode(errors="replace")

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
        if template_kwargs:
            raise InvalidPrompt(f"this template knows no {', '.join(sorted(template_kwargs))}")
        turns = [
            f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n"
            for m in prepare_messages(messages, self._control.defuse)
        ]
        text = "".join(turns)
        if continue_final_message:
            return text.removesuffix("<|im_end|>\n")
        return text + "<|im_start|>assistant\n" if add_generation_prompt else text

    def encode_rendered(self, rendered: str) -> list[int]:
        ids: list[int] = []
        for piece, is_control in self._control.pieces(rendered):
            ids += [_CONTROL[piece]] if is_control else list(piece.encode())
        return ids

    def plain(self, rendered: str) -> str:
        return self._control.plain(rendered)
