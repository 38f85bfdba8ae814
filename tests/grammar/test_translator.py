"""Translating in processes of their own: the same result, bounds that hold, and no process left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from rtlang.errors import GrammarTimeout, InvalidRegex, UnsupportedKeyword
from rtlang.grammar.compiler import Compiler
from rtlang.grammar.helper import Helper
from rtlang.grammar.spec import GrammarSpec
from rtlang.grammar.translator import Translators, is_quick
from rtlang.grammar.vocab import Vocab
from rtlang.grammar.written import written

NAMES = [f"name{i}" for i in range(200)]
#: Seconds of translating, and then it is too large.
LONG = GrammarSpec.json_schema({"properties": {n: {} for n in NAMES}, "minProperties": 100})


@pytest.fixture
def translators() -> Iterator[Translators]:
    made = Translators()
    yield made
    made.close()


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def is_alive(pid: int) -> bool:
    """Whether there is such a process; one that only waits to be reaped is none."""
    stat = Path(f"/proc/{pid}/stat")
    try:
        return stat.read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


SPECS = [
    GrammarSpec.regex("[a-c]{2,5}x?"),
    GrammarSpec.choice(["no", "yes", "é"]),
    GrammarSpec.ebnf('root ::= "(" root ")" | [0-9]+'),
    GrammarSpec.json_schema({"type": "array", "items": {"pattern": "^a+b"}, "maxItems": 3}),
    GrammarSpec.json_schema({"type": "object"}, additional="closed", whitespace=0),
]


def test_a_process_translates_as_this_one_does(translators: Translators) -> None:
    with translators.one() as translator:
        for spec in SPECS:
            assert translator.ask(spec, 60) == written(spec)
        with pytest.raises(InvalidRegex) as regex_error:
            translator.ask(GrammarSpec.regex("a(b"), 60)
        with pytest.raises(UnsupportedKeyword) as error:
            translator.ask(GrammarSpec.json_schema({"$ref": "https://example.com/s"}), 60)
    assert error.value.pointer == "/$ref" and error.value.keyword == "$ref"
    assert isinstance(regex_error.value.pos, int)


def test_a_translation_past_its_limit_is_killed(translators: Translators) -> None:
    with translators.one() as translator:
        with pytest.raises(GrammarTimeout):
            translator.ask(LONG, 0.1)
        assert translator.ask(SPECS[0], 60) == written(SPECS[0])


def test_as_many_processes_as_ask_at_once(translators: Translators) -> None:
    for _ in range(3):
        with translators.one() as first:
            pass
    both = threading.Barrier(2)

    def ask() -> Helper:
        with translators.one() as translator:
            both.wait(60)
            translator.ask(SPECS[0], 60)
            return translator

    with ThreadPoolExecutor(2) as pool:
        used = {id(future.result()) for future in [pool.submit(ask) for _ in range(2)]}
    assert len(used) == 2 and id(first) in used and len(translators._all) == 2


def test_translating_lets_other_threads_run(translators: Translators) -> None:
    """This thread counts while another waits for a translation."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(60)  # nobody is made to let go
    ticks = 0
    try:
        with translators.one() as translator, ThreadPoolExecutor(1) as pool:
            asked = pool.submit(translator.ask, GrammarSpec.regex(r"(?=\p{L}+x)\p{L}{1,9}"), 60)
            while not asked.done():
                ticks += 1
                time.sleep(0.001)
    finally:
        sys.setswitchinterval(interval)
    assert asked.result() and ticks > 5


def test_closing_ends_processes_and_what_they_do(translators: Translators) -> None:
    with translators.one() as translator, ThreadPoolExecutor(1) as pool:
        process = translator._process
        assert process is not None and process.poll() is None
        asked = pool.submit(translator.ask, LONG, 60)
        eventually(lambda: asked.running())
        translators.close()
        assert isinstance(asked.exception(20), GrammarTimeout)
        assert process.returncode is not None
    with pytest.raises(GrammarTimeout, match="closed"), translators.one():
        pass


#: Starts what a service of constraints starts, tells of the processes, and has one work.
OWNER = """
import sys
from rtlang.grammar.spec import GrammarSpec
from rtlang.grammar.translator import Translators
translators = Translators()
with translators.one() as first, translators.one() as second:
    print(first._process.pid, second._process.pid, flush=True)
    first.ask(GrammarSpec(*sys.argv[1:]), 60)
"""


def test_no_process_outlives_a_killed_owner() -> None:
    command = (sys.executable, "-c", OWNER, LONG.kind, LONG.source)
    owner = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert owner.stdout is not None
    pids = [int(word) for word in owner.stdout.readline().split()]
    try:
        assert len(pids) == 2 and all(is_alive(pid) for pid in pids)
        owner.kill()
        owner.wait(20)
        eventually(lambda: not any(is_alive(pid) for pid in pids))
    finally:
        owner.kill()
        owner.communicate()
        for pid in filter(is_alive, pids):
            os.kill(pid, signal.SIGKILL)


#: Answers with what Python makes of the question.
PYTHON = """
from rtlang.grammar.helper_loop import serve
serve(lambda told: lambda question: eval(question), niceness=0)
"""


@pytest.fixture
def python() -> Iterator[Helper]:
    helper = Helper((sys.executable, "-c", PYTHON), "hello")
    yield helper
    helper.close()


def test_a_bug_comes_back_with_its_place(python: Helper) -> None:
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        python.ask("1 / 0", 60)
    assert python.ask("print('noise') or 7", 60) == 7  # what is printed is no answer


def test_memory_has_a_limit(python: Helper) -> None:
    with pytest.raises(GrammarTimeout, match="memory"):
        python.ask("len(bytearray(3 << 30))", 60)
    assert python.ask("len(bytearray(1 << 20))", 60) == 1 << 20


LOOKAHEAD = {"regex": "(?=a)b"}


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"regex": "[a-z]+ [0-9]{2,4}"}, True),
        ({"regex": "a{1,100}" * 3}, False),
        (LOOKAHEAD, False),
        ({"regex": r"\p{Lu}+"}, False),
        ({"regex": "a" * 1025}, False),
        ({"ebnf": 'root ::= "a" root | "b"'}, True),
        ({"choice": ["yes", "no"]}, True),
        ({"choice": [str(i) for i in range(2000)]}, False),
        ({"json_schema": {"properties": {"a": {"type": "integer", "minimum": 0}}}}, True),
        ({"json_schema": {"pattern": "^a"}}, False),
        ({"json_schema": {"$ref": "#/$defs/a", "$defs": {"a": {}}}}, False),
        ({"json_schema": {"properties": {"a": {}}, "minProperties": 1}}, False),
        ({"json_schema": {"allOf": [{}, {}]}}, False),
    ],
)
def test_what_is_translated_here(spec: dict[str, Any], expected: bool) -> None:
    ((kind, source),) = spec.items()
    assert is_quick(getattr(GrammarSpec, kind)(source)) is expected


def test_only_what_is_not_quick_goes_to_a_process() -> None:
    compiler = Compiler(Vocab.bytes_only(), use_llguidance=False, budget_s=60)
    try:
        compiler(GrammarSpec.regex("ab"), nullcontext)
        assert compiler._translators._all == []
        compiler(GrammarSpec.regex(LOOKAHEAD["regex"] + "|(?=b)b"), nullcontext)
        (helper,) = compiler._translators._all
        process = helper._process
        assert process is not None and process.poll() is None
    finally:
        compiler.close()
    assert process.returncode is not None
