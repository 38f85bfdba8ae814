"""Token masks through llguidance, an optional dependency, with its own reading of JSON schemas.

It enforces keywords that ours does not, and refuses what it cannot enforce.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Sequence
from typing import Any

from rtlang.errors import GrammarError, GrammarTooSlow, UnsupportedKeyword
from rtlang.grammar.matcher import Matcher, Native
from rtlang.grammar.vocab import Bitmask, Vocab

#: llguidance does not tell what it holds; it grows as masks are made.
_SIZE_BYTES = 1 << 20
#: Where a schema may set llguidance's own options, unsound ones too.
_OPTIONS_KEY = "x-guidance"


def available() -> bool:
    return importlib.util.find_spec("llguidance") is not None


class LlgBackend:
    """llguidance for one vocabulary. Compiling and filling release the GIL."""

    def __init__(self, vocab: Vocab) -> None:
        import llguidance  # noqa: PLC0415  optional

        self.vocab = vocab
        self._llg: Any = llguidance
        self._tokenizer: Any = self._llg.LLTokenizer(
            _Wrapper(vocab), n_vocab=vocab.vocab_size, eos_token=sorted(vocab.stop_ids)
        )

    def compile_schema(self, schema: str, *, max_whitespace: int = 16) -> LlgCompiled:
        """schema: JSON text. Up to ``max_whitespace`` blanks wherever JSON has whitespace.

        Raises ``UnsupportedKeyword`` for whatever would not be enforced and for what is no schema.
        """
        parsed = json.loads(schema)
        if isinstance(parsed, dict) and _OPTIONS_KEY in parsed:
            raise UnsupportedKeyword(f"{_OPTIONS_KEY} is not for requests", keyword=_OPTIONS_KEY)
        options = {
            "whitespace_flexible": max_whitespace > 0,
            "whitespace_pattern": rf"[ \t\n\r]{{0,{max_whitespace}}}",
            "coerce_one_of": False,
            "lenient": False,
        }
        matcher = self._llg.LLMatcher
        return self._compile(matcher.grammar_from_json_schema(schema, overrides=options))

    def compile_regex(self, pattern: str) -> LlgCompiled:
        """A pattern of Rust's ``regex`` that whole texts match. Raises ``GrammarError``."""
        return self._compile(self._llg.LLMatcher.grammar_from_regex(pattern))

    def _compile(self, grammar: str) -> LlgCompiled:
        matcher = self._llg.LLMatcher
        is_error, notes = matcher.validate_grammar_with_warnings(grammar, self._tokenizer)
        if is_error or notes:  # a warning tells of what would be left out
            raise UnsupportedKeyword("; ".join(notes))
        start = matcher(self._tokenizer, grammar, log_level=0)
        if start.is_error():
            raise GrammarError(start.get_error())
        return LlgCompiled(self.vocab, start)


class _Wrapper:
    """The vocabulary as ``LLTokenizer`` takes it. Ids without bytes are never in a mask.

    Where llguidance sees a single way to go on, it allows the first token of that text as it is
    tokenized here: in the longest pieces. So its masks are no wider than exact ones, but may be
    narrower.
    """

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, vocab: Vocab) -> None:
        self.tokens = list(vocab.token_bytes)
        self.eos_token_id = min(vocab.stop_ids)
        self.special_token_ids: list[int] = []
        pairs = list(enumerate(vocab.token_bytes))
        self._ids = {data: token for token, data in reversed(pairs) if data}  # lowest id wins
        self._longest = max(map(len, self._ids), default=0)

    def __call__(self, text: bytes | str) -> list[int]:
        data = text.encode() if isinstance(text, str) else text
        ids: list[int] = []
        while data:
            sizes = range(min(self._longest, len(data)), 0, -1)
            size = next((size for size in sizes if data[:size] in self._ids), 0)
            assert size, f"no token for {data[:1]!r}"  # then the text is a dead end
            ids.append(self._ids[data[:size]])
            data = data[size:]
        return ids


class LlgCompiled:
    """Implements ``Compiled``."""

    size_bytes = _SIZE_BYTES

    def __init__(self, vocab: Vocab, start: Any) -> None:
        self._vocab = vocab
        self._start = start

    def matcher(self) -> Matcher:
        return Matcher(_LlgNative(self._start.deep_copy(), self._vocab), self._vocab)


class _LlgNative:
    """Implements ``Native``."""

    def __init__(self, sequence: Any, vocab: Vocab) -> None:
        self._sequence = sequence
        self._vocab = vocab

    def accept(self, token_id: int) -> bool:
        """Raises ``GrammarTooSlow`` if llguidance gives up, as it does beyond limits of its own."""
        # To consume a token that may not follow would put it out of use for good.
        if self._sequence.try_consume_tokens([token_id]) == 1:
            return True
        if self._sequence.is_error():
            reason = self._sequence.get_error().partition("\n")[0]
            raise GrammarTooSlow(f"the constraint is beyond the limits of llguidance: {reason}")
        return False

    def can_end(self) -> bool:
        return bool(self._sequence.is_accepting())

    def fill(self, bitmask: Bitmask, row: int) -> None:
        words = bitmask[row]
        self._sequence.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
        if self._sequence.is_error():  # it gave up; its mask says that the text may end here
            words[:] = 0
        words &= self._vocab.open_row  # it allows more than there is

    def fill_many(self, natives: Sequence[Native], bitmask: Bitmask, rows: Sequence[int]) -> None:
        for native, row in zip(natives, rows, strict=True):
            native.fill(bitmask, row)

    def rollback(self, num_tokens: int) -> None:
        done = self._sequence.rollback(num_tokens)
        assert done, self._sequence.get_error()

    def fork(self) -> _LlgNative:
        return _LlgNative(self._sequence.deep_copy(), self._vocab)

    def note_jump(self, jumped: bool) -> None:
        """Nothing is remembered for other sequences."""

    def expects_jump(self) -> bool:
        return False

    def forced_text(self) -> str:
        forced: bytes = self._sequence.compute_ff_bytes()
        inside_a_character = bool(forced) and 0x80 <= forced[0] < 0xC0
        return "" if inside_a_character else forced.decode(errors="ignore")  # cuts an open end
