from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st

from rtlang.errors import EngineError, InvalidParameter
from rtlang.runtime.byte_tokenizer import ByteTokenizer
from rtlang.runtime.messages import FinishReason
from rtlang.runtime.sampling_params import SamplingParams
from rtlang.runtime.stop_trie import StopTrie
from rtlang.runtime.stops import (
    MAX_REGEX_MATCH_LEN,
    REGEX_CONTEXT_LEN,
    StopChecker,
    StopMatcher,
    compile_stop_regex,
)

ALPHABET = "abé🙂"
TEXTS = st.text(alphabet=ALPHABET, max_size=24)
STOPS = st.lists(st.text(alphabet=ALPHABET, min_size=1, max_size=5), max_size=4).map(tuple)
PATTERNS = (
    "ab+a",
    "a[^b]b",
    "(?i)AB|🙂é",
    "a(?=b)",
    "a(?!b)🙂",
    "(?<=ab)a",
    r"\ba",
    "^ab",
    "(?m)a$",
    "(a|b){3}é",
    "b.*🙂",
    "é{2,}",
)


def first_match(
    text: str, stops: tuple[str, ...], patterns: tuple[str, ...] = (), floor: int = 0
) -> tuple[int, int, str] | None:
    """The offline oracle: (start, end, stop) of the match that ends first, then starts first."""
    for end in range(floor + 1, len(text) + 1):
        found = [
            (end - len(s), end, s) for s in stops if text.endswith(s, max(floor, end - len(s)), end)
        ]
        found = [f for f in found if f[0] >= floor]
        for pattern in patterns:
            match = regex.compile(pattern).search(text, floor, end)
            if match is not None:
                found.append((match.start(), match.end(), pattern))
        if found:
            return min(found, key=lambda f: f[0])
    return None


def longest_open_end(text: str, stops: tuple[str, ...]) -> int:
    """Length of the longest end of ``text`` that is a proper prefix of a stop."""
    ends = (n for s in stops for n in range(1, len(s)) if text.endswith(s[:n]))
    return max(ends, default=0)


def cut(text: str, data: Any) -> list[str]:
    borders = data.draw(st.sets(st.integers(0, len(text))))
    points = [0, *sorted(borders), len(text)]
    return [text[a:b] for a, b in itertools.pairwise(points)]


@settings(max_examples=400, deadline=None)
@given(text=TEXTS, stops=STOPS, data=st.data())
def test_c2_strings_match_the_oracle_for_every_split_and_hold_the_minimum(
    text: str, stops: tuple[str, ...], data: Any
) -> None:
    matcher = StopMatcher(stops)
    shown = fed = ""
    for piece in cut(text, data):
        shown += matcher.feed(piece)
        fed += piece
        if matcher.matched is None:
            held = longest_open_end(fed, stops)
            assert shown == fed[: len(fed) - held]
            assert matcher.released == len(shown)
    expected = first_match(text, stops)
    if expected is None:
        assert matcher.matched is None
        assert shown + matcher.feed("", match=False) == text
    else:
        assert (matcher.start, matcher.end, matcher.matched) == expected
        assert matcher.detail == "string"
        assert shown == text[: matcher.start]


@settings(max_examples=300, deadline=None)
@given(
    text=TEXTS,
    stops=STOPS,
    patterns=st.lists(st.sampled_from(PATTERNS), min_size=1, max_size=2).map(tuple),
    data=st.data(),
)
def test_regexes_and_strings_together_match_the_oracle_for_every_split(
    text: str, stops: tuple[str, ...], patterns: tuple[str, ...], data: Any
) -> None:
    matcher = StopMatcher(stops, patterns)
    shown = "".join(matcher.feed(piece) for piece in cut(text, data))
    expected = first_match(text, stops, patterns)
    if expected is None:
        assert matcher.matched is None
        assert shown + matcher.feed("", match=False) == text
    else:
        assert (matcher.start, matcher.end, matcher.matched) == expected
        assert shown == text[: matcher.start]


