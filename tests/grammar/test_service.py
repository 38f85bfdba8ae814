"""The compile service: each constraint once, bounds of bytes and time, trials in a process."""

from __future__ import annotations

import dataclasses
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from rtlang.errors import (
    ConfigError,
    EngineClosed,
    EngineError,
    GrammarBusy,
    GrammarError,
    GrammarTimeout,
    GrammarUnsatisfiable,
)
from rtlang.grammar.canary import COMMAND, Canary
from rtlang.grammar.compile_cache import CompileCache
from rtlang.grammar.matcher import Compiled, Matcher
from rtlang.grammar.service import GrammarService, Watch
from rtlang.grammar.vocab import Vocab
from rtlang.grammar.xgr_backend import XgrBackend


@dataclasses.dataclass(frozen=True)
class FakeSpec:
    key: str
    kind: str = "regex"


@dataclasses.dataclass(frozen=True)
class FakeCompiled:
    key: str
    size_bytes: int = 100

    def matcher(self) -> Matcher:
        raise NotImplementedError


class FakeCompile:
    """Keys starting with "slow" take until ``release`` is set, with "bad" they are refused, with
    "bug" they fail."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.threads: set[int] = set()
        self.release = threading.Event()

    def __call__(self, spec: Any, watch: Watch) -> Compiled:
        self.calls[spec.key] += 1
        self.threads.add(threading.get_ident())
        with watch():
            if spec.key.startswith("slow"):
                assert self.release.wait(60)
            if spec.key.startswith("bad"):
                raise GrammarUnsatisfiable("no text")
            assert not spec.key.startswith("bug")
        return FakeCompiled(spec.key)


MakeService = Callable[..., GrammarService]


@pytest.fixture
def fake() -> Iterator[FakeCompile]:
    fake = FakeCompile()
    yield fake
    fake.release.set()


@pytest.fixture
def make_service(fake: FakeCompile) -> Iterator[MakeService]:
    made: list[GrammarService] = []

    def make(**options: Any) -> GrammarService:
        made.append(GrammarService(Vocab.bytes_only(), **{"compile": fake, **options}))
        return made[-1]

    yield make
    for service in made:
        service.close()


def spec(key: str) -> Any:
    return FakeSpec(key)


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_same_constraint_is_compiled_once(make_service: MakeService, fake: FakeCompile) -> None:
    service = make_service()
    futures = [service.submit(spec("slow one")) for _ in range(50)]
    fake.release.set()
    assert len({id(future.result(20)) for future in futures}) == 1
    futures = [service.submit(spec("slow one")) for _ in range(50)]
    assert all(future.done() for future in futures)
    assert fake.calls == {"slow one": 1}
    stats = service.stats()
    assert (stats.compiles, stats.hits, stats.negative_hits) == (1, 99, 0)
    assert stats.cached_bytes == 100 and stats.seconds_sum == stats.seconds_max > 0
    assert threading.get_ident() not in fake.threads


def test_many_threads_submit_many_constraints(make_service: MakeService, fake: FakeCompile) -> None:
    service = make_service()
    with ThreadPoolExecutor(24) as pool:
        found = list(
            pool.map(lambda i: service.submit(spec(f"key {i % 8}")).result(20), range(24 * 5))
        )
    assert [c.key for c in found if isinstance(c, FakeCompiled)] == [
        f"key {i % 8}" for i in range(24 * 5)
    ]
    assert fake.calls == {f"key {i}": 1 for i in range(8)}
    assert service.stats().compiles == 8


def test_cancelling_does_not_take_it_from_others(
    make_service: MakeService, fake: FakeCompile
) -> None:
    service = make_service()
    first, second = service.submit(spec("slow")), service.submit(spec("slow"))
    assert not first.cancel()
    fake.release.set()
    assert second.result(20) is first.result(20)


def test_refusal_is_remembered(make_service: MakeService, fake: FakeCompile) -> None:
    service = make_service()
    errors = [service.submit(spec("bad")).exception(20) for _ in range(3)]
    assert fake.calls == {"bad": 1}
    assert all(type(error) is GrammarUnsatisfiable for error in errors)
    assert len({id(error) for error in errors}) == 3
    stats = service.stats()
    assert (stats.compiles, stats.hits, stats.negative_hits) == (1, 0, 2)


def test_bug_concerns_its_constraint_alone(make_service: MakeService, fake: FakeCompile) -> None:
    service = make_service(workers=1)
    error = service.submit(spec("bug")).exception(20)
    assert type(error) is EngineError and isinstance(error.__cause__, AssertionError)
    assert service.submit(spec("good")).result(20) == FakeCompiled("good")
    service.submit(spec("bug")).exception(20)
    assert fake.calls["bug"] == 2  # not remembered as the constraint's fault


def test_stuck_compiles(make_service: MakeService, fake: FakeCompile) -> None:
    """Each fails in time and its thread is replaced; two of them, and nothing new is begun."""
    service = make_service(workers=1, budget_s=0.05)
    assert service.submit(spec("good")).result(20) == FakeCompiled("good")
    assert type(service.submit(spec("slow 1")).exception(20)) is GrammarTimeout
    assert service.submit(spec("other")).result(20) == FakeCompiled("other")
    assert type(service.submit(spec("slow 2")).exception(20)) is GrammarTimeout
    assert service.stats().leaked == service.stats().timeouts == 2
    assert type(service.submit(spec("new")).exception(20)) is GrammarBusy
    assert service.submit(spec("good")).result(20) == FakeCompiled("good")
    assert type(service.submit(spec("slow 1")).exception(20)) is GrammarTimeout
    assert fake.calls["slow 1"] == 1 and fake.calls["new"] == 0
    fake.release.set()
    eventually(lambda: service.stats().leaked == 0)
    assert service.submit(spec("new")).result(20) == FakeCompiled("new")
    assert service.submit(spec("slow 1")).result(20) == FakeCompiled("slow 1")  # late, but there
    assert fake.calls["slow 1"] == 1 and service.stats().compiles == 5


def test_time_in_the_queue_does_not_count(make_service: MakeService, fake: FakeCompile) -> None:
    service = make_service(workers=1, budget_s=0.3)
    first, queued = service.submit(spec("slow")), service.submit(spec("good"))
    assert type(first.exception(20)) is GrammarTimeout
    assert queued.result(20) == FakeCompiled("good")


def test_close_waits_for_nothing(make_service: MakeService, fake: FakeCompile) -> None:
    service = make_service(workers=1)
    futures = [service.submit(spec(key)) for key in ("slow", "queued")]
    eventually(lambda: fake.calls["slow"] == 1)
    service.close()
    futures.append(service.submit(spec("late")))
    assert [type(future.exception(0)) for future in futures] == [EngineClosed] * 3
    fake.release.set()
    service.close()


def test_unknown_backend_is_refused(make_service: MakeService) -> None:
    with pytest.raises(ConfigError, match="outlines"):
        make_service(backend="outlines")


def test_cache_keeps_within_its_bytes() -> None:
    cache = CompileCache(250)
    for key in "ab":
        cache.put(key, FakeCompiled(key))
    assert cache.get("a") is not None  # now b is the oldest
    cache.put("c", FakeCompiled("c"))
    assert [cache.get(key) is not None for key in "abc"] == [True, False, True]
    cache.put("large", FakeCompiled("large", 251))
    assert cache.get("large") is None and cache.size_bytes == 200
    cache.put("d", FakeCompiled("d", 250))
    assert cache.size_bytes == 250 and cache.get("a") is None


def test_cache_forgets_refusals() -> None:
    now = [0.0]
    cache = CompileCache(100, error_ttl_s=60, clock=lambda: now[0])
    cache.put_error("a", GrammarError("no"))
    now[0] = 59
    assert cache.get_error("a") is not None
    now[0] = 60
    assert cache.get_error("a") is None
    for i in range(2000):
        cache.put_error(str(i), GrammarError("no"))
    assert cache.get_error("0") is None and cache.get_error("1999") is not None
    cache.put("1999", FakeCompiled("1999"))
    assert cache.get_error("1999") is None


#: Answers at once, but "hang" hangs, "die" ends it, "bad" is refused. In place of xgrammar.
STAND_IN = """
import os, sys, time
from rtlang.errors import GrammarError
from rtlang.grammar.helper import read_frame, write_frame
tokens, stops = read_frame(sys.stdin.buffer)
assert len(tokens) == 257 and stops == [256]
write_frame(sys.stdout.buffer, "ready")
while question := read_frame(sys.stdin.buffer):
    text, cpu_s = question
    assert cpu_s >= 0.25
    if text == "hang": time.sleep(60)
    if text == "die": os._exit(1)
    if text == "die halfway": sys.stdout.buffer.write(b"9"); os._exit(1)
    write_frame(sys.stdout.buffer, GrammarError("wrong at 1") if text == "bad" else "fine")
