"""Sequences: taking back, copying, replaying and filling many equal the plain ways."""

from __future__ import annotations

import random
from collections import Counter
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtlang.errors import GrammarDesync, GrammarError
from rtlang.grammar import xgr_backend
from rtlang.grammar.ir import Alt, Chars, Grammar, Ref, Repeat, Seq, Text
from rtlang.grammar.matcher import BATCH_FROM, Matcher, accepts, fill_batch
from rtlang.grammar.vocab import Vocab
from rtlang.grammar.xgr_backend import XgrBackend, XgrCompiled

WORDS = [b"ab", b"(a", b"a)", b"((", b"))", "é".encode(), b"\xa9)", b"(\xc3"]
VOCAB = Vocab.build([*(bytes([i]) for i in range(256)), *WORDS], 270, stop_ids=[264, 269])
BODY = Repeat(Alt((Chars(((97, 99),)), Text("é"), Ref("root"))), 0, 4)
NESTED = Grammar({"root": Seq((Text("("), BODY, Text(")")))})


@pytest.fixture(scope="module")
def engine() -> XgrBackend:
    return XgrBackend(VOCAB)


@pytest.fixture(scope="module")
def nested(engine: XgrBackend) -> XgrCompiled:
    return engine.compile(NESTED)


def row(matcher: Matcher) -> list[int]:
    bitmask = np.zeros((1, VOCAB.num_words), np.int32)
    matcher.fill(bitmask, 0)
    return [int(word) for word in bitmask[0]]


def bits(words: list[int]) -> list[int]:
    data = np.array(words, np.int32).view(np.uint8)
    return [int(i) for i in np.flatnonzero(np.unpackbits(data, bitorder="little"))]


def state(matcher: Matcher) -> tuple[object, ...]:
    ends = matcher.can_end(), matcher.only_stops(), matcher.jump_text()
    return matcher.num_accepted, matcher.finished, *ends, row(matcher)


def random_way(compiled: XgrCompiled, rng: random.Random, steps: int) -> list[int]:
    """Ids that are accepted one after the other; maybe a stop id at the end."""
    matcher, way = compiled.matcher(), list[int]()
    while len(way) < steps and not matcher.finished:
        way.append(rng.choice(bits(row(matcher))))
        assert matcher.accept(way[-1])
    return way


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 10**6), steps=st.integers(0, 12), back=st.integers(0, 12))
def test_rollback_fork_and_replay_equal_a_fresh_sequence(
    nested: XgrCompiled, seed: int, steps: int, back: int
) -> None:
    way = random_way(nested, random.Random(seed), steps)
    back = min(back, len(way))
    matcher, fresh = nested.matcher(), nested.matcher()
    matcher.replay(way)
    before = state(matcher)
    fork = matcher.fork()
    fresh.replay(way[: len(way) - back])
    matcher.rollback(back)
    assert state(matcher) == state(fresh)
    assert state(fork) == before  # it has a state of its own
    matcher.replay(way[len(way) - back :])
    assert state(matcher) == before


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 10**6), token=st.integers(-3, 300))
def test_refused_token_changes_nothing(nested: XgrCompiled, seed: int, token: int) -> None:
    matcher = nested.matcher()
    matcher.replay(random_way(nested, random.Random(seed), 6))
    before, may_follow = state(matcher), token in bits(row(matcher))
    done = matcher.accept(token)
    assert done == (may_follow and not before[1])
    if not done:
        assert state(matcher) == before


def test_replay_of_a_wrong_token_is_told(nested: XgrCompiled) -> None:
    with pytest.raises(GrammarDesync, match="token 120 at 1"):
        nested.matcher().replay([ord("("), ord("x")])


