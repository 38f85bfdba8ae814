"""Sequences that share masks equal those of the engine alone, whatever is done with them."""

from __future__ import annotations

import random
import runpy
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from schema_samples import Texts

from rtlang.grammar import shared_masks
from rtlang.grammar import states as states_module
from rtlang.grammar.checks import prepared
from rtlang.grammar.compiler import Compiler
from rtlang.grammar.ir import Alt, Chars, Grammar, Ref, Repeat, Seq, Text
from rtlang.grammar.matcher import BATCH_FROM, Matcher, fill_batch
from rtlang.grammar.shared_masks import SharedCompiled, SharedNative, Sharing, _Known
from rtlang.grammar.spec import GrammarSpec
from rtlang.grammar.states import LOST, States, flattened
from rtlang.grammar.translate import translate
from rtlang.grammar.vocab import Vocab
from rtlang.grammar.xgr_backend import XgrBackend

GIVEN = runpy.run_path(str(Path(__file__).with_name("test_masks.py")))
OTHERS = runpy.run_path(str(Path(__file__).with_name("test_matcher.py")))
VOCAB: Vocab = GIVEN["VOCAB"]  # the tricky one
ENGINE = XgrBackend(VOCAB)
GRAMMARS: dict[str, Grammar] = {name: grammar for name, (grammar, _) in GIVEN["GRAMMARS"].items()}
assert GRAMMARS.pop("tags")  # free text
GRAMMARS["nested"] = OTHERS["NESTED"]


def an_object(**properties: Any) -> dict[str, Any]:
    """All of them are required, but those whose names end with ``_``."""
    required = [name for name in properties if not name.endswith("_")]
    return {"type": "object", "properties": properties, "required": required}


