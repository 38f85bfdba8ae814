from __future__ import annotations

import codecs
import itertools
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtlang.runtime.byte_tokenizer import EOS, IM_END, ByteTokenizer
from rtlang.runtime.detokenizer import MAX_BORDERS, Detokenizer
from rtlang.runtime.hf_tokenizer import HFTokenizer
from rtlang.runtime.messages import FinishReason
from rtlang.runtime.sampling_params import SamplingParams
from rtlang.runtime.stops import StopChecker
from rtlang.runtime.tokenizer import Tokenizer

LENGTH = FinishReason("length", None, "max_new_tokens")
EOS_STOP = FinishReason("stop", EOS, "eos")


class Pieces(ByteTokenizer):
    """Tokens of any bytes: the id is the position in the list. No control tokens."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        super().__init__()
        self.token_bytes = list(pieces)
        self.special_ids = frozenset()


def generate(
    tokenizer: Tokenizer, ids: Sequence[int], params: SamplingParams, groups: Sequence[int] = ()
) -> tuple[list[str], Detokenizer, FinishReason]:
    """As the engine does it: the scheduler's checker ends it, the detokenizer gets the ids in
    groups of the given sizes (then one by one)."""
    checker = StopChecker(tokenizer, params)
    detokenizer = Detokenizer(tokenizer, params)
    deltas: list[str] = []
    waiting: list[int] = []
    sizes = list(groups)
    for n, token in enumerate(ids, start=1):
        waiting.append(token)
        finish = checker.match_token(token, n) or (LENGTH if n == len(ids) else None)
        if finish is not None or len(waiting) >= (sizes[0] if sizes else 1):
            deltas.append(detokenizer.feed(waiting, finish))
            waiting, sizes = [], sizes[1:]
        if finish is not None:
            return deltas, detokenizer, finish
    return [*deltas, detokenizer.feed([], LENGTH)], detokenizer, LENGTH


def offline(
    pieces: Sequence[bytes], params: SamplingParams
) -> tuple[str, int, str, str | int | None]:
    """The oracle, from all bytes: (text, kept ids, kept text, matched stop)."""
    floor = 0  # characters of the tokens that may not stop
    for n in range(1, len(pieces) + 1):
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        text = decoder.decode(b"".join(pieces[:n]))
        if n <= params.min_new_tokens:
            floor = len(text)
            continue
        for end in range(floor + 1, len(text) + 1):
            found = [s for s in params.stop if text[floor:end].endswith(s)]
            if found:
                stop = max(found, key=len)
                cut = end if params.no_stop_trim else end - len(stop)
                kept, inside = whole_before(pieces[:n], cut)
                return text[:cut], kept, text[inside:cut], stop
    return b"".join(pieces).decode(errors="replace"), len(pieces), "", None


def whole_before(pieces: Sequence[bytes], cut: int) -> tuple[int, int]:
    """(number of first pieces that end at a character and by offset ``cut``, that character)."""
    best = (0, 0)
    for n in range(len(pieces) + 1):
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        chars = len(decoder.decode(b"".join(pieces[:n])))
        if not decoder.getstate()[0] and chars <= cut:
            best = (n, chars)
    return best


TEXT = st.text(alphabet=st.sampled_from("abST \né中🙂👩\u200d👩🏽\u0301"), max_size=20)
STOPS = st.lists(st.text(alphabet="abST中🙂\u200d", min_size=1, max_size=4), max_size=3).map(tuple)


def cut_bytes(data: bytes, draw: Any) -> list[bytes]:
    points = [0, *sorted(draw.draw(st.sets(st.integers(0, len(data))))), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(points)]


@settings(max_examples=500, deadline=None)
@given(
    text=TEXT,
    noise=st.binary(max_size=3),
    stops=STOPS,
    keep=st.booleans(),
    minimum=st.integers(0, 4),
    draw=st.data(),
)
def test_a7_deltas_join_to_the_offline_text_for_every_split(
    text: str, noise: bytes, stops: tuple[str, ...], keep: bool, minimum: int, draw: Any
) -> None:
    half = len(text) // 2
    data = text[:half].encode() + noise + text[half:].encode()
    pieces = cut_bytes(data, draw)
    params = SamplingParams(stop=stops, no_stop_trim=keep, min_new_tokens=minimum)
    groups = draw.draw(st.lists(st.integers(1, 4), max_size=6))
    deltas, detokenizer, finish = generate(Pieces(pieces), range(len(pieces)), params, groups)
    expected, kept_ids, kept_text, stop = offline(pieces, params)
    assert "".join(deltas) == expected
    assert finish.matched == stop
    assert (detokenizer.kept_ids, detokenizer.kept_text) == (kept_ids, kept_text)
    if stop is not None:
        kept = b"".join(pieces[: detokenizer.kept_ids]).decode(errors="replace")
        assert kept + detokenizer.kept_text == expected


@settings(max_examples=300, deadline=None)
@given(text=TEXT, stops=STOPS, draw=st.data())
def test_a7f_nothing_is_held_but_an_open_character_or_stop(
    text: str, stops: tuple[str, ...], draw: Any
) -> None:
    pieces = cut_bytes(text.encode(), draw)
    detokenizer = Detokenizer(Pieces(pieces), SamplingParams(stop=stops))
    shown = ""
    for n in range(len(pieces)):
        shown += detokenizer.feed([n])
        whole = b"".join(pieces[: n + 1]).decode(errors="ignore")
        if any(stop in whole for stop in stops):
            return
        open_ends = (k for s in stops for k in range(1, len(s)) if whole.endswith(s[:k]))
        assert shown == whole[: len(whole) - max(open_ends, default=0)]


def test_c1_characters_cut_by_tokens_come_whole_and_an_open_tail_comes_once_at_the_end() -> None:
    emoji, cjk = "🙂".encode(), "中".encode()
    pieces = [emoji[:2], emoji[2:], cjk[:1], cjk[1:2], cjk[2:], emoji[:3]]
    deltas, detokenizer, _ = generate(Pieces(pieces), range(6), SamplingParams())
    assert deltas == ["", "🙂", "", "", "中", "\ufffd"]
    assert "".join(deltas) == Pieces(pieces).decode(range(6))
    assert (detokenizer.kept_ids, detokenizer.kept_text) == (6, "")


def test_c1_invalid_bytes_become_what_one_decode_makes_of_them() -> None:
    data = b"a\xff\xe4\xb8b\xf0\x9f\x99\x80\x80c\xc3"
    ids = list(data)
    deltas, _, _ = generate(ByteTokenizer(), ids, SamplingParams())
    assert "".join(deltas) == data.decode(errors="replace")


def test_c2_a_stop_string_across_tokens_is_cut_and_never_leaks() -> None:
    pieces = [b"AB", b"CD", b"EF", b"GH"]
    deltas, detokenizer, finish = generate(Pieces(pieces), range(4), SamplingParams(stop=("DEFG",)))
    assert deltas == ["AB", "C", "", ""]
    assert finish == FinishReason("stop", "DEFG", "string")
    assert (detokenizer.kept_ids, detokenizer.kept_text) == (1, "C")


def test_c2_with_no_stop_trim_the_stop_is_kept_and_nothing_behind_it() -> None:
    pieces = [b"AB", b"CD", b"EF", b"GH"]
    params = SamplingParams(stop=("DEFG",), no_stop_trim=True)
    deltas, detokenizer, _ = generate(Pieces(pieces), range(4), params)
    assert "".join(deltas) == "ABCDEFG"
    assert (detokenizer.kept_ids, detokenizer.kept_text) == (3, "G")
    params = SamplingParams(stop=("EF",), no_stop_trim=True)
    deltas, detokenizer, _ = generate(Pieces(pieces), range(4), params)
    assert "".join(deltas) == "ABCDEF"
    assert (detokenizer.kept_ids, detokenizer.kept_text) == (3, "")


def test_c2_of_several_stops_the_earliest_in_the_text_wins() -> None:
    params = SamplingParams(stop=("GH", "EF", "XY"))
    deltas, _, finish = generate(Pieces([b"ABCDEFGH"]), [0], params)
    assert ("".join(deltas), finish.matched) == ("ABCD", "EF")


def test_c2_a_stop_that_begins_at_a_token_keeps_all_ids_before_it() -> None:
    tokenizer = ByteTokenizer()
    deltas, detokenizer, _ = generate(
        tokenizer, list("héSTOP".encode()), SamplingParams(stop=("STOP",))
    )
    assert "".join(deltas) == "hé"
    assert (detokenizer.kept_ids, detokenizer.kept_text) == (3, "")


@pytest.mark.parametrize(
    ("skip", "keep", "text", "kept"),
    [(True, False, "hi", 2), (True, True, "hi", 3), (False, False, "hi", 2),
     (False, True, "hi<|endoftext|>", 3)],
)  # fmt: skip
@pytest.mark.parametrize("detail", ["eos", "token"])
def test_c2_eos_and_stop_tokens_are_not_emitted_unless_asked_for(
    skip: bool, keep: bool, text: str, kept: int, detail: str
) -> None:
    params = SamplingParams(skip_special_tokens=skip, no_stop_trim=keep)
    detokenizer = Detokenizer(ByteTokenizer(), params)
    finish = FinishReason("stop", EOS, detail)
    assert detokenizer.feed(b"h") + detokenizer.feed([ord("i"), EOS], finish) == text
    assert (detokenizer.kept_ids, detokenizer.kept_text) == (kept, "")


def test_c2_a_stop_token_that_is_an_ordinary_one_is_not_emitted_either() -> None:
    params = SamplingParams(stop_token_ids=(ord("!"),))
    finish = FinishReason("stop", ord("!"), "token")
    assert Detokenizer(ByteTokenizer(), params).feed(b"hi!", finish) == "hi"


def test_what_was_held_for_a_stop_is_released_at_the_end() -> None:
    detokenizer = Detokenizer(ByteTokenizer(), SamplingParams(stop=("STOP",)))
    assert detokenizer.feed(b"a STO") == "a "
    assert detokenizer.feed([EOS], EOS_STOP) == "STO"
    assert (detokenizer.kept_ids, detokenizer.kept_text) == (5, "")


def test_an_open_character_before_eos_is_flushed() -> None:
    detokenizer = Detokenizer(ByteTokenizer(), SamplingParams())
    assert detokenizer.feed([*"é".encode()[:1], EOS], EOS_STOP) == "\ufffd"
    assert detokenizer.kept_ids == 1


@pytest.mark.parametrize("skip", [True, False])
def test_special_tokens_in_the_middle_follow_skip_special_tokens(skip: bool) -> None:
    ids = [ord("a"), IM_END, ord("b")]
    params = SamplingParams(skip_special_tokens=skip)
    deltas, detokenizer, _ = generate(ByteTokenizer(), ids, params)
    assert "".join(deltas) == ("ab" if skip else "a<|im_end|>b")
    assert "".join(deltas) == ByteTokenizer().decode(ids, skip_special_tokens=skip)
    assert detokenizer.kept_ids == 3


@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize("keep", [True, False])
def test_a_control_token_given_as_a_stop_string_stops_shown_or_not(skip: bool, keep: bool) -> None:
    params = SamplingParams(stop=("<|im_end|>",), skip_special_tokens=skip, no_stop_trim=keep)
    ids = [ord("a"), IM_END, ord("b")]
    deltas, detokenizer, finish = generate(ByteTokenizer(), ids, params)
    assert finish == FinishReason("stop", "<|im_end|>", "string")
    assert "".join(deltas) == ("a<|im_end|>" if keep and not skip else "a")
    assert (detokenizer.kept_ids, detokenizer.kept_text) == (2 if keep else 1, "")


def test_min_new_tokens_releases_and_ignores_stops_that_begin_before_it() -> None:
    params = SamplingParams(stop=("ab",), min_new_tokens=3)
    deltas, _, finish = generate(ByteTokenizer(), list(b"abababab"), params)
    assert deltas[:4] == ["a", "b", "a", "b"]  # the third "a" belongs to what may not stop
    assert ("".join(deltas), finish.matched) == ("abab", "ab")


def test_a_regex_stop_is_cut_like_a_string() -> None:
    params = SamplingParams(stop_regex=(r"\n\d+\.",))
    deltas, detokenizer, finish = generate(Pieces([b"x\n", b"1", b"2. y"]), range(3), params)
    assert deltas == ["x", "", ""]
    assert finish == FinishReason("stop", r"\n\d+\.", "regex")
    assert (detokenizer.kept_ids, detokenizer.kept_text) == (0, "x")


def test_ids_that_pad_the_vocabulary_add_nothing() -> None:
    deltas, detokenizer, _ = generate(ByteTokenizer(), [ord("a"), 262, 5000], SamplingParams())
    assert deltas == ["a", "", ""]
    assert detokenizer.kept_ids == 3


def test_c6_spaces_are_neither_lost_nor_doubled(sp_tokenizer: HFTokenizer) -> None:
    prompt = sp_tokenizer.encode("Hello")
    for text in (" The cat sat", "The cat sat", "  two  spaces ", "中 🙂"):
        ids = sp_tokenizer.encode(text, add_bos=False)
        deltas, _, _ = generate(sp_tokenizer, ids, SamplingParams())
        before, whole = (sp_tokenizer.hf.decode(x) for x in (prompt, prompt + ids))
        assert "".join(deltas) == whole[len(before) :] == text


@settings(max_examples=100, deadline=None)
@given(text=st.text(alphabet="the cat éß中🙂\n", max_size=30), stop=st.sampled_from(["cat", "é中"]))
def test_c6_real_tokenizers_stream_the_same_text_as_one_decode(
    any_tokenizer: HFTokenizer, text: str, stop: str
) -> None:
    ids = any_tokenizer.encode(text, add_bos=False)
    deltas, detokenizer, _ = generate(any_tokenizer, ids, SamplingParams(stop=(stop,)))
    assert "".join(deltas) == text.partition(stop)[0]
    kept = any_tokenizer.decode(ids[: detokenizer.kept_ids])
    assert kept + detokenizer.kept_text == text.partition(stop)[0]


def test_a7_cost_is_one_table_read_a_token_and_the_state_stays_small() -> None:
    class Counted(list[bytes]):
        reads = 0

        def __getitem__(self, index: Any) -> Any:
            Counted.reads += 1
            return super().__getitem__(index)

    class NoDecode(ByteTokenizer):
        def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
            raise AssertionError("the whole text is never decoded again")

    tokenizer = NoDecode()
    tokenizer.token_bytes = Counted(tokenizer.token_bytes)
    detokenizer = Detokenizer(tokenizer, SamplingParams(stop=("aaab",)))
    text = b"aaa. word " * 3277
    length = 0
    Counted.reads = 0
    for byte in text:
        length += len(detokenizer.feed([byte]))
        assert len(detokenizer._border_ids) <= MAX_BORDERS + 1
        assert len(detokenizer._tail) <= MAX_BORDERS + 1
    assert length == len(text) > 32_000
    assert Counted.reads == len(text)
