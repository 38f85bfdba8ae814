"""Hostile constraints: each is answered in time, for its sender alone, and the engine goes on."""

from __future__ import annotations

import resource
import threading
import time
from typing import Any

import pytest
from conftest import MakeEngine

from rtlang.errors import RtlangError
from rtlang.testing import ScriptedModel

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

NAMES = [f"name{i}" for i in range(2000)]
HOSTILE: dict[str, dict[str, Any]] = {
    "nested counts": {"regex": "((a{1,100}){1,100}){1,100}"},
    "large count": {"regex": "a{1,100000}"},
    "parentheses": {"regex": "(" * 30_000 + "a" + ")" * 30_000},
    "parentheses in EBNF": {"ebnf": "root ::= " + "(" * 30_000 + '"a"' + ")" * 30_000},
    "optional properties": {
        "json_schema": {"type": "object", "properties": {n: {"type": "null"} for n in NAMES}}
    },
    "enum": {"json_schema": {"enum": [f"v{i}" for i in range(5_000)]}},
    "counted properties": {
        "json_schema": {"properties": {n: {} for n in NAMES[:200]}, "minProperties": 100}
    },
    "choices of choices": {
        "json_schema": {"allOf": [{"anyOf": [{"const": i + 10 * j} for i in range(5)]}
                                  for j in range(6)]}
    },
    "endless": {"json_schema": {"anyOf": [{"$ref": "#"}]}},
    "cycle": {"json_schema": {"allOf": [{"$ref": "#"}]}},
    "dead": {"ebnf": 'root ::= root "a"'},
    "lookarounds": {"regex": "(?=.*a)(?=.*b)(?=.*c)(?=.*d)(?=.*e)(?=.*f)(?=.*g).{50,90}"},
    "left recursion": {
        "ebnf": "\n".join(["root ::= r0"] + [
            f'r{i} ::= r{(i * 7 + 1) % 120} "a" | r{(i * 3 + 2) % 120} "b" | "c"'
            for i in range(120)
        ])
    },
}  # fmt: skip
#: Refused before they are sent.
TOO_LARGE: dict[str, dict[str, Any]] = {
    "source": {"regex": "a" * (64 * 1024 + 1)},
    "depth": {"json_schema": '{"items":' * 9_000 + "{}" + "}" * 9_000},
}


@pytest.mark.parametrize("name", HOSTILE)
def test_it_is_answered_in_time_and_a_stream_beside_it_goes_on(
    make_engine: MakeEngine, name: str
) -> None:
    engine = make_engine(ScriptedModel(["x"], step_s=0.005), max_total_tokens=20_000)
    # A model's tokenizer brings nearly all that the engine of masks imports; a stand-in does not.
    assert engine.generate("p", {"regex": "ok"}).text == "ok"
    gaps: list[float] = []
    done = threading.Event()

    def stream() -> None:
        params = {"max_new_tokens": 4000, "ignore_eos": True}
        last = time.perf_counter()
        for _ in engine.generate("free", params, stream=True):
            now = time.perf_counter()
            gaps.append(now - last)
            last = now
            if done.is_set() and len(gaps) > 100:
                return

    thread = threading.Thread(target=stream)
    thread.start()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    outcome = "text"
    try:
        engine.generate("p", {**HOSTILE[name], "max_new_tokens": 20})
    except RtlangError as error:
        outcome = error.code
    took = time.perf_counter() - start
    done.set()
    thread.join(120)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**20
    worst = sorted(gaps)[-3:]
    print(f"{name}: {outcome} in {took:.2f} s, largest gaps {worst}, {grown:.2f} GiB more")
    assert not thread.is_alive()
    assert outcome == "text" or outcome.startswith(("grammar_", "invalid_"))
    assert outcome not in ("grammar_desync", "grammar_dead_end"), "a bug of ours"
    assert took < 12 + 8, "the process of trials takes some seconds to start"
    assert grown < 1.0
    assert engine.generate("p", {"regex": "o.*k"}).text[:1] == "o"


@pytest.mark.parametrize("name", TOO_LARGE)
def test_sizes_are_refused_at_once(make_engine: MakeEngine, name: str) -> None:
    engine = make_engine(ScriptedModel(["x"]))
    with pytest.raises(RtlangError) as error:
        engine.generate("p", TOO_LARGE[name])
    assert error.value.code == "grammar_too_large"
    assert engine.stats()["num_requests"] == 0
