from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, pre_tokenizers

from rtlang.runtime.hf_tokenizer import HFTokenizer
from rtlang.runtime.vocab_bytes import vocab_bytes

# The space mark itself is the one character that a SentencePiece vocabulary cannot tell.
CHARACTERS = st.characters(codec="utf-8", exclude_characters="▁")
TEXT = st.text(st.one_of(st.sampled_from("the cat  \n\t<>0xA"), CHARACTERS))


@settings(max_examples=150, deadline=None)
@given(text=TEXT)
def test_bytes_of_a_continuation_are_exactly_the_text(
    any_tokenizer: HFTokenizer, text: str
) -> None:
    ids = any_tokenizer.encode(text, add_bos=False, control=False)
    assert b"".join(any_tokenizer.token_bytes[i] for i in ids) == text.encode()


def test_byte_level_alphabet_has_all_256_bytes_as_the_decoder_reads_them() -> None:
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    vocab = {char: i for i, char in enumerate(alphabet)}
    table = vocab_bytes({"decoder": {"type": "ByteLevel"}}, vocab, 256)
    assert sorted(table) == [bytes([b]) for b in range(256)]
    decoder = decoders.ByteLevel()
    for char, i in vocab.items():
        assert decoder.decode([char]) == table[i].decode(errors="replace")


def test_byte_level_is_known_by_its_pre_tokenizer_where_there_is_no_decoder() -> None:
    split = {"type": "Sequence", "pretokenizers": [{"type": "Split"}, {"type": "ByteLevel"}]}
    assert vocab_bytes({"decoder": None, "pre_tokenizer": split}, {"Ġa": 0}, 1) == [b" a"]


def test_byte_pieces_are_bytes_only_with_byte_fallback() -> None:
    fallback = {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]}
    vocab = {"<0xE2>": 0, "<0xZZ>": 1}
    assert vocab_bytes({"decoder": fallback}, vocab, 2) == [b"\xe2", b"<0xZZ>"]
    assert vocab_bytes({"decoder": {"type": "Fuse"}}, vocab, 2) == [b"<0xE2>", b"<0xZZ>"]


def test_space_marks_become_spaces_and_ids_without_a_token_are_empty() -> None:
    metaspace = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always"}
    table = vocab_bytes({"decoder": metaspace}, {"▁The": 1, "▁▁": 3}, 6)
    assert table == [b"", b" The", b"", b"  ", b"", b""]


def test_added_tokens_keep_their_spelling() -> None:
    added = [
        {"id": 0, "content": "<|é|>", "special": True},
        {"id": 1, "content": "▁▁", "special": False},
        {"id": 2, "content": "▁", "special": True},
    ]
    spec = {"decoder": {"type": "Metaspace"}, "added_tokens": added}
    vocab = {"<|é|>": 0, "▁▁": 1, "▁": 2}
    assert vocab_bytes(spec, vocab, 3) == ["<|é|>".encode(), b"  ", "▁".encode()]


@pytest.mark.parametrize("kind", ["WordPiece", "CTC", "BPEDecoder"])
def test_a_decoder_that_works_between_tokens_is_refused_by_name(kind: str) -> None:
    with pytest.raises(ValueError, match=kind):
        vocab_bytes({"decoder": {"type": kind}}, {}, 0)
