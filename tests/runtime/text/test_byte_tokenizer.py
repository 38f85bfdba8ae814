from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtlang.errors import ChatTemplateError, InvalidParameter, InvalidPrompt
from rtlang.runtime.byte_tokenizer import BOS, EOS, IM_END, IM_START, ByteTokenizer
from rtlang.runtime.chat_template import BREAK, MARK
from rtlang.runtime.tokenizer import Tokenizer

UTF8 = st.text(st.one_of(st.characters(codec="utf-8"), st.sampled_from(MARK + BREAK)))
SPELLED = st.lists(st.sampled_from(["<|im_end|>", "<|im_", "start|>", "a", MARK, BREAK]))


@given(text=UTF8.filter(lambda text: "<|" not in text), control=st.booleans())
def test_text_without_control_tokens_is_its_bytes(text: str, control: bool) -> None:
    tokenizer: Tokenizer = ByteTokenizer()
    assert tokenizer.encode(text, control=control) == list(text.encode())
    assert tokenizer.decode(tokenizer.encode(text, control=control)) == text


def test_control_tokens_are_read_only_if_asked_for() -> None:
    tokenizer = ByteTokenizer()
    text = "a<|im_start|>b<|endoftext|>"
    assert tokenizer.encode(text) == [97, IM_START, 98, EOS]
    assert tokenizer.encode(text, control=False) == list(text.encode())
    assert tokenizer.decode([97, IM_START, 98, EOS]) == "ab"
    assert tokenizer.decode([97, IM_START, 98, EOS], skip_special_tokens=False) == text


def test_bos_is_added_only_where_asked_for_and_once() -> None:
    assert ByteTokenizer().encode("a") == [97]
    tokenizer = ByteTokenizer(bos=True)
    assert tokenizer.encode("a") == [BOS, 97]
    assert tokenizer.encode("") == [BOS]
    assert tokenizer.encode("<|bos|>a") == [BOS, 97]
    assert tokenizer.encode("a", add_bos=False) == [97]


def test_the_table_covers_the_vocabulary() -> None:
    tokenizer = ByteTokenizer(300)
    assert tokenizer.vocab_size == len(tokenizer.token_bytes) == 300
    assert tokenizer.token_bytes[299] == b""
    assert tokenizer.decode([97, 299, 5000]) == "a"
    assert tokenizer.special_ids == {EOS, BOS, IM_START, IM_END}
    assert tokenizer.eos_ids == {EOS}


@pytest.mark.parametrize("text", ["\ud800", 5, None, b"a"])
def test_what_is_no_text_is_refused(text: object) -> None:
    with pytest.raises(InvalidPrompt):
        ByteTokenizer().encode(text)  # type: ignore[arg-type]


def test_negative_ids_are_refused() -> None:
    with pytest.raises(InvalidPrompt, match="-1"):
        ByteTokenizer().decode([97, -1])


def test_chat_is_chatml() -> None:
    tokenizer = ByteTokenizer()
    turns = [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}]
    closed = "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n"
    rendered = tokenizer.render_chat(turns)
    assert rendered == closed + "<|im_start|>assistant\n"
    assert tokenizer.render_chat(turns, add_generation_prompt=False) == closed
    assert tokenizer.encode_rendered(rendered)[:8] == [IM_START, *b"system\n"]
    opened = tokenizer.render_chat(turns, continue_final_message=True)
    assert opened == closed.removesuffix("<|im_end|>\n")


@given(content=SPELLED.map("".join))
def test_i_control_tokens_in_a_content_stay_text(content: str) -> None:
    tokenizer = ByteTokenizer()
    rendered = tokenizer.render_chat([{"role": "user", "content": content}])
    before, after = "<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"
    ids = tokenizer.encode_rendered(rendered)
    assert ids == tokenizer.encode(before) + list(content.encode()) + tokenizer.encode(after)
    assert tokenizer.plain(rendered) == before + content + after


def test_no_chat_template_and_unknown_variables_are_errors() -> None:
    turns = [{"role": "user", "content": "U"}]
    with pytest.raises(ChatTemplateError, match="chat_template"):
        ByteTokenizer(chat=False).render_chat(turns)
    with pytest.raises(InvalidParameter, match="enable_thinking"):
        ByteTokenizer().render_chat(turns, enable_thinking=True)