@pytest.mark.parametrize("number", [1, BATCH_FROM - 1, BATCH_FROM, 32, 50])
def test_filling_many_equals_filling_each(
    nested: XgrCompiled, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(xgr_backend, "_WORTH_S", 0.0)  # threads wherever there may be some
    rng = random.Random(number)
    matchers = [nested.matcher() for _ in range(number)]
    for matcher in matchers:
        matcher.replay(random_way(nested, rng, rng.randrange(10)))
    rows = rng.sample(range(64), number)
    many, each = (np.full((64, VOCAB.num_words), 77, np.int32) for _ in range(2))
    for _ in range(3):
        fill_batch(matchers, many, rows)
    for matcher, at in zip(matchers, rows, strict=True):
        matcher.fill(each, at)
    assert (many == each).all()
    assert (many == 77).all(axis=1).sum() == 64 - number
    if number == 50:
        assert any(matcher.finished for matcher in matchers)


class FakeBatch:
    """In place of xgrammar's: masks that take one thread 1 s each, and several ``shared_s``."""

    now = shared_s = 0.0
    filled: ClassVar[list[tuple[int, int]]] = []

    def __init__(self, threads: int) -> None:
        self.threads = threads

    def batch_fill_next_token_bitmask(self, sequences: Any, bitmask: Any, rows: list[int]) -> None:
        assert len(sequences) == len(rows)
        FakeBatch.filled += [(row, self.threads) for row in rows]
        FakeBatch.now += len(rows) * (1.0 if self.threads == 1 else FakeBatch.shared_s)


@pytest.mark.parametrize("pays", [False, True])
def test_threads_fill_masks_where_that_was_faster(
    pays: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("xgrammar.BatchGrammarMatcher", FakeBatch)
    clock = SimpleNamespace(perf_counter=lambda: FakeBatch.now)
    monkeypatch.setattr("rtlang.grammar.xgr_backend.time", clock)
    FakeBatch.shared_s = 0.5 if pays else 2.0
    filler = xgr_backend._Filler(num_cores=6)
    sequences: list[Any] = [None] * 128
    bitmask = np.zeros((200, 1), np.int32)
    shared = Counter[int]()
    for number in [*[128] * 100, *[40] * 100, *[16] * 100, *[1] * 100]:
        FakeBatch.filled = []
        filler.fill(sequences[:number], bitmask, list(range(number)))
        assert sorted(row for row, _ in FakeBatch.filled) == list(range(number))
        threads = max(threads for _, threads in FakeBatch.filled)
        assert threads in (1, {128: 4, 40: 2, 16: 1, 1: 1}[number])
        shared[number] += threads > 1
    if pays:
        assert shared[128] >= 99 and shared[40] == 100
    else:
        assert 1 <= shared[128] <= 3 and 1 <= shared[40] <= 2
    assert not shared[16] and not shared[1]
    monkeypatch.setattr(xgr_backend, "_WORTH_S", 1000.0)
    FakeBatch.filled = []
    filler.fill(sequences, bitmask, list(range(128)))
    assert all(threads == 1 for _, threads in FakeBatch.filled)


def test_a_row_is_written_whole_where_all_may_follow() -> None:
    """What was in it before does not shine through; nothing is set past the vocabulary."""
    vocab = Vocab.build([b"a", b"b", b"c"], 4, stop_ids=[3])
    compiled = XgrBackend(vocab).compile(Grammar({"root": Repeat(Chars(((97, 122),)), 0, None)}))
    matchers = [compiled.matcher() for _ in range(BATCH_FROM)]
    bitmask = np.full((BATCH_FROM, 1), 64, np.int32)
    matchers[0].fill(bitmask, 0)
    assert bitmask[0] == 0b1111
    fill_batch(matchers, bitmask, range(BATCH_FROM))
    assert (bitmask == 0b1111).all()


def test_bitmask_of_another_layout_is_refused(nested: XgrCompiled) -> None:
    words = VOCAB.num_words
    turned = np.asfortranarray(np.zeros((4, words), np.int32))
    made: list[Any] = [turned, np.zeros((4, words + 1), np.int32), np.zeros((4, words), np.int64)]
    for wrong in made:
        with pytest.raises(AssertionError):
            nested.matcher().fill(wrong, 0)


def test_forced_text(engine: XgrBackend) -> None:
    choice = Alt((Text("abc"), Text("abd")))
    matcher = engine.compile(Grammar({"root": Seq((Text("é"), choice))})).matcher()
    assert matcher.jump_text() == "éab"
    assert matcher.accept(0xC3) and matcher.jump_text() in ("", "ab")
    assert matcher.accept(0xA9) and matcher.jump_text() == "ab"
    matcher.replay(b"ab")
    assert matcher.jump_text() == ""
    optional = engine.compile(Grammar({"root": Repeat(Text("ab"), 0, 1)})).matcher()
    assert optional.jump_text() == ""


def test_bytes_accept_whole_texts_only() -> None:
    compiled = XgrBackend(Vocab.bytes_only()).compile(NESTED)
    assert accepts(compiled, "(a(é)b)".encode())
    assert not any(accepts(compiled, data) for data in (b"", b"(a", b"(a))", b"(x)", b"(\xc3)"))


def test_what_xgrammar_says_is_cleaned(engine: XgrBackend) -> None:
    with pytest.raises(GrammarError, match=r"^the constraint does not compile: EBNF") as caught:
        engine.compile_ebnf("root ::= missing")
    assert isinstance(caught.value.__cause__, RuntimeError)
