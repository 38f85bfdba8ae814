"""States of grammars: what leads to the same one, what may follow, what is lost; their tables."""

from __future__ import annotations

import codecs
import pickle
import random
import sys
import threading
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
from grammar_language import all_words, grammars, words
from hypothesis import given, settings
from hypothesis import strategies as st
from ir_oracle import matches

from rtlang.errors import GrammarUnsatisfiable
from rtlang.grammar import shared_masks
from rtlang.grammar import states as states_module
from rtlang.grammar.checks import prepared
from rtlang.grammar.ir import Alt, Chars, Dispatch, Expr, Grammar, Ref, Repeat, Seq, Text
from rtlang.grammar.shared_masks import MaskTable
from rtlang.grammar.spec import GrammarSpec
from rtlang.grammar.states import LOST, Room, State, States, flattened
from rtlang.grammar.vocab import Vocab, decoded
from rtlang.grammar.written import written

WORDS = [b"ab", b"ba", b"aab", "é".encode(), b"a\xc3", b"\xa9b", b"\xa9\xc3", "日a".encode(),
         "日".encode()[:2], "日".encode()[1:], b"(a", b"))"]  # fmt: skip
VOCAB = Vocab.build([*(bytes([i]) for i in range(256)), *WORDS], 300, stop_ids=[299])

A, B = Text("a"), Text("b")
EITHER = Chars(((97, 98),))
DIGIT = Chars(((48, 57),))
OPTIONAL = Alt((A, Text("")))
MIRRORED = Seq((A, Ref("root"), A)), Seq((B, Ref("root"), B))
#: Small ones over the letters a and b; all of their texts can be followed.
SMALL: dict[str, Grammar] = {
    "choice": Grammar({"root": Alt((Text("aab"), Text("ab"), Text("abba"), Text("b")))}),
    "counted": Grammar({"root": Seq((Repeat(Alt((Text("ab"), A)), 2, 4), Repeat(B, 0, 1)))}),
    "counted twice": Grammar({"root": Repeat(Seq((Repeat(A, 1, 2), Repeat(B, 2, None))), 2, 3)}),
    "at least": Grammar({"root": Seq((Repeat(EITHER, 3, None), B))}),
    "overlap": Grammar({"root": Seq((Repeat(EITHER, 0, None), Text("aba"), Repeat(A, 0, 1)))}),
    "loops": Grammar({"root": Seq(tuple(Repeat(part, 0, None) for part in (A, B, A)))}),
    "right recursion": Grammar({"root": Alt((Seq((A, Ref("root"))), B))}),
    "nested": Grammar({"root": Alt((Seq((A, Ref("root"), B)), Text("")))}),
    "palindromes": Grammar({"root": Alt((*MIRRORED, Repeat(EITHER, 0, 1)))}),
    "rules that may be empty": Grammar(
        {"root": Seq((Ref("x"), Ref("x"), B, Ref("x"))), "x": OPTIONAL}
    ),
    "rules that call each other": Grammar(
        {
            "root": Alt((Seq((A, Ref("x"))), B)),
            "x": Alt((Seq((B, Ref("root"), Ref("root"))), Seq((A, Ref("root"))))),
        }
    ),
    "rounds that may be empty": Grammar({"root": Seq((Repeat(OPTIONAL, 2, 5), B))}),
}
MOST, FOLLOWS = 6, 4  # characters of the texts, and of what comes behind them


def states_of(grammar: Grammar) -> States:
    program = flattened(grammar)
    assert program is not None
    return States(program, VOCAB, Room())


def behind(states: States, token: int, state: State) -> State:
    """As a sequence asks."""
    known = state.tokens.get(token)
    return LOST if state is LOST else known or states.after(state, token)


def walked(states: States, ids: bytes | list[int], state: State | None = None) -> State:
    """Where tokens lead to; ids of bytes are the bytes."""
    found = state or states.start
    for token in ids:
        found = behind(states, token, found)
    return found


def by_state(states: States, texts: list[str]) -> dict[State, list[str]]:
    found: defaultdict[State, list[str]] = defaultdict(list)
    for text in texts:
        found[walked(states, text.encode())].append(text)
    return found


def number_merged(states: States, texts: list[str], whole: set[str]) -> int:
    """How many texts led to a state of others; all of those have the same continuations."""
    merged = 0
    for state, found in by_state(states, texts).items():
        if state is LOST:
            continue
        assert {state.can_end} == {text in whole for text in found}
        follow = [
            [tail for tail in all_words("ab", FOLLOWS) if text + tail in whole] for text in found
        ]
        assert all(tails == follow[0] for tails in follow), found
        merged += len(found) - 1
    return merged