"""


@pytest.fixture
def canary() -> Iterator[Canary]:
    command = (sys.executable, "-c", STAND_IN)
    canary = Canary(Vocab.bytes_only(), limit_s=0.25, command=command)
    yield canary
    canary.close()


def test_trial_that_hangs_or_dies_is_a_timeout(canary: Canary) -> None:
    canary.check("good")
    first = canary._helper._process
    for text in ("hang", "die", "die halfway"):
        with pytest.raises(GrammarTimeout):
            canary.check(text)
        canary.check("good")
    assert first is not None and first.returncode == -signal.SIGKILL
    with pytest.raises(GrammarError, match="wrong at 1"):
        canary.check("bad")
    canary.check("good")


def test_trials_of_several_threads(canary: Canary) -> None:
    def verdict(text: str) -> type[Exception] | None:
        try:
            canary.check(text)
        except GrammarError as error:
            return type(error)
        return None

    texts = ["good", "bad", "good", "hang", "good", "bad", "die", "good"]
    expected = {"good": None, "bad": GrammarError, "hang": GrammarTimeout, "die": GrammarTimeout}
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(verdict, texts)) == [expected[text] for text in texts]


def test_closing_ends_a_trial(canary: Canary) -> None:
    canary._limit_s = 60
    with ThreadPoolExecutor(1) as pool:
        hanging = pool.submit(canary.check, "hang")
        eventually(lambda: canary._helper._process is not None)
        canary.close()
        assert isinstance(hanging.exception(20), GrammarTimeout)
    with pytest.raises(GrammarTimeout, match="closed"):
        canary.check("good")


def test_process_that_does_not_start() -> None:
    canary = Canary(Vocab.bytes_only(), command=(sys.executable, "-c", "raise SystemExit(3)"))
    with pytest.raises(GrammarTimeout, match="does not start"):
        canary.check("good")


#: A line of text, minutes of compiling.
HOSTILE = "root ::= " + " | ".join(
    f'"k{i}" [\\u0020-\\U0010FFFF]{{0,{900 + i}}}' for i in range(40)
)


def test_real_trials_and_their_process() -> None:
    """A hostile grammar is given up on; a process ends when its input does."""
    pipe = subprocess.PIPE
    orphan = subprocess.Popen(COMMAND, stdin=pipe, stdout=pipe)
    assert orphan.stdin is not None
    orphan.stdin.close()
    orphan.stdin = None
    vocab = Vocab.build([b"%d" % i for i in range(30_000)], 30_001, stop_ids=[30_000])
    canary = Canary(vocab, limit_s=1.0)
    try:
        canary.check('root ::= "1"')
        with pytest.raises(GrammarError, match="EBNF"):
            canary.check("root ::= missing")
        process = canary._helper._process
        assert process is not None and process.poll() is None
        with pytest.raises(GrammarTimeout):
            canary.check(HOSTILE)
        # By its CPU time, or, where others leave it none, by the clock.
        assert process.returncode in (-signal.SIGPROF, -signal.SIGKILL)
    finally:
        canary.close()
    assert orphan.communicate(timeout=60)[0] == b""
    assert orphan.returncode == 0


def test_compiling_lets_other_threads_run() -> None:
    """The interpreter is free during a compile: this thread counts while another compiles."""
    engine = XgrBackend(Vocab.bytes_only())
    words = " | ".join(f'"word{7919 * i}"' for i in range(8000))
    thread = threading.Thread(target=engine.compile_ebnf, args=(f"root ::= {words}",))
    interval = sys.getswitchinterval()
    sys.setswitchinterval(60)  # nobody is made to let go
    try:
        thread.start()
        ticks = 0
        while thread.is_alive():
            ticks += 1
            time.sleep(0.001)
    finally:
        sys.setswitchinterval(interval)
    assert ticks > 10