@settings(max_examples=200, deadline=None)
@given(before=TEXTS, text=TEXTS, stops=STOPS, data=st.data())
def test_no_match_starts_in_text_fed_without_matching(
    before: str, text: str, stops: tuple[str, ...], data: Any
) -> None:
    matcher = StopMatcher(stops)
    assert matcher.feed(before, match=False) == before
    for piece in cut(text, data):
        matcher.feed(piece)
    expected = first_match(before + text, stops, floor=len(before))
    found = (matcher.start, matcher.end, matcher.matched) if matcher.matched else None
    assert found == expected


def test_what_was_held_is_forgotten_by_text_fed_without_matching() -> None:
    matcher = StopMatcher(("ac", "xc"))
    assert matcher.feed("a") == ""
    assert matcher.feed("x", match=False) == "ax"
    assert matcher.feed("c") == "c"
    assert matcher.matched is None


@pytest.mark.parametrize("pieces", [["xabcd"], list("xabcd"), ["xa", "bc", "d"]])
def test_of_nested_stops_the_one_complete_first_wins_however_the_text_is_cut(
    pieces: list[str],
) -> None:
    matcher = StopMatcher(("abcd", "b", "ab"))
    for piece in pieces:
        matcher.feed(piece)
    assert (matcher.matched, matcher.start, matcher.end) == ("ab", 1, 3)


def test_nothing_is_released_after_a_match() -> None:
    matcher = StopMatcher(("STOP",))
    assert [matcher.feed(t) for t in ("a S", "TOP b", " STOP", "c")] == ["a ", "", "", ""]
    assert (matcher.start, matcher.end) == (2, 6)


def test_a_string_costs_linear_time_whatever_it_looks_like() -> None:
    class Counted(list[int]):
        reads = 0

        def __getitem__(self, index: Any) -> Any:
            Counted.reads += 1
            return super().__getitem__(index)

    trie = StopTrie(["a" * 500 + "b", "aab" * 100])
    trie._fail = Counted(trie._fail)
    state = trie.ROOT
    rng = random.Random(0)
    text = "".join(rng.choice(["a" * 499, "aab" * 99, "c", "b"]) for _ in range(400))
    for char in text:
        state = trie.step(state, char)
    assert 0 < Counted.reads <= len(text)


def test_what_strings_hold_back_is_shorter_than_a_stop_and_nothing_else_is_kept() -> None:
    stop = "ab" * 200
    matcher = StopMatcher((stop,))
    for _ in range(50):
        matcher.feed(stop[:-1])
        assert len(matcher._window) == len(stop) - 1
        matcher.feed("a")
        assert len(matcher._window) == 1
        matcher.feed("c")
        assert matcher._window == ""


def test_anchors_and_look_behind_see_text_that_was_released() -> None:
    assert not _matches("^END", ["foo", "END"])
    assert _matches("^END", ["EN", "D"])
    assert not _matches(r"\bEND", ["foo", "END"])
    assert _matches(r"\bEND", ["foo ", "END"])
    assert _matches("(?<=foo)END", ["foo", "END"])
    assert _matches("(?m)^END$", ["foo", "\n", "END"])


def test_the_start_of_the_text_is_not_forgotten_nor_invented_in_a_long_text() -> None:
    filler = ["word "] * (2 * REGEX_CONTEXT_LEN)
    assert not _matches("^word END", [*filler, "END"])
    assert _matches("(?<=word )END", [*filler, "END"])


def _matches(pattern: str, pieces: list[str]) -> bool:
    matcher = StopMatcher((), (pattern,))
    for piece in pieces:
        matcher.feed(piece)
    return matcher.matched is not None


