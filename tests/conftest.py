"""Shared fixtures: engines whose memory law is checked when a test has ended."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

if not torch.cuda.is_available():  # before a module with Triton kernels is imported
    os.environ["TRITON_INTERPRET"] = "1"

from triton.runtime import interpreter

from rtlang.runtime.engine import Engine

_patch_scope = interpreter._patch_lang_tensor


def _patch_tensor(tensor: Any, scope: Any) -> None:
    """Triton 3.6's interpreter makes a loop's bound an int in a way that numpy 2.4 refuses."""
    _patch_scope(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))


interpreter._patch_lang_tensor = _patch_tensor

if os.environ.get("PYTEST_XDIST_WORKER"):  # workers share the cores
    torch.set_num_threads(1)

MakeEngine = Callable[..., Engine]


@pytest.fixture
def make_engine() -> Iterator[MakeEngine]:
    """``make_engine(model, **options)``: an engine in debug mode (the memory law is checked after
    every step), closed at the end. After the test nothing may be held."""
    engines: list[Engine] = []

    def make(model: Any, **options: Any) -> Engine:
        engine = Engine(model, **{"debug": True, **options})
        engines.append(engine)
        return engine

    yield make
    for engine in engines:
        if engine.is_alive:
            assert_balanced(engine)
        engine.close()


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Ctrl-C raises, also where this process was started in the background and ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def assert_balanced(engine: Engine) -> None:
    """Nothing runs: all slots are free or evictable, no row and no hold is left."""
    engine.check()
    stats = engine.stats()
    assert sum(stats["queue"].values()) == 0, stats
    assert stats["free_len"] + stats["evictable_len"] == stats["total_len"], stats
    assert stats["locked_len"] == stats["private_len"] == stats["num_rows_used"] == 0, stats
    assert stats["num_holds"] == 0, stats
