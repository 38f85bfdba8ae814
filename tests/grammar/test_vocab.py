"""The vocabulary of constraints: what counts as text, rows of bits, the fingerprint."""

from __future__ import annotations

import numpy as np
import pytest

from rtlang.errors import ConfigError
from rtlang.grammar.vocab import Bitmask, Vocab


def ids(row: Bitmask) -> set[int]:
    bits = np.unpackbits(row.view(np.uint8), bitorder="little")
    return set(np.flatnonzero(bits).tolist())


def test_build_pads_to_the_head_and_blanks_what_is_no_text() -> None:
    vocab = Vocab.build([b"a", b"<s>", b"b", b"</s>"], 40, stop_ids=[3], special_ids=[1, 3, 99])
    assert vocab.token_bytes == (b"a", b"", b"b", b"") + (b"",) * 36
    assert ids(vocab.stop_row) == {3}
    assert ids(vocab.open_row) == {0, 2, 3}
    assert vocab.num_words == 2 == len(vocab.open_row)


def test_ids_beyond_the_head_are_left_out() -> None:
    vocab = Vocab.build([b"a", b"b", b"c"], 2, stop_ids=[1, 2])
    assert vocab.token_bytes == (b"a", b"") and vocab.stop_ids == {1}
    with pytest.raises(ConfigError, match="end-of-text"):
        Vocab.build([b"a", b"b", b"c"], 2, stop_ids=[2])


def test_bytes_only_has_every_byte() -> None:
    vocab = Vocab.bytes_only()
    assert vocab.token_bytes[:256] == tuple(bytes([i]) for i in range(256))
    assert vocab.stop_ids == {256} and vocab.vocab_size == 257
    assert ids(vocab.open_row) == set(range(257))


def test_fingerprint_tells_vocabularies_apart() -> None:
    def made(*tokens: bytes, size: int = 8, stop: int = 7) -> str:
        return Vocab.build(tokens, size, stop_ids=[stop]).fingerprint

    assert made(b"a", b"bc") == made(b"a", b"bc")
    others = [
        made(b"ab", b"c"),
        made(b"bc", b"a"),
        made(b"a", b"bc", size=9),
        made(b"a", b"bc", stop=6),
    ]
    assert len({made(b"a", b"bc"), *others}) == 5
