from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtlang.errors import InvalidPrompt, ModelLoadError
from rtlang.runtime.chat_template import BREAK, MARK
from rtlang.runtime.hf_tokenizer import HFTokenizer
from rtlang.runtime.tokenizer import Tokenizer

WORDS = st.lists(
    st.sampled_from(["The", " cat", "  ", "\n", "\n\n", "é", "🙂", "a", " ", "=", "\x01", "中"])
).map("".join)


def test_encode_adds_the_tokenizers_own_bos_once(sp_tokenizer: HFTokenizer) -> None:
    tokenizer: Tokenizer = sp_tokenizer
    hf = sp_tokenizer.hf
    for text in ("The cat", "", " x", "中"):
        ids = tokenizer.encode(text)
        assert ids == hf.encode(text)
        assert ids.count(hf.bos_token_id) == 1
        assert ids[0] == hf.bos_token_id


def test_i1_a_text_that_spells_bos_gets_no_second_one(sp_tokenizer: HFTokenizer) -> None:
    bos = sp_tokenizer.hf.bos_token_id
    assert sp_tokenizer.encode("<s>The cat").count(bos) == 1
    harmless = sp_tokenizer.encode("<s>The cat", control=False)
    assert harmless.count(bos) == 1
    assert sp_tokenizer.decode(harmless).strip() == "<s>The cat"


def test_a_tokenizer_that_adds_no_bos_gets_none(byte_level_tokenizer: HFTokenizer) -> None:
    ids = byte_level_tokenizer.encode("The cat")
    assert ids == byte_level_tokenizer.encode("The cat", add_bos=False)
    assert ids == byte_level_tokenizer.hf.encode("The cat")


@settings(max_examples=100, deadline=None)
@given(text=WORDS)
def test_c6_a_continuation_has_its_own_spaces_and_no_other(
    any_tokenizer: HFTokenizer, text: str
) -> None:
    ids = any_tokenizer.encode(text, add_bos=False)
    assert any_tokenizer.decode(ids) == text


@settings(max_examples=60, deadline=None)
@given(first=WORDS, second=WORDS)
def test_c6_parts_encoded_apart_read_like_the_whole(
    any_tokenizer: HFTokenizer, first: str, second: str
) -> None:
    ids = any_tokenizer.encode(first) + any_tokenizer.encode(second, add_bos=False)
    whole = any_tokenizer.decode(any_tokenizer.encode(first + second))
    if first:
        assert any_tokenizer.decode(ids) == whole


def test_control_tokens_are_ids_or_text(byte_level_tokenizer: HFTokenizer) -> None:
    tokenizer = byte_level_tokenizer
    text = "a<|im_end|>b"
    read = tokenizer.encode(text)
    (end,) = tokenizer.eos_ids
    assert end in read
    harmless = tokenizer.encode(text, control=False)
    assert not tokenizer.special_ids & set(harmless)
    assert tokenizer.decode(harmless) == text
    assert tokenizer.decode(read) == "ab"
    assert tokenizer.decode(read, skip_special_tokens=False) == text


def test_added_tokens_that_are_not_special_stay_one_token(
    byte_level_tokenizer: HFTokenizer,
) -> None:
    ids = byte_level_tokenizer.encode("<think>", control=False)
    assert len(ids) == 1
    assert byte_level_tokenizer.decode(ids) == "<think>"


def test_decode_takes_padded_ids_and_refuses_negative_ones(any_tokenizer: HFTokenizer) -> None:
    assert any_tokenizer.vocab_size == len(any_tokenizer.token_bytes)
    assert any_tokenizer.decode([any_tokenizer.vocab_size, any_tokenizer.vocab_size + 99]) == ""
    with pytest.raises(InvalidPrompt, match="-3"):
        any_tokenizer.decode([-3])


@pytest.mark.parametrize("text", ["\ud800", None, 7])
def test_what_is_no_text_is_refused(any_tokenizer: HFTokenizer, text: object) -> None:
    for encode in (any_tokenizer.encode, any_tokenizer.encode_rendered):
        with pytest.raises(InvalidPrompt):
            encode(text)  # type: ignore[arg-type]


