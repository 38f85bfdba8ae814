"""HFTokenizer: a model folder's own fast tokenizer and chat template, through transformers."""

from __future__ import annotations

import inspect
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as FastTokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from rtlang.errors import ChatTemplateError, InvalidParameter, InvalidPrompt, ModelLoadError
from rtlang.runtime.chat_template import (
    MARK,
    ControlTokens,
    defused,
    no_template,
    prepare_messages,
)
from rtlang.runtime.tokenizer import Message, check_text
from rtlang.runtime.vocab_bytes import vocab_bytes

#: Texts that take the dummy space in place of what follows them; see ``_encode_continuation``.
_ANCHORS = ("\n", "\x01", "=")
#: What apply_chat_template takes for itself: its output's form, not a template's variables.
_NOT_VARIABLES = frozenset(
    inspect.signature(PreTrainedTokenizerBase.apply_chat_template).parameters
) - {"self", "kwargs", "tools", "documents"}


class HFTokenizer:
    """Implements ``Tokenizer``; ``hf`` is the transformers object. Thread-safe: it only reads.

    Control tokens are the added tokens that the tokenizer calls special; others (``<think>``,
    ``<tool_call>``) are text that happens to be one token.
    """

    def __init__(self, path: Path | str, *, chat_template: str | None = None) -> None:
        """``chat_template``: a Jinja text instead of the folder's own.

        Raises ``ModelLoadError`` for a folder without a fast tokenizer that can be read.
        """
        self.path = Path(path)
        try:
            self.hf: Any = AutoTokenizer.from_pretrained(self.path, local_files_only=True)
            backend: FastTokenizer = self.hf.backend_tokenizer
            text = backend.to_str()
            spec = json.loads(text)
            vocab = backend.get_vocab(with_added_tokens=True)
            self.vocab_size = max(vocab.values()) + 1
            self.token_bytes: Sequence[bytes] = vocab_bytes(spec, vocab, self.vocab_size)
        except Exception as error:  # whatever a strange folder makes of the libraries
            raise ModelLoadError(f"{self.path}: cannot read the tokenizer: {error}") from error
        if chat_template is not None:
            self.hf.chat_template = chat_template
        self._reads_control = _copy(text)
        self._reads_text = _copy(text)  # a setting of the object, and threads share ours
        self._reads_text.encode_special_tokens = True
        special = [token for token in spec["added_tokens"] if token["special"]]
        self.special_ids = frozenset(int(token["id"]) for token in special)
        eos = self.hf.eos_token_id
        self.eos_ids = frozenset(() if eos is None else (int(eos),))
        self._special = {str(token["content"]): token for token in special}
        self._control = ControlTokens(self._special)
        bos = self.hf.bos_token_id
        probe = self._reads_control.encode("", add_special_tokens=True).ids
        self._bos = [int(bos)] if bos is not None and probe[:1] == [bos] else []
        self._dummy_space = self._makes_space("")
        first = next(iter(self._special), "")
        self._dummy_space_after_control = self._makes_space(first)

    def __repr__(self) -> str:
        return f"HFTokenizer({str(self.path)!r}, vocab_size={self.vocab_size})"

    def encode(self, text: str, *, add_bos: bool = True, control: bool = True) -> list[int]:
        check_text(text)
        fast = self._reads_control if control else self._reads_text
        if not add_bos:
            return self._encode_continuation(fast, text)
        ids = _encode(fast, text)
        return ids if ids[:1] == self._bos else self._bos + ids

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        if min(ids, default=0) < 0:
            raise InvalidPrompt(f"there is no token id {min(ids)}")
        skip = self.special_ids if skip_special_tokens else frozenset[int]()
        table = self.token_bytes
        data = b"".join(table[i] for i in ids if i < len(table) and i not in skip)
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
        for name in template_kwargs:
            if name in _NOT_VARIABLES:
                raise InvalidParameter(f"{name!r} is no variable of a chat template", param=name)
        for name in ("tools", "documents"):
            if name in template_kwargs:
                template_kwargs[name] = defused(template_kwargs[name], self._control.defuse)
        prepared = prepare_messages(messages, self._control.defuse)
        try:
            rendered: str = self.hf.apply_chat_template(
                prepared,
                tokenize=False,
                add_generation_prompt=add_generation_prompt and not continue_final_message,
                continue_final_message=continue_final_message,
                **template_kwargs,
            )
        except Exception as error:  # a template is a program: it may raise anything
            raise ChatTemplateError(f"the model's chat template says: {error}") from error
        return rendered

    def encode_rendered(self, rendered: str, *, continued: bool = False) -> list[int]:
        check_text(rendered)
        if MARK in rendered:
            return self._encode_marked(rendered, continued=continued)
        if continued:
            return self._encode_continuation(self._reads_control, rendered)
        return _encode(self._reads_control, rendered)

    def defuse(self, text: str) -> str:
        return self._control.defuse(text)

    def plain(self, rendered: str) -> str:
        return self._control.plain(rendered)

    def _encode_marked(self, rendered: str, *, continued: bool) -> list[int]:
        """Like one ``encode`` of the text, but only its live control tokens are read as such.

        A text without marks gets the same ids as from ``encode``: the tokenizer itself cuts a
        text at its control tokens before anything else.
        """
        ids: list[int] = []
        dummy_space = not continued
        pieces = self._control.pieces(rendered)
        for at, (piece, is_control) in enumerate(pieces):
            if is_control:
                ids.append(self._special[piece]["id"])
                dummy_space = self._dummy_space_after_control
                continue
            text = self._stripped(pieces, at)
            if dummy_space:
                ids += _encode(self._reads_text, text)
            else:
                ids += self._encode_continuation(self._reads_text, text)
        return ids

    def _stripped(self, pieces: Sequence[tuple[str, bool]], at: int) -> str:
        """A text piece without the space that its neighbours, control tokens, swallow."""
        text = pieces[at][0]
        if at > 0 and self._special[pieces[at - 1][0]]["rstrip"]:
            text = text.lstrip()
        if at + 1 < len(pieces) and self._special[pieces[at + 1][0]]["lstrip"]:
            text = text.rstrip()
        return text

    def _encode_continuation(self, fast: FastTokenizer, text: str) -> list[int]:
        """Ids of a text that follows others: without the space that SentencePiece-style
        tokenizers put before the first word. It is put before an anchor instead, one that does
        not merge with the text."""
        if not self._dummy_space or not text:
            return _encode(fast, text)
        for anchor in _ANCHORS:
            before = _encode(fast, anchor)
            ids = _encode(fast, anchor + text)
            if ids[: len(before)] == before:
                return ids[len(before) :]
        raise AssertionError(f"every anchor merged with {text[:20]!r}")

    def _makes_space(self, before: str) -> bool:
        """Whether a space is put before a word behind ``before`` that the text does not have."""
        ids = _encode(self._reads_control, before + "a")[1 if before else 0 :]
        return bool(ids) and self.token_bytes[ids[0]].startswith(b" ")


def _copy(spec: str) -> FastTokenizer:
    fast: FastTokenizer = FastTokenizer.from_str(spec)
    fast.no_truncation()
    fast.no_padding()
    return fast


def _encode(fast: FastTokenizer, text: str) -> list[int]:
    ids: list[int] = fast.encode(text, add_special_tokens=False).ids
    return ids
