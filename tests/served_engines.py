"""Engines that programs reach over HTTP: for tests that hold in a process and over a server."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from conftest import MakeEngine
from server_harness import serving

from rtlang import defaults
from rtlang.backends.http import HTTP
from rtlang.runtime.byte_tokenizer import ByteTokenizer
from rtlang.runtime.engine import Engine


@contextlib.contextmanager
def served_engines() -> Iterator[Callable[..., Engine]]:
    """A ``make_engine`` whose engines serve programs through a server of their own: a program
    that is given the engine as its backend gets the client. Nothing may be held at the end."""
    with contextlib.ExitStack() as stack:

        def make(model: Any, **options: Any) -> Engine:
            server = stack.enter_context(serving(model, engine=options))
            engine = server.engine
            plain = type(engine.tokenizer) is ByteTokenizer
            client = HTTP(server.url, tokenizer=None if plain else engine.tokenizer)
            stack.enter_context(client)
            defaults._adapters[engine] = client
            return engine

        yield make


@pytest.fixture(params=["in process", "over HTTP"], name="make_engine")
def engines_of_both_kinds(
    request: pytest.FixtureRequest, make_engine: MakeEngine
) -> Iterator[MakeEngine]:
    """For a module that takes it over by name: each of its tests with engines of both kinds."""
    if request.param == "in process":
        yield make_engine
        return
    with served_engines() as make:
        yield make
