"""What a load test sends, and when: made from a seed, or read from a trace."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rtlang.errors import ConfigError

_TEXT = (
    "river stone cloud market garden winter letter bridge window forest silver morning paper "
    "harbor candle meadow thunder village orange copper station mirror valley summer kitchen "
    "engine pocket island basket ribbon shadow lantern travel music number picture animal "
    "doctor farmer pencil ticket circle corner branch flower needle bottle saddle rocket"
)
_WORDS = _TEXT.split()


@dataclasses.dataclass(frozen=True, slots=True)
class Load:
    """One request. ``at``: seconds after the start of the test."""

    at: float
    messages: tuple[tuple[str, str], ...]  # (role, content)
    max_tokens: int


def words(rng: random.Random, count: int) -> str:
    """Ordinary English words: a token or two each, with any tokenizer."""
    return " ".join(rng.choices(_WORDS, k=count))


def poisson(rng: random.Random, rate: float) -> float:
    return rng.expovariate(rate)


def fixed(rng: random.Random, rate: float) -> float:
    return 1.0 / rate


#: Seconds until the next arrival, at ``rate`` requests per second.
ARRIVALS: dict[str, Callable[[random.Random, float], float]] = {"poisson": poisson, "fixed": fixed}


def made(
    *,
    count: int,
    rate: float,
    arrivals: str,
    prompt_words: int,
    shared_words: int,
    groups: int,
    max_tokens: int,
    seed: int,
) -> list[Load]:
    """``count`` requests of ``prompt_words`` after one of ``groups`` system prompts of
    ``shared_words`` (0: none). The same seed gives the same requests at the same times."""
    rng = random.Random(seed)
    systems = [words(rng, shared_words) for _ in range(groups)] if shared_words else []
    loads: list[Load] = []
    at = 0.0
    for _ in range(count):
        messages = [("system", rng.choice(systems))] if systems else []
        messages.append(("user", words(rng, prompt_words)))
        loads.append(Load(at, tuple(messages), max_tokens))
        at += ARRIVALS[arrivals](rng, rate)
    return loads


def from_trace(path: Path, *, speedup: float) -> list[Load]:
    """JSON lines with ``timestamp`` (seconds; the first one is the start), ``max_tokens``, and
    ``messages``, ``prompt`` or ``prompt_words``. Raises ``ConfigError`` that names the line."""
    loads: list[Load] = []
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error
    start: float | None = None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            at = float(row["timestamp"])
            start = at if start is None else start
            loads.append(Load((at - start) / speedup, _messages(row), int(row["max_tokens"])))
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{path}, line {number}: {error!r}") from error
        if loads[-1].at < 0 or loads[-1].max_tokens < 1:
            raise ConfigError(f"{path}, line {number}: before the first one, or without tokens")
    if not loads:
        raise ConfigError(f"{path} holds no request")
    return sorted(loads, key=lambda load: load.at)


def _messages(row: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    if "messages" in row:
        return tuple((str(m["role"]), str(m["content"])) for m in row["messages"])
    if "prompt" in row:
        return (("user", str(row["prompt"])),)
    return (("user", words(random.Random(row["timestamp"]), int(row["prompt_words"]))),)


def fingerprint(loads: list[Load]) -> str:
    """The same for the same requests at the same times, and only for them."""
    shape = json.dumps([dataclasses.astuple(load) for load in loads]).encode()
    return hashlib.sha256(shape).hexdigest()[:16]
