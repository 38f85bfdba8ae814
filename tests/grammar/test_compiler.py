"""From a spec to what matches it: which way it takes, and that nothing is compiled twice."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

import pytest

from rtlang.errors import GrammarError, UnsupportedKeyword
from rtlang.grammar import llg_backend
from rtlang.grammar.compiler import Compiler, Watch, looks_expensive
from rtlang.grammar.matcher import accepts
from rtlang.grammar.service import GrammarService
from rtlang.grammar.spec import GrammarSpec
from rtlang.grammar.vocab import Vocab

needs_llguidance = pytest.mark.skipif(not llg_backend.available(), reason="needs llguidance")
SCHEMA = GrammarSpec.json_schema({"type": "boolean"}, whitespace=0)
TEXTS = [b"true", b"false", b"tru", b"1"]


@pytest.fixture
def compiler() -> Iterator[Compiler]:
    made = Compiler(Vocab.bytes_only(), use_llguidance=True)
    yield made
    made.close()


def refuse(spec: GrammarSpec, watch: Watch) -> str:
    raise UnsupportedKeyword("ours", pointer="/type", keyword="type")


def test_service_compiles_the_same_schema_once() -> None:
    service = GrammarService(Vocab.bytes_only())
    try:
        futures = [service.submit(SCHEMA) for _ in range(100)]
        made = {id(future.result(60)) for future in futures}
        assert len(made) == 1 and service.stats().compiles == 1
        compiled = futures[0].result()
        assert [accepts(compiled, text.encode()) for text in ("true", "false", "tru", "1")] == [
            1,
            1,
            0,
            0,
        ]
        wrong = service.submit(GrammarSpec.ebnf('root ::= root "a"'))
        assert isinstance(wrong.exception(60), GrammarError)
        assert service.stats().cached_bytes == compiled.size_bytes
    finally:
        service.close()


@needs_llguidance
def test_llguidance_takes_schemas_that_ours_refuses(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiler, "_translated", refuse)
    compiled = compiler(SCHEMA, contextlib.nullcontext)
    assert [accepts(compiled, text.encode()) for text in ("true", "false", "tru", "1")] == [
        1,
        1,
        0,
        0,
    ]
    for spec in (
        GrammarSpec.json_schema({"not": {"type": "integer"}}),  # refused there, too
        GrammarSpec.json_schema({"x-guidance": {"lenient": True}, "not": {}}),
        GrammarSpec.json_schema({"type": "object"}, additional="closed"),
        GrammarSpec.regex("a"),
    ):
        with pytest.raises(UnsupportedKeyword, match=r"^ours$") as caught:
            compiler(spec, contextlib.nullcontext)
        assert caught.value.pointer == "/type"


def test_expensive_ones_are_tried_out_first(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []
    monkeypatch.setattr(compiler._canary, "check", tried.append)
    compiler(GrammarSpec.choice(["yes", "no"]), contextlib.nullcontext)
    assert tried == []
    words = [f"the word {i}" for i in range(2000)]
    compiled = compiler(GrammarSpec.choice(words), contextlib.nullcontext)
    assert len(tried) == 1 and "the word 1999" in tried[0] and accepts(compiled, b"the word 77")


@pytest.mark.parametrize(
    ("ebnf", "expected"),
    [
        ('root ::= "a"{1,100} [b]{7} [c]{5,}', False),
        ('root ::= "a"{1,5000}', True),
        ('root ::= "a"{5000}', True),
        ('root ::= "a"{5000,}', True),
        ("root ::= " + " ".join('"a"{0,1000}' for _ in range(4)), False),
        ("root ::= " + " ".join('"a"{0,1000}' for _ in range(5)), True),
        ("root ::= [a]{0,200000}", False),
        ("root ::= [a]{0,210000}", True),
        (f'root ::= "{32_768 * "a"}"', True),
    ],
)
def test_what_looks_expensive(ebnf: str, expected: bool) -> None:
    assert looks_expensive(ebnf) is expected


def test_limits_hold_each_part_of_the_work(compiler: Compiler) -> None:
    """Translating and compiling are watched, one after the other, and nothing else."""
    log: list[str] = []

    @contextlib.contextmanager
    def watch() -> Iterator[None]:
        log.append("begin")
        yield
        log.append("end")

    for spec in (GrammarSpec.choice(["a"]), GrammarSpec.regex("(?=a)[a-c]")):
        compiler(spec, watch)
        assert re.fullmatch("(begin end ?){2}", " ".join(log))
        log.clear()