def test_a_regex_holds_back_only_what_may_still_match() -> None:
    matcher = StopMatcher((), (r"\d{3}END",))
    shown = [matcher.feed(t) for t in ("ab12", "3E", "x", "777EN", "D!")]
    assert shown == ["ab", "", "123Ex", "", ""]
    assert (matcher.matched, matcher.detail) == (r"\d{3}END", "regex")
    assert (matcher.start, matcher.end) == (7, 13)


def test_a_regex_that_waits_for_ever_holds_a_bounded_text() -> None:
    matcher = StopMatcher((), ("(?s)a.*z",))
    shown = 0
    for _ in range(160):  # tokens of a usual length: the time limit is one token's
        shown += len(matcher.feed("a" + "b" * 24))
        assert len(matcher._window) <= MAX_REGEX_MATCH_LEN + REGEX_CONTEXT_LEN
    assert shown == 4000 - MAX_REGEX_MATCH_LEN


def test_a_catastrophic_regex_is_an_error_that_names_it() -> None:
    matcher = StopMatcher((), ("(a|aa)+$x",))
    with pytest.raises(EngineError, match=r"\(a\|aa\)\+\$x"):
        matcher.feed("a" * 60 + "b")


@pytest.mark.parametrize(
    "pattern",
    [
        "(?:(?:(?:a?){1000}){1000}){1000}b",
        "((((a{9999}){9999}){9999}){9999})",
        r"(?:(?:\b|a){1000}){1000}b",
        "a{99999}b",
        "(?:a|b?){,99999}b",
        "(?x)a{9 9 9 # nine\n 9 9}b",
        "(?i:a(?sx:b))",
    ],
)
def test_a_regex_that_takes_for_ever_to_compile_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidParameter, match="repetitions"):
        compile_stop_regex(pattern)


@pytest.mark.parametrize(
    "pattern",
    [r"\d{4}-\d\d-\d\dT(?:\d\d:){2}\d\d", "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", "a{1000}",
     r"(?:\w+ ){10,500}end", "{x", "(?<x>a)"],
)  # fmt: skip
def test_usual_repetitions_are_compiled(pattern: str) -> None:
    compile_stop_regex(pattern)


@pytest.mark.parametrize(
    "pattern", ["a(", "[z-a]", "a{2,1}", "(?P<n", "a*", "", "$", "(?r)ab", r"foo\Kbar"]
)
def test_a_bad_regex_is_refused_when_it_is_compiled(pattern: str) -> None:
    with pytest.raises(InvalidParameter) as caught:
        compile_stop_regex(pattern)
    assert caught.value.param == "stop_regex"
    with pytest.raises(InvalidParameter):
        StopMatcher((), (pattern,))


def test_an_escaped_backslash_before_a_k_is_no_reset() -> None:
    assert compile_stop_regex(r"\\K").search(r"\K") is not None


def test_checker_reports_string_regex_and_respects_min_new_tokens() -> None:
    params = SamplingParams(stop=("ab",), stop_regex=(r"\d\d",), min_new_tokens=3)
    assert _check("ababab", params) == (6, FinishReason("stop", "ab", "string"))
    assert _check("ab12", params) is None  # "1" is the third token: no match starts in it
    assert _check("abc12", params) == (5, FinishReason("stop", r"\d\d", "regex"))


def test_checker_stops_at_a_control_token_that_is_a_stop_string_and_not_shown() -> None:
    tokenizer = ByteTokenizer()
    ids = tokenizer.encode("a<|im_end|>")
    for skip in (True, False):
        params = SamplingParams(stop=("<|im_end|>",), skip_special_tokens=skip)
        checker = StopChecker(tokenizer, params)
        assert checker.match_token(ids[0], 1) is None
        assert checker.match_token(ids[1], 2) == FinishReason("stop", "<|im_end|>", "string")


def _check(text: str, params: SamplingParams) -> tuple[int, FinishReason] | None:
    checker = StopChecker(ByteTokenizer(), params)
    for i, byte in enumerate(text.encode(), start=1):
        finish = checker.match_token(byte, i)
        if finish is not None:
            return i, finish
    return None
