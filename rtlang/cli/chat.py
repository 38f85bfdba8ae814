"""``rtlang chat``: a conversation on the terminal; each turn says what the cache saved."""

from __future__ import annotations

import argparse
import contextlib
import queue
import sys
from collections.abc import Callable, Iterator, Sequence

import rtlang as rt
from rtlang import loop
from rtlang.backends.base import Call
from rtlang.cli.common import given_options, make_engine, sampling_params
from rtlang.errors import ConfigError, RtlangError
from rtlang.runtime.chunk import Chunk
from rtlang.runtime.sampling_params import SamplingParams

Messages = list[dict[str, str]]
#: Messages -> the answer, as it comes.
Answer = Callable[[Messages], Iterator[Chunk]]

#: Sampling parameters that OpenAI's API does not have, and our server takes in its requests.
_BEYOND_OPENAI = ("top_k", "min_p")


def run_chat(args: argparse.Namespace) -> None:
    """Ends at the end of input, or at a line ``/quit``. Ctrl-C ends an answer, not the chat."""
    messages: Messages = [{"role": "system", "content": args.system}] if args.system else []
    with _engine(args) if args.url is None else _server(args) as (name, answer):
        print(f"{name}; /quit or Ctrl-D ends", file=sys.stderr)
        while True:
            try:
                asked = input("> ")
            except EOFError:
                return
            if asked.strip() == "/quit":
                return
            if asked.strip():
                messages.append({"role": "user", "content": asked})
                said = _print(answer(messages))
                messages.append({"role": "assistant", "content": said})


@contextlib.contextmanager
def _engine(args: argparse.Namespace) -> Iterator[tuple[str, Answer]]:
    """The model's name, and how it answers. Raises ``ConfigError`` for what only servers have."""
    if args.api_key is not None:
        raise ConfigError("--api-key goes with --url")
    params = sampling_params(args)
    with make_engine(args) as engine:
        yield engine.config.model, lambda messages: engine.generate(messages, params, stream=True)


@contextlib.contextmanager
def _server(args: argparse.Namespace) -> Iterator[tuple[str, Answer]]:
    """The same for a server, through its chat completions; its first model, without a --model."""
    given = given_options(args, "engine")
    model = given.pop("model", "")
    if given:
        option = next(iter(given)).replace("_", "-")
        raise ConfigError(f"--{option} is an engine's; the one behind --url has been started")
    params = sampling_params(args)
    beyond = {name: params.pop(name) for name in _BEYOND_OPENAI if name in params}
    url = args.url.rstrip("/").removesuffix("/v1") + "/v1"
    with rt.OpenAI(model, base_url=url, api_key=args.api_key, extra_body=beyond) as backend:
        backend.model = model or next(iter(backend.models()), "")
        yield (
            f"{backend.model} at {url}",
            lambda messages: _chunks(backend, messages, SamplingParams.parse(params)),
        )


def _chunks(backend: rt.OpenAI, messages: Messages, params: SamplingParams) -> Iterator[Chunk]:
    """From the background loop, which talks to the server, to this thread."""
    items: queue.SimpleQueue[Chunk | RtlangError] = queue.SimpleQueue()
    stream = backend.start(Call(messages=list(messages), params=params))

    async def read() -> None:
        try:
            async for chunk in stream:
                items.put(chunk)
        except RtlangError as error:
            items.put(error)

    loop.spawn(read)
    try:
        while True:
            item = items.get()
            if isinstance(item, RtlangError):
                raise item
            yield item
            if item.finish is not None:
                return
    finally:
        stream.abort()


def _print(answer: Iterator[Chunk]) -> str:
    """The answer's text, shown as it comes."""
    chunks: list[Chunk] = []
    try:
        for chunk in answer:
            chunks.append(chunk)
            print(chunk.text, end="", flush=True)
    except KeyboardInterrupt:
        print(" (stopped)")
        return _text(chunks)
    usage = chunks[-1].usage
    told = "the server counts no tokens"
    if usage is not None:
        told = f"{usage.cached_tokens} of {usage.prompt_tokens} prompt tokens cached"
    print(f"\n({told})")
    return _text(chunks)


def _text(chunks: Sequence[Chunk]) -> str:
    return "".join(chunk.text for chunk in chunks)