@pytest.mark.parametrize("name", SMALL)
def test_texts_of_a_state_have_the_same_continuations(name: str) -> None:
    grammar = prepared(SMALL[name])
    states, texts = states_of(grammar), all_words("ab", MOST)
    whole = words(grammar, "ab", MOST + FOLLOWS)
    assert {text for text in texts if text in whole} == {
        text for text in texts if matches(grammar, None, text)
    }
    merged = number_merged(states, texts, whole)
    assert merged > 0 or name in ("choice", "palindromes")
    starts = {text[:end] for text in whole for end in range(len(text) + 1)}
    for text in by_state(states, texts).get(LOST, []):
        assert text not in starts, "lost, although it can go on"
    for text in starts:
        assert walked(states, text.encode()) is not LOST


def test_states_of_random_grammars() -> None:
    """Also of those with rules that call themselves first, which are lost."""
    seen = Counter[str]()

    @settings(max_examples=300)
    @given(grammar=grammars("ab"))
    def check(grammar: Grammar) -> None:
        try:
            grammar = prepared(grammar)
        except GrammarUnsatisfiable:
            return
        if flattened(grammar) is None:
            seen["free"] += 1
            return
        states, texts = states_of(grammar), all_words("ab", 4)
        seen["merged"] += number_merged(states, texts, words(grammar, "ab", 4 + FOLLOWS))
        for text in texts:
            state = walked(states, text.encode())
            if state is not LOST:
                seen["followed"] += 1
                assert state.can_end == matches(grammar, None, text), text

    check()
    assert min(seen["free"], seen["merged"]) > 5 and seen["followed"] > 50, seen


@pytest.mark.parametrize("body", [A, Chars(((97, 99),)), Alt((A, B))])
@pytest.mark.parametrize(
    ("low", "high"), [(0, 0), (0, 1), (0, 3), (2, 5), (3, 3), (0, None), (1, None), (3, None)]
)
def test_rounds_are_counted_as_far_as_they_differ(body: Expr, low: int, high: int | None) -> None:
    states = states_of(Grammar({"root": Repeat(body, low, high)}))
    found = [walked(states, i * b"a") for i in range(9)]
    most = 8 if high is None else high
    assert [state.can_end for state in found] == [low <= i <= most for i in range(9)]
    assert LOST not in found[: most + 1] and set(found[most + 1 :]) <= {LOST}
    assert len(set(found) - {LOST}) == (low if high is None else high) + 1


PLAIN = Chars(((0x20, 0x21), (0x23, 0x5B), (0x5D, 0xD7FF), (0xE000, 0x10FFFF)))
STRING = Seq((Text('"'), Repeat(Alt((PLAIN, Text('\\"'))), 0, None), Text('"')))
ITEM = Alt((Repeat(DIGIT, 1, 3), Seq((Text("-"), Ref("item")))))
LIST = Alt((Ref("item"), Seq((Ref("item"), Text(","), Ref("list")))))
REST = Seq((Repeat(DIGIT, 1, 3), Repeat(Seq((Text(","), Ref("list"))), 0, 1)))
#: (Grammar, pieces of its texts): those lead through few states, however many there are.
LOOPS: dict[str, tuple[Grammar, list[str]]] = {
    "string": (Grammar({"root": STRING}), ["a", "é", "日本", "😀", '\\"', " x"]),
    "list": (
        Grammar({"root": Seq((Text('"'), Ref("list"))), "list": LIST, "item": ITEM}),
        ["12,", "-7,", "--123,"],
    ),
    "optional rest": (Grammar({"root": Seq((Text('"'), REST)), "list": REST}), ["1,", "23,"]),
}


@pytest.mark.parametrize("name", LOOPS)
def test_loops_lead_back_to_known_states(name: str) -> None:
    grammar, pieces = LOOPS[name]
    states, rng = states_of(grammar), random.Random(name)
    state = states.start
    seen: list[State] = []
    for token in b'"' + b"".join(rng.choice(pieces).encode() for _ in range(500)):
        state = behind(states, token, state)
        seen.append(state)
    assert LOST not in seen
    assert len(set(seen)) == len(set(seen[:200])) < 15


def test_items_of_an_array_are_alike() -> None:
    item = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    spec = GrammarSpec.json_schema({"type": "array", "items": item}, additional="closed")
    program = written(spec).program
    assert program is not None
    states = States(program, VOCAB, Room())
    second = walked(states, b'[{"a":1},')
    assert second is not LOST
    for more in (b'{"a":1},', b'{ "a":-20},{"a":3},', 50 * b'{"a": 7},'):
        assert walked(states, more, second) is second
    assert walked(states, b"[") is not second and walked(states, b'[{"a":1}]').can_end