BOOLEAN, INTEGER = {"type": "boolean"}, {"type": "integer"}
NODE = an_object(v=INTEGER, next={"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]})
SCHEMAS: dict[str, Any] = {
    "nested objects": an_object(a=an_object(b=an_object(c=BOOLEAN), d=INTEGER)),
    "optional properties": an_object(foo_=INTEGER, bar=BOOLEAN, a_=BOOLEAN, bz_=INTEGER),
    "enum": {"enum": ["yes", "no", "foo", "foobar", 12, 2024, None, True, {"a": [1]}]},
    "bounded string": {"type": "string", "minLength": 2, "maxLength": 5},
    "bounded items": {"type": "array", "items": {"const": "ab"}, "minItems": 2, "maxItems": 4},
    "items": {"type": "array", "items": an_object(a=INTEGER), "minItems": 1},
    "numbers": {"type": "array", "items": {"type": "number"}},
    "range": {"type": "integer", "minimum": -12, "maximum": 2024},
    "pattern": {"type": "string", "pattern": "^(foo|ba[rz])+[0-9]{2,4}$"},
    "recursion": {"$ref": "#/$defs/node", "$defs": {"node": NODE}},
    "unicode": an_object(é={"enum": ["日本", "日語", "😀"]}, 日={"const": "ü1"}),
    "any object": {"type": "object", "additionalProperties": {"type": ["string", "null"]}},
}
GRAMMARS |= {
    name: translate(GrammarSpec.json_schema(schema, whitespace=at % 3))
    for at, (name, schema) in enumerate(SCHEMAS.items())
}
LEFT = Grammar({"root": Alt((Seq((Ref("root"), Text("ab"))), Text("a")))})
WIDE = Grammar({"root": Seq((Text("foo"), Alt(tuple(Text(f"bar{i}") for i in range(600)))))})
LONG = Grammar({"root": Repeat(Chars(((97, 122),)), 0, 500)})


def native_of(matcher: Matcher) -> SharedNative:
    assert isinstance(matcher.native, SharedNative)
    return matcher.native


def allowed(matcher: Matcher) -> list[int]:
    bitmask = np.full((3, VOCAB.num_words), 77, np.int32)
    matcher.fill(bitmask, 1)
    assert (bitmask[[0, 2]] == 77).all()
    bits = np.unpackbits(bitmask[1].view(np.uint8), bitorder="little")
    return [int(i) for i in np.flatnonzero(bits)]


def cut(text: str, rng: random.Random) -> list[int]:
    """Tokens of a text, cut anywhere."""
    data, ids, table = text.encode(), list[int](), VOCAB.token_bytes
    while data:
        ids.append(
            rng.choice([i for i, part in enumerate(table) if part and data.startswith(part)])
        )
        data = data.removeprefix(table[ids[-1]])
    return ids


class Twins:
    """A sequence, and one of the engine alone behind the same tokens."""

    def __init__(self, matcher: Matcher, raw: Matcher, way: tuple[int, ...] = ()) -> None:
        self.matcher, self.raw, self.way = matcher, raw, list(way)
        self.lag = 0  # tokens that the engine had not seen, at most

    def accept(self, token_id: int) -> bool:
        done = self.raw.accept(token_id)
        assert self.matcher.accept(token_id) is done, (self.way, token_id)
        self.way += [token_id] * done
        return done

    def step(self, rng: random.Random) -> None:
        """One of the tokens that may follow, if there are."""
        if not self.raw.finished and (follow := allowed(self.raw)):
            assert self.accept(rng.choice(follow))

    def rollback(self, number: int) -> list[int]:
        """What was taken back."""
        for matcher in (self.matcher, self.raw):
            matcher.rollback(number)
        return [self.way.pop() for _ in range(number)][::-1]

    def compare(self, *, whole: bool) -> None:
        """whole: with what makes the engine catch up."""
        ours, theirs = self.matcher, self.raw
        if isinstance(ours.native, SharedNative):
            self.lag = max(self.lag, len(ours.native._due))
        assert allowed(ours) == allowed(theirs), self.way
        for name in ("finished", "is_half", "num_accepted"):
            assert getattr(ours, name) == getattr(theirs, name), (name, self.way)
        for name in ("can_end", "only_stops", "jump_text")[: 3 if whole else 1]:
            assert getattr(ours, name)() == getattr(theirs, name)(), (name, self.way)


def wander(first: Twins, ids: list[int], rng: random.Random, steps: int) -> list[Twins]:
    """Random steps, most of them through ``ids``. The sequences that were made on the way."""
    every = [first]
    whole = rng.random() < 0.5  # else the engine lags behind most of the time
    for _ in range(steps):
        twins, chance = rng.choice([first, *every]), rng.random()
        is_planned = twins is first and bool(ids)
        if chance < 0.1:
            ids = [] if twins.accept(rng.randrange(-1, 530)) and is_planned else ids
        elif chance < 0.2:
            ids = twins.rollback(rng.randrange(len(twins.way) + 1)) * is_planned + ids
        elif chance < 0.25:
            every.append(Twins(twins.matcher.fork(), twins.raw.fork(), tuple(twins.way)))
        elif is_planned:
            assert twins.accept(ids[0])
            ids = ids[1:]
        else:
            twins.step(rng)
        if whole or rng.random() < 0.5:
            twins.compare(whole=whole or rng.random() < 0.1)
    for twins in every:
        twins.compare(whole=True)
    return every


class Both:
    """A grammar compiled both ways."""

    def __init__(self, grammar: Grammar, sharing: Sharing | None = None) -> None:
        program, self.raw = flattened(prepared(grammar)), ENGINE.compile(grammar)
        assert program is not None
        self.sharing = sharing or Sharing(VOCAB)
        self.compiled = SharedCompiled(self.raw, program, self.sharing)
        self._texts = Texts(prepared(grammar), random.Random(1))

    @property
    def known(self) -> _Known:
        return self.sharing._shelf.known[self.compiled]

    @property
    def states(self) -> States:
        assert self.known.states is not None
        return self.known.states

    def twins(self) -> Twins:
        return Twins(self.compiled.matcher(), self.raw.matcher())

    def walks(self) -> list[Twins]:
        """Many ways; some of them twice."""
        texts = [text for text in (self._texts.draw() for _ in range(12)) if len(text) < 300]
        found: list[Twins] = []
        for way in 3 * [*range(6), 0, 1]:
            rng = random.Random(way)
            ids = cut(rng.choice(texts), rng) if texts and way % 3 else []
            found += wander(self.twins(), ids, rng, 25)
        return found


@pytest.mark.parametrize("name", GRAMMARS)
def test_sequences_equal_those_of_the_engine(name: str) -> None:
    both = Both(GRAMMARS[name])
    both.twins()  # the first one is not followed
    known, every = both.known, both.walks()
    natives = [native_of(twins.matcher) for twins in every]
    assert all(native.state is not LOST and native.known is known for native in natives)
    assert max(twins.lag for twins in every) >= 3
    assert 0 < len(known.table) <= known.num_made < known.num_asked / 3


def test_threads_share_masks() -> None:
    both = Both(GRAMMARS["json"])
    with ThreadPoolExecutor(4) as pool:
        made = [pool.submit(both.walks) for _ in range(4)]
        assert all(future.result(60) for future in made)


def test_the_second_sequence_is_followed() -> None:
    both = Both(GRAMMARS["string"])
    first, known = both.twins(), both.known
    wander(first, cut('"foo日"', random.Random(1)), random.Random(1), 20)
    assert native_of(first.matcher).state is LOST and first.lag == 0
    assert known.num_asked == known.num_made == len(known.table) == 0  # it tells nothing of others
    assert native_of(both.twins().matcher).state is both.states.start is not LOST


def test_forced_text_is_expected_where_others_had_it() -> None:
    both = Both(GRAMMARS["choice"])
    first, second, third = (both.twins().matcher for _ in range(3))
    assert second.accept(ord("f")) and second.jump_text() == "oo"
    second.native.note_jump(True)
    expected = [each.native.expects_jump() for each in (first, second, third)]
    assert expected == [False, False, True]
    assert third.accept(VOCAB.token_bytes.index(b"foo")) and third.jump_text() == ""
    third.native.note_jump(False)
    third.rollback(1)
    assert not third.native.expects_jump()


class Spy:
    """In place of the engine's sequence: tells what it was asked, and refuses one token."""

    def __init__(self, both: Both, refused: int = -1) -> None:
        self.native: Any = both.raw.matcher().native
        self.refused = refused
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Any:
        self.asked.append(name)
        real = getattr(self.native, name)
        return real if name != "accept" else lambda token: token != self.refused and real(token)


def spied(spy: Any, known: _Known) -> Matcher:
    assert known.states is not None
    return Matcher(SharedNative(spy, known, [known.states.start]), VOCAB)


def test_the_engine_is_not_asked_for_what_is_known() -> None:
    both = Both(GRAMMARS["string"])
    leader, spy = [both.twins() for _ in range(2)][1], Spy(both)
    matcher, way = spied(spy, both.known), '"日\\"é"'.encode()
    for byte in way:
        leader.compare(whole=True)
        assert allowed(matcher) and matcher.jump_text() == leader.raw.jump_text()
        assert leader.accept(byte) and not matcher.accept(ord("\n")) and matcher.accept(byte)
    leader.compare(whole=True)
    assert matcher.only_stops() and not spy.asked
    matcher.rollback(3)
    leader.rollback(3)
    Twins(matcher, leader.raw).compare(whole=True)
    assert not spy.asked and native_of(matcher)._due == list(way[:-3])
    Twins(matcher.fork(), leader.raw).compare(whole=True)
    assert spy.asked == ["fork"]
    assert matcher.accept(0xF0) and spy.asked == ["fork"] and allowed(matcher)
    assert spy.asked[1:] == [*(len(way) - 2) * ["accept"], "fill"]
    matcher.rollback(2)
    assert allowed(matcher) and spy.asked[-2:] == ["fill", "rollback"]


@pytest.mark.parametrize("is_mixed", [False, True])
@pytest.mark.parametrize("number", [1, BATCH_FROM, 12, 40])
def test_filling_many_equals_the_engine(number: int, is_mixed: bool) -> None:
    """Of several constraints and two tables; mixed: some at their end, some of the engine's."""
    rng, sharing, every = random.Random(number), Sharing(VOCAB), list[Twins]()
    kinds = [Both(GRAMMARS[name], sharing) for name in ("any", "json", "items", "nested")]
    kinds += [Both(grammar) for grammar in (GRAMMARS["string"], LEFT, WIDE)]
    assert all(kind.compiled.matcher() for kind in kinds)  # the first ones are not followed
    while len(every) < number:
        twins = kinds[len(every) % len(kinds)].twins()
        if is_mixed and rng.random() < 0.2:
            twins.matcher = twins.raw.fork()
        twins.accept(0xED)  # may begin a surrogate: only "any" takes it
        every.append(twins)
    seen = set[object]()
    row = list(range(8, 8 + number))
    for rows in (row, rng.sample(range(64), number), row[:1] + row[-2:0:-1] + row[1:][-1:]) * 2:
        many, each = (np.full((64, VOCAB.num_words), 77, np.int32) for _ in range(2))
        for _ in range(2):  # the second time they are known
            fill_batch([twins.matcher for twins in every], many, rows)
        for twins, at in zip(every, rows, strict=True):
            twins.raw.fill(each, at)
        assert (many == each).all(), np.argwhere(many != each)
        for twins in every:
            matcher, native = twins.matcher, twins.matcher.native
            seen |= {type(native), matcher.finished and "end", matcher.is_half and "half"}
            seen.add("lost" if isinstance(native, SharedNative) and native.state is LOST else "")
            if is_mixed or not twins.raw.can_end():
                twins.step(rng)
    if number == 40:
        assert seen >= {SharedNative, "half", "lost", False, ""}
        assert ("end" in seen) is (len(seen) == 7) is is_mixed


@pytest.mark.parametrize("name", ["json", "nested", "recursion"])
@pytest.mark.parametrize(
    ("limit", "most"),
    [("MAX_STATES", 8), ("MAX_MOVES", 12), ("MAX_FRAMES", 4), ("MAX_ALL_PLACES", 9),
     ("MAX_MASKS", 2)],
)  # fmt: skip
def test_later_sequences_start_afresh_beyond_a_limit(
    limit: str, most: int, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_table = limit == "MAX_MASKS"
    monkeypatch.setattr(shared_masks if is_table else states_module, limit, most)
    both = Both(GRAMMARS[name])
    both.twins()
    first, shelf, every = both.known, both.sharing._shelf, both.walks()
    assert (shelf.table if is_table else shelf.room).full
    both.twins()
    assert native_of(every[0].matcher).known is first is not both.known
    assert any(native_of(twins.matcher).state is LOST for twins in every) is not is_table
    assert native_of(both.twins().matcher).state is both.states.start is not LOST


def test_lost_sequences_are_left_to_the_engine() -> None:
    """By left recursion from the start, or where there are too many ways; it may be taken back."""
    both = Both(LEFT)
    every = both.walks()
    assert {native_of(twins.matcher).state for twins in every} == {LOST}
    assert max(twins.lag for twins in every) == both.known.num_made == 0
    both = Both(WIDE)
    for twins in [both.twins() for _ in range(3)]:
        for token in b"foobar1":
            assert twins.accept(token)
            twins.compare(whole=False)
    native = native_of(twins.matcher)
    assert native.state is LOST and native._way[2] is not LOST and native._way[3] is LOST
    twins.rollback(5)
    twins.compare(whole=True)
    assert native.state is native._way[2] is not LOST


def test_sequences_in_step_make_each_mask_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them are new to the same states: one asks for all."""
    monkeypatch.setattr(shared_masks, "WORTH_AFTER", 100)
    both = Both(GRAMMARS["nested objects"])
    every = [both.twins() for _ in range(33)][1:]
    bitmask, rows = np.zeros((32, VOCAB.num_words), np.int32), range(32)
    ids = cut('{"a":{"b":{"c":true},"d":12}}', random.Random(1))
    for token in ids:
        fill_batch([twins.matcher for twins in every], bitmask, rows)
        assert (bitmask == bitmask[0]).all()
        assert all(twins.accept(token) for twins in every)
        every[0].compare(whole=False)
    known = both.known
    assert known.num_made <= len(ids) + 1 < known.num_asked / 30 and not known.useless


def test_the_engine_never_lags_far_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_masks, "MAX_LAG", 4)
    both = Both(GRAMMARS["string"])
    every = [both.twins() for _ in range(3)]
    for twins in every:
        assert all(twins.accept(byte) for byte in b'"' + 20 * b"a")
        if twins is not every[2]:
            twins.compare(whole=True)
    assert every[2].accept(ord("b")) and len(native_of(every[2].matcher)._due) < 4
    every[2].compare(whole=True)


def test_masks_that_never_come_again_are_left_to_the_engine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shared_masks, "WORTH_AFTER", 20)
    both = Both(LONG)
    every = [both.twins() for _ in range(3)]
    for _ in range(30):
        assert every[1].accept(97)
        every[1].compare(whole=False)
    assert both.known.useless and native_of(every[1].matcher).state is LOST
    every.append(both.twins())
    assert type(every[-1].matcher.native) is type(every[-1].raw.native)
    for twins in every:
        assert all(twins.accept(97) for _ in range(40))
        twins.compare(whole=True)


def test_a_disagreement_ends_one_sequence(caplog: pytest.LogCaptureFixture) -> None:
    both = Both(GRAMMARS["choice"])
    every = [both.twins() for _ in range(1 + BATCH_FROM)][1:]
    wrong = [Twins(spied(Spy(both, 111), both.known), both.raw.matcher()) for _ in range(2)]
    for twins in (*every, *wrong):
        assert all(twins.accept(token) for token in b"foo")  # no mask is known yet
    many, each = (np.full((9, VOCAB.num_words), 77, np.int32) for _ in range(2))
    fill_batch([twins.matcher for twins in (wrong[0], *every)], many, range(1 + BATCH_FROM))
    assert not many[0].any() and [record.levelname for record in caplog.records] == ["ERROR"]
    assert "token 111" in caplog.text and "disagree" in caplog.text
    for at, twins in enumerate(every, 1):
        twins.raw.fill(each, at)
        twins.compare(whole=True)
    assert (many[1:] == each[1:]).all()
    matcher = wrong[1].matcher
    wrong[1].rollback(1)
    assert not allowed(matcher) and not matcher.accept(97) and matcher.num_accepted == 2
    wrong[1].rollback(1)
    wrong[1].compare(whole=True)


def test_a_disagreement_says_nothing_about_what_others_are_forced_to() -> None:
    both = Both(GRAMMARS["choice"])
    other = [both.twins() for _ in range(2)][1]
    assert other.accept(ord("f"))
    wrong = spied(Spy(both, ord("f")), both.known)
    assert wrong.accept(ord("f")) and wrong.jump_text() == ""
    other.compare(whole=True)


def test_compiler_shares_masks_of_what_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_masks, "MAX_MASKS", 4)
    tag = {"type": "tag", "begin": "<a>", "content": {"type": "any_text"}, "end": "</a>"}
    tags = {"type": "triggered_tags", "triggers": ["<a>"], "tags": [tag]}
    free = GrammarSpec.structural_tag({"type": "structural_tag", "format": tags})
    small, slow = GrammarSpec.regex("(foo|bar){2,9}"), GrammarSpec.regex("(?=a)[a-c]+")
    compiler = Compiler(VOCAB, use_llguidance=False, budget_s=60)
    try:
        compiled = compiler(small, nullcontext)
        others = [compiler(slow, nullcontext), compiler(free, nullcontext)]
        monkeypatch.setattr(states_module, "MAX_NODES", 2)
        others.append(compiler(small, nullcontext))
    finally:
        compiler.close()
    assert [isinstance(each, SharedCompiled) for each in others] == [True, False, False]
    raw, table = ENGINE.compile(translate(small)), compiler._sharing._shelf.table
    every = [Twins(compiled.matcher(), raw.matcher()) for _ in range(2)]
    wander(every[1], cut("foobarfoobar", random.Random(1)), random.Random(1), 20)
    native = native_of(every[1].matcher)
    assert isinstance(compiled, SharedCompiled) and native.known.table is table and table.full
    every += [Twins(compiled.matcher(), raw.matcher()) for _ in range(3)]
    assert native_of(every[-1].matcher).known.table is compiler._sharing._shelf.table is not table
    for each in every:
        wander(each, [], random.Random(3), 20)
