"""HFTokenizer: a model folder's own fast tokenizer and chat template, through transformers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2
from tokenizers import Tokenizer as FastTokenizer
from transformers import AutoTokenizer

from rtlang.errors import ChatTemplateError, ModelLoadError
from rtlang.runtime.chat_template import MARK, ControlTokens, no_template, prepare_messages
from rtlang.runtime.tokenizer import Message
from rtlang.runtime.vocab_bytes import token_bytes

#: Text that never merges with what follows; see ``_encode_continuation``.
_ANCHOR = "\n"


class HFTokenizer:
    """Implements ``Tokenizer``; ``hf`` is the transformers object. Thread-safe: it only reads."""

    def __init__(self, path: Path) -> None:
        """Raises ``ModelLoadError`` for a folder without a tokenizer that can be read."""
        try:
            self.hf: Any = AutoTokenizer.from_pretrained(path, local_files_only=True)
            backend: FastTokenizer = self.hf.backend_tokenizer
        except Exception as error:
            raise ModelLoadError(f"{path}: cannot read the tokenizer: {error}") from error
        self.path = path
        # Two backends: whether control tokens are read as such is a setting of the object.
        self._reads_control = FastTokenizer.from_str(backend.to_str())
        self._reads_text = FastTokenizer.from_str(backend.to_str())
        self._reads_text.encode_special_tokens = True
        for fast in (self._reads_control, self._reads_text):
            fast.no_truncation()
            fast.no_padding()
        self.vocab_size = max(backend.get_vocab(with_added_tokens=True).values()) + 1
        added = backend.get_added_tokens_decoder()
        self.special_ids = frozenset(i for i, token in added.items() if token.special)
        eos = self.hf.eos_token_id
        self.eos_ids = frozenset(() if eos is None else (int(eos),))
        self.token_bytes: Sequence[bytes] = token_bytes(backend, self.vocab_size)
        self._control_ids = {token.content: i for i, token in added.items() if token.special}
        self._control = ControlTokens(self._control_ids)
        probe = self._reads_control.encode("", add_special_tokens=True).ids
        bos = self.hf.bos_token_id
        self._bos = [int(bos)] if bos is not None and probe[:1] == [bos] else []
        first = self._reads_control.encode("a", add_special_tokens=False).ids[:1]
        self._dummy_space = bool(first) and self.token_bytes[first[0]].startswith(b" ")

    def __repr__(self) -> str:
        return f"HFTokenizer({str(self.path)!r}, vocab_size={self.vocab_size})"

    def encode(self, text: str, *, add_bos: bool = True, control: bool = True) -> list[int]:
        fast = self._reads_control if control else self._reads_text
        if not add_bos:
            return self._encode_continuation(fast, text)
        ids: list[int] = fast.encode(text, add_special_tokens=False).ids
        return ids if ids[:1] == self._bos else self._bos + ids

    def _encode_continuation(self, fast: FastTokenizer, text: str) -> list[int]:
        """Ids of a text that follows others: without the space that SentencePiece-style
        tokenizers put before the first word. It is put before an anchor instead."""
        if not self._dummy_space or not text:
            return list(fast.encode(text, add_special_tokens=False).ids)
        anchor = fast.encode(_ANCHOR, add_special_tokens=False).ids
        ids = fast.encode(_ANCHOR + text, add_special_tokens=False).ids
        if ids[: len(anchor)] != anchor:  # the anchor merged with newlines of the text
            ids, anchor = fast.encode(text, add_special_tokens=False).ids, []
        return list(ids[len(anchor) :])

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        skip = self.special_ids if skip_special_tokens else frozenset()
        table = self.token_bytes
        data = b"".join(table[i] for i in ids if i not in skip and i < len(table))
        return data.decode(errors="replace")

    def render_chat(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **template_kwargs: Any,
    ) -> str:
        if not self.hf.chat_template:
            raise no_template()
        prepared = prepare_messages(messages, self._control.defuse)
        try:
            rendered: str = self.hf.apply_chat_template(
                prepared,
                tokenize=False,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                **template_kwargs,
            )
        except (jinja2.TemplateError, TypeError, ValueError, KeyError, AttributeError) as error:
            raise ChatTemplateError(f"the model's chat template says: {error}") from error
        return rendered

    def encode_rendered(self, rendered: str) -> list[int]:
        if MARK not in rendered:
            fast = self._reads_control
            if self._control.starts(rendered):
                return list(fast.encode(rendered, add_special_tokens=False).ids)
            return self._encode_continuation(fast, rendered)
        ids: list[int] = []
        for piece, is_control in self._control.pieces(rendered):
            if is_control:
                ids.append(self._control_ids[piece])
            else:
                ids += self._encode_continuation(self._reads_text, piece)
        return ids

    def plain(self, rendered: str) -> str:
        return self._control.plain(rendered)
