"""Whether a constraint allows a text: the answer without a model, for tests and tools."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from rtlang.grammar.matcher import Compiled
from rtlang.grammar.matcher import accepts as matches
from rtlang.grammar.spec import GrammarSpec
from rtlang.grammar.translate import translate
from rtlang.grammar.vocab import Vocab
from rtlang.grammar.xgr_backend import XgrBackend


class Tokens(Protocol):
    """What is needed of a tokenizer; the engine's have it."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def token_bytes(self) -> Sequence[bytes]: ...
    @property
    def special_ids(self) -> frozenset[int]: ...
    @property
    def eos_ids(self) -> frozenset[int]: ...
    def encode(self, text: str, *, add_bos: bool = ..., control: bool = ...) -> list[int]: ...


def accepts(
    spec: GrammarSpec | Mapping[str, Any], text: str, tokenizer: Tokens | None = None
) -> bool:
    """Whether a generation under ``spec`` could be exactly ``text`` and end there.

    tokenizer  match the ids that it encodes the text to; without: byte by byte. A text is
               allowed either way or not at all. Each call prepares the vocabulary anew.

    Raises ``GrammarError`` for a constraint that is refused.
    """
    wanted = GrammarSpec.of(spec)
    if tokenizer is None:
        # Half a character (a surrogate) is encoded too, as bytes that no constraint allows.
        return matches(_compiled(wanted), text.encode(errors="surrogatepass"))
    vocab = Vocab.build(
        tokenizer.token_bytes,
        tokenizer.vocab_size,
        stop_ids=tokenizer.eos_ids,
        special_ids=tokenizer.special_ids,
    )
    sequence = XgrBackend(vocab).compile(translate(wanted)).matcher()
    ids = tokenizer.encode(text, add_bos=False, control=False)
    return all(sequence.accept(token_id) for token_id in ids) and sequence.can_end()


@functools.lru_cache(maxsize=64)
def _compiled(spec: GrammarSpec) -> Compiled:
    return _bytes().compile(translate(spec))


@functools.cache
def _bytes() -> XgrBackend:
    return XgrBackend(Vocab.bytes_only())
