"""Masks bit by bit: against byte-level matching of every token, against ``regex``, at the ends."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest
import regex

from rtlang.errors import GrammarTooSlow
from rtlang.grammar import llg_backend
from rtlang.grammar.ir import Alt, Chars, Dispatch, Expr, Grammar, Ref, Repeat, Seq, Text
from rtlang.grammar.llg_backend import LlgBackend
from rtlang.grammar.matcher import Compiled, Matcher, accepts
from rtlang.grammar.vocab import Vocab
from rtlang.grammar.xgr_backend import XgrBackend
from rtlang.runtime.hf_tokenizer import HFTokenizer
from rtlang.runtime.models import smollm2

needs_llguidance = pytest.mark.skipif(not llg_backend.available(), reason="needs llguidance")

PIECES = [
    '"', '",', '":', '": ', '{"', '"}', "}", "{", " ", "  ", "\n", "\n  ", "a", "ab", "abc", "aa",
    "aaaa", "foo", "foobar", "ob", "bar", "bz", "yes", "no", "true", "false", "12", "2024", "-0",
    "-1", "é", "日本", "日", "語", "x日", "😀", "ü1", "\\", '\\"', "\\u",
    "\\n", "00e", "null", "<a>", "<", "a>x", "b>",
]  # fmt: skip
SPLIT = [
    "日".encode()[:2],
    "日".encode()[1:],
    "😀".encode()[:3],
    "😀".encode()[2:],
    b"a\xc3",
    b"\xa9b",
]
SPECIALS = {500, 501, 502}
STOPS = {503, 510}


def tricky_vocab() -> Vocab:
    """Bytes, words, cut characters, control tokens spelled like text, padding; 525 ids."""
    table = [bytes([i]) for i in range(256)] + [piece.encode() for piece in PIECES] + SPLIT
    table += [b""] * (500 - len(table)) + [b"a", b"<|im_end|>", b'"', b"no", *[b"a"] * 7]
    return Vocab.build(table, 525, stop_ids=STOPS, special_ids=SPECIALS)


VOCAB = tricky_vocab()
DIGIT = Chars(((48, 57),))
LOWER = Chars(((97, 122),))
ANY_CHAR = Chars(((0, 0xD7FF), (0xE000, 0x10FFFF)))
PLAIN = Chars(((0x20, 0x21), (0x23, 0x5B), (0x5D, 0xD7FF), (0xE000, 0x10FFFF)))
STRING = Seq((Text('"'), Repeat(Alt((PLAIN, Text('\\"'), Text("\\n"))), 0, None), Text('"')))
OBJECT = Seq((Text("{"), STRING, Text(":"), Ref("value"), Text("}")))
VALUE = Alt(
    (STRING, Ref("root"), Text("null"), Seq((Repeat(Text("-"), 0, 1), Repeat(DIGIT, 1, 3))))
)
COUNTED = Seq((Repeat(Text("a"), 2, 5), Repeat(LOWER, 0, 1)))
CHARACTERS = Repeat(Alt((Text("日本"), Chars(((0xE9, 0xE9), (0x1F600, 0x1F600))))), 1, 4)
BODY = Seq((DIGIT, Text("x")))
#: With the pattern of the same language, where it is a regular one.
GRAMMARS: dict[str, tuple[Grammar, str | None]] = {
    "choice": (Grammar({"root": Alt((Text("foo"), Text("foobar"), Text("no")))}), "foo|foobar|no"),
    "empty": (Grammar({"root": Repeat(Text("ab"), 0, 2)}), "(ab){0,2}"),
    "counted": (Grammar({"root": COUNTED}), "a{2,5}[a-z]?"),
    "characters": (Grammar({"root": CHARACTERS}), "(日本|[é😀]){1,4}"),
    "any": (Grammar({"root": Seq((ANY_CHAR, Repeat(ANY_CHAR, 0, 3)))}), "(?s:.{1,4})"),
    "string": (Grammar({"root": STRING}), r'"([^"\\\x00-\x1f]|\\"|\\n)*"'),
    "json": (Grammar({"root": OBJECT, "value": VALUE}), None),
    "tags": (Grammar({"root": Dispatch((("<a>", "body"),)), "body": BODY}), None),
}


def one(expr: Expr) -> Grammar:
    return Grammar({"root": expr})


def allowed(matcher: Matcher) -> set[int]:
    bitmask = np.full((3, matcher.vocab.num_words), 0x5A5A5A5A, np.int32)
    matcher.fill(bitmask, 1)
    assert (bitmask[[0, 2]] == 0x5A5A5A5A).all()
    bits = np.unpackbits(bitmask[1].view(np.uint8), bitorder="little")
    return set(np.flatnonzero(bits).tolist())


@pytest.fixture(scope="module")
def engine() -> XgrBackend:
    return XgrBackend(VOCAB)


@pytest.fixture(scope="module")
def byte_engine() -> XgrBackend:
    return XgrBackend(Vocab.bytes_only())


def walk(matcher: Matcher, rng: random.Random, steps: int) -> Iterator[tuple[bytes, set[int]]]:
    """(text so far, what may follow) at each state of a random way through a constraint."""
    text = b""
    for _ in range(steps):
        mask = allowed(matcher)
        yield text, mask
        follow = sorted(mask - matcher.vocab.stop_ids)
        if not follow:
            return
        token = rng.choice(follow)
        assert matcher.accept(token)
        text += matcher.vocab.token_bytes[token]


def by_bytes(start: Matcher, vocab: Vocab) -> set[int]:
    """What may follow, from a byte-level sequence in the same state, token by token."""
    found = set(vocab.stop_ids) if start.can_end() else set[int]()
    for token, data in enumerate(vocab.token_bytes):
        before = start.num_accepted
        if data and all(start.accept(byte) for byte in data):
            found.add(token)
        start.rollback(start.num_accepted - before)
    return found


@pytest.mark.parametrize("name", GRAMMARS)
def test_mask_is_what_byte_level_matching_accepts(
    name: str, engine: XgrBackend, byte_engine: XgrBackend
) -> None:
    grammar, _ = GRAMMARS[name]
    compiled, by_byte = engine.compile(grammar), byte_engine.compile(grammar)
    for seed in range(4):
        for text, mask in walk(compiled.matcher(), random.Random(seed), 10):
            oracle = by_byte.matcher()
            oracle.replay(text)
            assert mask == by_bytes(oracle, VOCAB), text


def by_regex(pattern: regex.Pattern[str], text: bytes, vocab: Vocab) -> set[int]:
    """The same from ``regex``, for tokens of whole characters."""
    found = set(vocab.stop_ids) if pattern.fullmatch(text.decode()) else set[int]()
    for token, data in enumerate(vocab.token_bytes):
        if data and not is_cut(data) and pattern.fullmatch((text + data).decode(), partial=True):
            found.add(token)
    return found


@pytest.mark.parametrize("name", [name for name, (_, pattern) in GRAMMARS.items() if pattern])
def test_mask_is_that_of_regex_partial_matching(name: str, engine: XgrBackend) -> None:
    grammar, source = GRAMMARS[name]
    assert source is not None
    pattern, compiled = regex.compile(source), engine.compile(grammar)
    for seed in range(6):
        for text, mask in walk(compiled.matcher(), random.Random(seed), 8):
            if not is_cut(text):
                whole = {token for token in mask if not is_cut(VOCAB.token_bytes[token])}
                assert whole == by_regex(pattern, text, VOCAB), text


def is_cut(data: bytes) -> bool:
    return data.decode(errors="replace").encode() != data


@pytest.mark.parametrize("name", GRAMMARS)
def test_control_tokens_and_padding_are_never_allowed(name: str, engine: XgrBackend) -> None:
    for seed in range(3):
        matcher = engine.compile(GRAMMARS[name][0]).matcher()
        for _, mask in walk(matcher, random.Random(seed), 10):
            assert mask <= {i for i, data in enumerate(VOCAB.token_bytes) if data} | STOPS
            assert (mask >= STOPS) is matcher.can_end()
            assert not any(matcher.accept(i) for i in [*SPECIALS, 511, 524, 525, 9999, -1])


def test_character_cut_into_tokens(engine: XgrBackend) -> None:
    matcher = engine.compile(one(Seq((Text("日"), Text("é"))))).matcher()
    head, tail = VOCAB.token_bytes.index(SPLIT[0]), "日".encode()[2]
    assert head in allowed(matcher) and matcher.accept(head)
    assert allowed(matcher) == {tail} and not matcher.can_end()
    assert matcher.accept(tail)
    assert allowed(matcher) == {VOCAB.token_bytes.index("é".encode()), 0xC3}


def test_ends_of_a_text(engine: XgrBackend) -> None:
    """``a[0-9]*`` after a: it may end, and has not; an end can be taken back."""
    matcher = engine.compile(one(Seq((Text("a"), Repeat(DIGIT, 0, None))))).matcher()
    assert not matcher.accept(503) and matcher.accept(97)
    assert allowed(matcher) > STOPS and not matcher.finished and matcher.can_end()
    assert matcher.accept(510) and matcher.finished and matcher.num_accepted == 2
    assert allowed(matcher) == STOPS
    assert not matcher.accept(48) and not matcher.accept(510)
    matcher.rollback(1)
    assert not matcher.finished and matcher.accept(48) and matcher.num_accepted == 2


def test_choice_that_starts_another_one(engine: XgrBackend) -> None:
    matcher = engine.compile(one(Alt((Text("foo"), Text("foobar"))))).matcher()
    assert matcher.accept(VOCAB.token_bytes.index(b"foo"))
    assert allowed(matcher) == {98, VOCAB.token_bytes.index(b"bar")} | STOPS
    assert not matcher.only_stops()
    assert matcher.accept(VOCAB.token_bytes.index(b"bar"))
    assert allowed(matcher) == STOPS and matcher.only_stops()


@needs_llguidance
@pytest.mark.parametrize("name", [n for n, (_, pattern) in GRAMMARS.items() if pattern])
def test_llguidance_makes_the_same_masks_where_there_is_a_choice(
    name: str, engine: XgrBackend
) -> None:
    """Of one forced text it allows the longest token only."""
    grammar, pattern = GRAMMARS[name]
    assert pattern is not None
    theirs = LlgBackend(VOCAB).compile_regex(pattern)
    compared = 0
    for seed in range(3):
        ours = engine.compile(grammar).matcher()
        for text, mask in walk(ours, random.Random(seed), 8):
            other = theirs.matcher()
            other.replay(text)  # ids of bytes are the bytes
            found = allowed(other)
            assert other.can_end() == (503 in mask)
            firsts = {VOCAB.token_bytes[token][:1] for token in mask}
            if len(firsts) > 1:
                assert found == mask, text
                compared += 1
            else:
                assert set() < found <= mask, text
    assert compared > 0


@needs_llguidance
def test_llguidance_at_its_ends() -> None:
    matcher = LlgBackend(VOCAB).compile_regex("a[0-9]?").matcher()
    assert not matcher.accept(503) and matcher.jump_text() == "a"
    assert matcher.accept(97) and not matcher.accept(98) and matcher.accept(48)
    assert matcher.only_stops() and matcher.accept(503) and matcher.finished
    matcher.rollback(2)
    assert not matcher.finished and matcher.fork().accept(57) and matcher.num_accepted == 1


@needs_llguidance
def test_llguidance_reads_schemas_and_caps_whitespace() -> None:
    backend = LlgBackend(Vocab.bytes_only())
    schema = '{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]}'
    compiled = backend.compile_schema(schema)
    assert fits_schema(compiled, '{"a": 1}') and fits_schema(compiled, '{\n    "a": 1\n}')
    assert fits_schema(compiled, "{" + 16 * " " + '"a":1}')
    assert not fits_schema(compiled, "{" + 17 * " " + '"a":1}')
    assert not fits_schema(compiled, "{}")
    assert not fits_schema(backend.compile_schema(schema, max_whitespace=0), '{ "a":1}')


def fits_schema(compiled: Compiled, text: str) -> bool:
    return accepts(compiled, text.encode())


#: (Grammar, how many tokens of SmolLM2's 49,152 may come first).
FIRST = [
    (one(Alt((Text("true"), Text("false")))), 7),
    (one(Seq((Repeat(DIGIT, 3, 3), Text("x")))), 10),
    (one(Alt((Text("yes"), Text("no")))), 5),
    (one(Seq((Repeat(Alt((Text("ab"), Text("a"))), 0, None), Text("c")))), 8),
    (one(Seq((Repeat(Text("a"), 2, 5), Repeat(Text("b"), 0, 1)))), 3),
    (one(Alt((Text("foo"), Text("foobar"), Text("foobarbaz")))), 3),
    (one(Seq((Repeat(DIGIT, 4, 4), Text("-"), Repeat(DIGIT, 2, 2)))), 10),
    (one(Text("null")), 3),
]


@pytest.fixture(scope="module")
def smollm2_engine() -> XgrBackend:
    tokenizer = HFTokenizer(smollm2.folder())
    return XgrBackend(
        Vocab.build(
            tokenizer.token_bytes,
            49_152,
            stop_ids=tokenizer.eos_ids,
            special_ids=tokenizer.special_ids,
        )
    )


@pytest.mark.model
def test_numbers_of_first_tokens_of_smollm2(smollm2_engine: XgrBackend) -> None:
    found = [len(allowed(smollm2_engine.compile(g).matcher())) for g, _ in FIRST]
    assert found == [number for _, number in FIRST]
    choice = smollm2_engine.compile(FIRST[2][0]).matcher()
    assert allowed(choice) == {94, 105, 4607, 6602, 10407}


@pytest.mark.model
def test_strings_of_smollm2(smollm2_engine: XgrBackend) -> None:
    """Nearly everything may stand in a JSON string, but no control token."""
    named = Chars(tuple((ord(char), ord(char)) for char in '"/\\bfnrt'))
    point = Seq((Text("u"), Repeat(Chars(((48, 57), (65, 70), (97, 102))), 4, 4)))
    escape = Seq((Text("\\"), Alt((named, point))))
    string = Seq((Text('"'), Repeat(Alt((PLAIN, escape)), 0, None), Text('"')))
    matcher = smollm2_engine.compile(one(string)).matcher()
    quote = matcher.vocab.token_bytes.index(b'"')
    assert matcher.accept(quote)
    mask = allowed(matcher)
    assert len(mask) == 48_769 and min(mask) > 16
    assert matcher.accept(quote)
    assert allowed(matcher) == matcher.vocab.stop_ids and matcher.only_stops()


@needs_llguidance
def test_llguidance_that_gives_up_says_so() -> None:
    """Beyond its limits its next state is none: no token is to blame for it."""
    properties = ",".join(f'"name{i}":{{"type":"null"}}' for i in range(700))
    schema = f'{{"type":"object","properties":{{{properties}}}}}'
    matcher = LlgBackend(Vocab.bytes_only()).compile_schema(schema).matcher()
    with pytest.raises(GrammarTooSlow, match="limits of llguidance"):
        matcher.accept(ord("{"))
