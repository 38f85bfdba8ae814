"""Id -> bytes of a fast tokenizer, from its decoder: byte-level BPE or SentencePiece-style."""

from __future__ import annotations

import json
import re
from typing import Any

from tokenizers import Tokenizer as FastTokenizer

_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _byte_alphabet() -> dict[str, int]:
    """The printable stand-ins of byte-level BPE (GPT-2): character -> byte."""
    kept = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(b): b for b in kept}
    others = (b for b in range(256) if b not in set(kept))
    return table | {chr(0x100 + i): b for i, b in enumerate(others)}


def token_bytes(fast: FastTokenizer, vocab_size: int) -> list[bytes]:
    """The bytes that each id adds to a text; ids without a token give ``b""``."""
    spec: dict[str, Any] = json.loads(fast.to_str())
    added = {t["id"]: t["content"] for t in spec.get("added_tokens", [])}
    byte_level = "ByteLevel" in json.dumps([spec.get("decoder"), spec.get("pre_tokenizer")])
    alphabet = _byte_alphabet()
    table = [b""] * vocab_size
    for piece, index in fast.get_vocab(with_added_tokens=True).items():
        if index in added:
            table[index] = added[index].encode()
        elif byte_level and all(c in alphabet for c in piece):
            table[index] = bytes(alphabet[c] for c in piece)
        elif match := _BYTE_PIECE.fullmatch(piece):
            table[index] = bytes([int(match[1], 16)])
        else:
            table[index] = piece.replace("\u2581", " ").encode()
    return table
