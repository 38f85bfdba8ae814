"""Id -> bytes of a fast tokenizer, from its decoder: byte-level BPE or SentencePiece-style."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPACE = "\u2581"
#: Decoders whose effect on one token is known. Fuse, Strip and Sequence change no token's bytes
#: in the middle of a text (Strip takes the dummy space from its start).
_KNOWN = {"ByteLevel", "ByteFallback", "Metaspace", "Replace", "Fuse", "Strip", "Sequence"}

Piece = Callable[[str], bytes]


def vocab_bytes(spec: Mapping[str, Any], vocab: Mapping[str, int], vocab_size: int) -> list[bytes]:
    """The bytes that each id adds in the middle of a text; ids without a token give ``b""``.

    spec        the tokenizer's JSON (``tokenizer.json``), parsed
    vocab       token -> id, added tokens included; every id is below ``vocab_size``

    Control tokens give their spelling. Raises ``ValueError`` that names a decoder we do not know.
    """
    piece_bytes = _piece_decoder(spec)
    added = {token["id"]: token for token in spec.get("added_tokens") or []}
    table = [b""] * vocab_size
    for piece, index in vocab.items():
        token = added.get(index)
        if token is None:
            table[index] = piece_bytes(piece)
        else:
            table[index] = _added_bytes(token, piece_bytes)
    return table


def _added_bytes(token: Mapping[str, Any], piece_bytes: Piece) -> bytes:
    """Added tokens are spelled as they read, but for runs of spaces written as pieces (Gemma)."""
    content: str = token["content"]
    if not token["special"] and _SPACE in content:
        return piece_bytes(content)
    return content.encode()


def _piece_decoder(spec: Mapping[str, Any]) -> Piece:
    decoders = list(_steps(spec.get("decoder")))
    names = {step["type"] for step in decoders}
    if unknown := names - _KNOWN:
        raise ValueError(f"cannot tell the bytes of tokens with the decoder {min(unknown)}")
    splitters = {step["type"] for step in _steps(spec.get("pre_tokenizer"))}
    if "ByteLevel" in names or (not names and "ByteLevel" in splitters):
        return _byte_level
    replaced = [_replacement(step) for step in decoders if step["type"] in ("Replace", "Metaspace")]
    fallback = "ByteFallback" in names

    def decode(piece: str) -> bytes:
        if fallback and (match := _BYTE_PIECE.fullmatch(piece)):
            return bytes([int(match[1], 16)])
        for old, new in replaced:
            piece = piece.replace(old, new)
        return piece.encode()

    return decode


def _steps(part: Mapping[str, Any] | None) -> Iterator[Mapping[str, Any]]:
    """A decoder or pre-tokenizer and, for a sequence, what it consists of."""
    if part is None:
        return
    yield part
    nested: Sequence[Mapping[str, Any]] = part.get("decoders") or part.get("pretokenizers") or []
    for step in nested:
        yield from _steps(step)


def _replacement(step: Mapping[str, Any]) -> tuple[str, str]:
    if step["type"] == "Metaspace":
        return step.get("replacement", _SPACE), " "
    old = step["pattern"].get("String")
    if old is None:
        raise ValueError("cannot tell the bytes of tokens whose decoder replaces a regex")
    return old, step["content"]


def _byte_alphabet() -> dict[str, int]:
    """The printable stand-ins of byte-level BPE (GPT-2): character -> byte."""
    kept = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = (b for b in range(256) if b not in set(kept))
    return {chr(b): b for b in kept} | {chr(0x100 + i): b for i, b in enumerate(others)}


_ALPHABET = _byte_alphabet()


def _byte_level(piece: str) -> bytes:
    try:
        return bytes([_ALPHABET[char] for char in piece])
    except KeyError:  # not written in the alphabet, so written as it reads
        return piece.encode()