@settings(max_examples=60)
@given(seed=st.integers(0, 10**6))
def test_tokens_lead_where_their_bytes_do(seed: int) -> None:
    rng = random.Random(seed)
    grammar = Grammar({"root": Repeat(Alt((A, B, Text("é"), Text("日a"), Text("b日"))), 0, None)})
    states, other = states_of(grammar), states_of(grammar)
    data = "".join(rng.choice(["a", "b", "é", "日a", "b日"]) for _ in range(8)).encode()
    data = data[: rng.randrange(len(data) + 1)]  # it may end within a character
    state, at, ids = states.start, 0, list[int]()
    while at < len(data):
        fits = [i for i, part in enumerate(VOCAB.token_bytes) if data.startswith(part or b"?", at)]
        ids.append(rng.choice(fits))
        at += len(VOCAB.token_bytes[ids[-1]])
        state = behind(states, ids[-1], state)
        assert state is walked(states, data[:at]) is not LOST
    there = walked(other, ids)
    assert (there.can_end, there.begun) == (state.can_end, state.begun)


def test_character_that_has_begun() -> None:
    states = states_of(Grammar({"root": Repeat(Text("日"), 0, 2)}))
    state = states.start
    for begun in (b"\xe6", b"\xe6\x97"):
        state = behind(states, begun[-1], state)
        assert (state.begun, state.base, state.can_end) == (begun, states.start, False)
        assert not state.literals and not state.classes
    assert state is walked(states, [VOCAB.token_bytes.index(b"\xe6\x97")])
    whole = behind(states, 0xA5, state)
    assert whole.base is whole and whole.can_end and not whole.begun
    again = walked(states, "日".encode()[:2], whole)
    assert again is not state and again.begun == state.begun


@pytest.mark.parametrize("name", ["MAX_STATES", "MAX_MOVES", "MAX_FRAMES", "MAX_ALL_PLACES"])
def test_nothing_new_is_found_beyond_a_limit(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(states_module, name, 12)
    states = states_of(Grammar({"root": Repeat(Seq((EITHER, B)), 0, 40)}))
    text = 20 * b"ab"
    first_lost = next(i for i in range(len(text)) if walked(states, text[: i + 1]) is LOST)
    assert 3 < first_lost < 30 and states._room.full
    assert walked(states, text[:first_lost]) is not LOST  # what is known stays known
    assert states.after(states.start, ord("b")) is LOST and not LOST.tokens


def choice_of(number: int) -> Grammar:
    """Texts that all begin alike."""
    return Grammar({"root": Seq((A, Alt(tuple(Text(f"éb{i}") for i in range(number)))))})


def test_too_many_places_are_lost() -> None:
    most = states_module.MAX_PLACES
    assert walked(states_of(choice_of(most)), b"a") is not LOST
    states = states_of(choice_of(most + 1))
    assert states.start is not LOST and not states._room.full
    for token in (b"a", b"ab", b"a\xc3"):
        assert walked(states, [VOCAB.token_bytes.index(token)]) is LOST
    assert not (LOST.tokens or LOST.chars or LOST.moves) and not states._room.full


@pytest.mark.parametrize(
    "grammar",
    [
        Grammar({"root": Alt((Seq((Ref("root"), A)), B))}),
        Grammar({"root": Seq((Ref("x"), Ref("root"), B)), "x": OPTIONAL}),
        Grammar({"root": Alt((B, Ref("x"))), "x": Seq((Ref("root"), A))}),
        Grammar({"root": Alt((B, *(Seq((Alt((A, Text(str(i)))), B)) for i in range(3000))))}),
    ],
    ids=["left recursion", "hidden", "by way of another rule", "too many ways"],
)
def test_what_takes_too_long_is_lost(grammar: Grammar) -> None:
    states = states_of(grammar)
    assert states.start is LOST and not LOST.can_end and not LOST.tokens
    assert len(states._frames) < 2 * states_module.MAX_WORK


def test_what_is_not_flattened(monkeypatch: pytest.MonkeyPatch) -> None:
    free = Dispatch((("<a>", "body"),))
    assert flattened(Grammar({"root": free, "body": A})) is None
    assert flattened(Grammar({"root": Seq((A, Ref("x"))), "x": Repeat(free, 0, 1)})) is None
    alike = Grammar({"root": Seq((Ref("x"), Seq((A, B)), Seq((A, B)))), "x": Seq((A, B))})
    monkeypatch.setattr(states_module, "MAX_NODES", 5)  # a, b, the sequence of both, x, root
    program = flattened(alike)
    assert program is not None and len(program.nodes) == 5
    monkeypatch.setattr(states_module, "MAX_NODES", 4)
    assert flattened(alike) is None


def test_deep_expressions() -> None:
    """They cost no stack, here and on the way to another process."""
    expr: Expr = A
    for i in range(5000):
        expr = (Seq((A, expr)), Alt((B, expr)), Repeat(expr, 0, 2))[i % 3]
    program = flattened(Grammar({"root": expr}))
    assert program is not None and len(program.nodes) == 5002
    assert pickle.loads(pickle.dumps(program)) == program
    for i in range(5000):
        expr = Seq((A, expr)) if i else A
    program = flattened(Grammar({"root": expr}))
    assert program is not None
    states = States(pickle.loads(pickle.dumps(program)), VOCAB, Room())
    assert walked(states, 5000 * b"a").can_end and walked(states, 5001 * b"a") is LOST
    for i in range(5000):
        expr = Alt((Text(str(i)), expr))
    assert states_of(Grammar({"root": expr})).start is LOST


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ("aé日😀".encode(), ("aé日😀", b"")),
        (b"x\xf0\x9f\x98", ("x", b"\xf0\x9f\x98")),
        (b"\xed", ("", b"\xed")),
        (b"a\xed\xa0", ("", b"a\xed\xa0")),  # begins a surrogate
        (b"\xa9b", ("", b"\xa9b")),
        (b"\xc0\x80", ("", b"\xc0\x80")),  # overlong
        (b"\xff\xc3", ("", b"\xff\xc3")),
    ],
)
def test_characters_of_bytes(data: bytes, expected: tuple[str, bytes]) -> None:
    assert decoded(data) == expected