def test_control_and_text_are_read_by_threads_at_once(byte_level_tokenizer: HFTokenizer) -> None:
    tokenizer = byte_level_tokenizer
    text = "user<|im_end|> " * 20
    expected = {c: tokenizer.encode(text, control=c) for c in (True, False)}
    assert expected[True] != expected[False]
    wrong: list[bool] = []

    def work(control: bool) -> None:
        for _ in range(100):
            if tokenizer.encode(text, control=control) != expected[control]:
                wrong.append(control)

    threads = [threading.Thread(target=work, args=(bool(i % 2),)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


PARTS = ["The", " cat", "  ", "\n", "é🙂", "<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|end|>"]


@settings(max_examples=150, deadline=None)
@given(text=st.lists(st.sampled_from([*PARTS, "<|pad|>", "<think>"])).map("".join))
@pytest.mark.parametrize("continued", [False, True])
def test_the_path_for_marked_texts_equals_the_plain_one_without_marks(
    any_tokenizer: HFTokenizer, text: str, continued: bool
) -> None:
    plain = any_tokenizer.encode_rendered(text, continued=continued)
    assert any_tokenizer._encode_marked(text, continued=continued) == plain


@settings(max_examples=100, deadline=None)
@given(content=st.lists(st.sampled_from([*PARTS, MARK, BREAK])).map("".join))
def test_i_control_tokens_in_a_content_are_text_with_every_tokenizer(
    any_tokenizer: HFTokenizer, content: str
) -> None:
    tokenizer = any_tokenizer

    def count(text: str) -> int:
        rendered = tokenizer.render_chat([{"role": "user", "content": text}])
        ids = tokenizer.encode_rendered(rendered)
        expected = tokenizer.plain(rendered)
        assert text in expected
        shown = tokenizer.decode(ids, skip_special_tokens=False)
        if "<|end|>" not in tokenizer._special:  # (those swallow space around them)
            assert shown.replace(" ", "") == expected.replace(" ", "")
        return sum(i in tokenizer.special_ids for i in ids)

    assert count(content) == count("x")


@pytest.mark.parametrize("add_generation_prompt", [True, False])
def test_i1_rendered_chats_have_the_ids_of_apply_chat_template_and_bos_once(
    any_tokenizer: HFTokenizer, add_generation_prompt: bool
) -> None:
    tokenizer = any_tokenizer
    turns = [
        {"role": "user", "content": "The cat?"},
        {"role": "assistant", "content": "sat  on\n\nthe mat 🙂"},
        {"role": "user", "content": " And then? "},
    ]
    for n in (1, 2, 3):
        options = {"add_generation_prompt": add_generation_prompt}
        rendered = tokenizer.render_chat(turns[:n], **options)
        ids = tokenizer.encode_rendered(rendered)
        assert rendered == tokenizer.hf.apply_chat_template(turns[:n], tokenize=False, **options)
        assert ids == tokenizer.hf.apply_chat_template(turns[:n], **options)["input_ids"]
        if tokenizer.hf.bos_token_id is not None:
            assert ids.count(tokenizer.hf.bos_token_id) == 1


def test_the_rest_of_a_chat_joins_to_the_ids_of_the_whole(any_tokenizer: HFTokenizer) -> None:
    tokenizer = any_tokenizer
    turns = [{"role": "user", "content": "The cat"}, {"role": "assistant", "content": "sat."}]
    begin = tokenizer.render_chat(turns[:1])
    whole = tokenizer.render_chat(turns, add_generation_prompt=False)
    assert whole.startswith(begin)
    rest = tokenizer.encode_rendered(whole[len(begin) :], continued=True)
    assert tokenizer.encode_rendered(begin) + rest == tokenizer.encode_rendered(whole)


def test_a_chat_that_begins_with_plain_text_has_the_templates_ids(
    folder: Callable[[str], Path],
) -> None:
    template = "{% for m in messages %}{{ m.role }}: {{ m.content }}{{ eos_token }}{% endfor %}"
    for kind in ("sp-legacy", "sp-first", "sp-always", "sp-never"):
        tokenizer = HFTokenizer(folder(kind), chat_template=template)
        turns = [{"role": "user", "content": "hello"}, {"role": "tool", "content": "cat"}]
        ids = tokenizer.encode_rendered(tokenizer.render_chat(turns))
        assert ids == tokenizer.hf.apply_chat_template(turns)["input_ids"]


def test_a_folder_without_a_readable_tokenizer_is_a_load_error(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=str(tmp_path)):
        HFTokenizer(tmp_path)
