"""The vocabulary as constraints see it: the bytes of each token, and the ids that end a text."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Iterable, Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

from rtlang.errors import ConfigError

_SURROGATE = re.compile(b"\xed[\xa0-\xbf]")
#: int32 [rows, ceil(vocab_size / 32)], C-contiguous: bit ``i % 32`` of word ``i // 32`` is set
#: where id ``i`` may follow.
Bitmask = npt.NDArray[np.int32]
#: What an id is: no text, text, text that may begin a surrogate, the end of a text.
CONTROL, TEXT, HALF, STOP = range(4)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Vocab:
    """Compared by identity; ``fingerprint`` is equal for equal contents.

    token_bytes  of each id in the middle of a text; b"" for ids that are no text: control
                 tokens, stop ids, padding, surrogates. No constraint but the end of a text
                 allows those.
    vocab_size   the width of the model's head, and the length of ``token_bytes``
    stop_ids     any of them ends a text
    """

    token_bytes: tuple[bytes, ...]
    vocab_size: int
    stop_ids: frozenset[int]

    def __post_init__(self) -> None:
        assert len(self.token_bytes) == self.vocab_size
        assert not any(self.token_bytes[i] for i in self.stop_ids)

    @classmethod
    def build(
        cls,
        token_bytes: Sequence[bytes],
        vocab_size: int,
        *,
        stop_ids: Iterable[int],
        special_ids: Iterable[int] = (),
    ) -> Vocab:
        """From a tokenizer's table, which may be shorter than the head, or longer: such ids are
        never sampled. Raises ``ConfigError`` if no stop id is left: no text could end."""
        stops = frozenset(i for i in stop_ids if 0 <= i < vocab_size)
        if not stops:
            raise ConfigError("a constraint needs a model with an end-of-text token")
        table = list(token_bytes[:vocab_size])
        table += [b""] * (vocab_size - len(table))
        for i in stops.union(i for i in special_ids if i < vocab_size):
            table[i] = b""
        table = [b"" if _SURROGATE.search(data) else data for data in table]
        return cls(tuple(table), vocab_size, stops)

    @classmethod
    def bytes_only(cls) -> Vocab:
        """Each byte is a token, its own id; 256 ends a text."""
        return cls((*(bytes([i]) for i in range(256)), b""), 257, frozenset({256}))

    @cached_property
    def fingerprint(self) -> str:
        """sha256 (hex) of everything above."""
        digest = hashlib.sha256(repr((self.vocab_size, sorted(self.stop_ids))).encode())
        for data in self.token_bytes:
            digest.update(len(data).to_bytes(4, "little") + data)
        return digest.hexdigest()

    @cached_property
    def texts(self) -> tuple[tuple[str, bytes], ...]:
        """Of each id what ``decoded`` says of its bytes."""
        return tuple(map(decoded, self.token_bytes))

    @cached_property
    def kinds(self) -> bytes:
        """Of each id: ``CONTROL``, ``TEXT``, ``HALF`` (it ends with the byte ED, which may begin
        a surrogate) or ``STOP``."""
        kinds = bytearray(
            (HALF if data.endswith(b"\xed") else TEXT) if data else CONTROL
            for data in self.token_bytes
        )
        for i in self.stop_ids:
            kinds[i] = STOP
        return bytes(kinds)

    def tabulate(self) -> None:
        """Make the tables that masks need: now, and not in the loop that generates."""
        for table in (self.kinds, self.texts, self.stop_row, self.open_row, self.whole_row):
            assert len(table)

    def ends_surrogate(self, token_id: int) -> bool:
        """Whether the token, after one that is ``HALF``, makes a surrogate: no UTF-8."""
        return self.token_bytes[token_id][:1] >= b"\xa0"

    @cached_property
    def whole_row(self) -> Bitmask:
        """The row [num_words] of what may follow a token that is ``HALF``."""
        return ~self.row_of(
            i for i, data in enumerate(self.token_bytes) if data and self.ends_surrogate(i)
        )

    @property
    def num_words(self) -> int:
        """Of a row of a bitmask."""
        return (self.vocab_size + 31) // 32

    @cached_property
    def stop_row(self) -> Bitmask:
        """The row [num_words] that allows the stop ids."""
        return self.row_of(self.stop_ids)

    @cached_property
    def open_row(self) -> Bitmask:
        """The row [num_words] of all that any constraint may allow: text and the stop ids."""
        texts = (i for i, data in enumerate(self.token_bytes) if data)
        return self.row_of([*texts, *self.stop_ids])

    def row_of(self, ids: Iterable[int]) -> Bitmask:
        """A row [num_words] with the bits of ``ids``, which are below ``vocab_size``."""
        bits = np.zeros(32 * self.num_words, np.uint8)
        bits[list(ids)] = 1
        return np.packbits(bits, bitorder="little").view(np.int32)


def decoded(data: bytes) -> tuple[str, bytes]:
    """Its characters, and the bytes at its end that begin another one. What is no UTF-8, whatever
    follows, is no text, and all of it is returned as bytes."""
    try:
        return data.decode(), b""
    except UnicodeDecodeError as error:
        if error.reason != "unexpected end of data":
            return "", data
        return data[: error.start].decode(), data[error.start :]