PIECES = [b"a", "é".encode(), "日".encode(), "😀".encode(), *(bytes([i]) for i in range(128, 256))]


@settings(max_examples=400)
@given(data=st.one_of(st.binary(max_size=6), st.lists(st.sampled_from(PIECES)).map(b"".join)))
def test_characters_of_bytes_are_those_of_an_incremental_decoder(data: bytes) -> None:
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        expected = decoder.decode(data), decoder.getstate()[0]
    except UnicodeDecodeError:
        expected = "", data
    assert decoded(data) == expected


def test_texts_of_a_vocabulary() -> None:
    table = [b"a", b"b\xc3", b"\xa9", b"<s>", "日".encode()]
    vocab = Vocab.build(table, 7, stop_ids=[6], special_ids=[3])
    found = [
        ("a", b""),
        ("b", b"\xc3"),
        ("", b"\xa9"),
        ("", b""),
        ("日", b""),
        ("", b""),
        ("", b""),
    ]
    assert vocab.texts == tuple(found)
    assert vocab.texts is vocab.texts


def test_equal_masks_are_one_row_and_rows_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_masks, "MAX_BYTES", 150 * 12)
    table, rng = MaskTable(3), np.random.default_rng(1)
    masks = rng.integers(-(2**31), 2**31, (200, 3), np.int32)
    masks[:140:7] = masks[0]  # 20 of these
    rows = [table.add(mask) for mask in masks[:140]]
    assert set(rows) == set(range(121)) and set(rows[::7]) == {0} and not table.full
    assert (table.masks[rows] == masks[:140]).all() and len(table) == 121
    assert [table.add(mask) for mask in masks[140:]] == [*range(121, 150), *[-1] * 31]
    assert table.full and len(table) == len(table.masks) == 150
    assert [table.add(mask.copy()) for mask in masks[:140]] == rows
    assert (table.masks[rows] == masks[:140]).all() and (table.masks[121:] == masks[140:169]).all()
    assert MaskTable(1000).add(np.zeros(1000, np.int32)) == 0  # wider than all of it


def test_threads_add_to_a_table(request: pytest.FixtureRequest) -> None:
    request.addfinalizer(partial(sys.setswitchinterval, sys.getswitchinterval()))
    sys.setswitchinterval(1e-6)
    table, masks = MaskTable(4), np.arange(16_000, dtype=np.int32).reshape(4000, 4)
    together = threading.Barrier(4)

    def add(seed: int) -> dict[int, int]:
        order = random.Random(seed).sample(range(4000), 3900)
        together.wait(60)
        return {at: table.add(masks[at]) for at in order}

    with ThreadPoolExecutor(4) as pool:
        every = list(pool.map(add, range(4)))
    rows = {at: found[at] for found in every for at in found}
    assert all(found.items() <= rows.items() for found in every)
    assert sorted(rows.values()) == list(range(len(table)))
    assert (table.masks[list(rows.values())] == masks[list(rows)]).all()
