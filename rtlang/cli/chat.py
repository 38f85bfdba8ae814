"""``rtlang chat``: a conversation on the terminal; each turn says what the cache saved."""

from __future__ import annotations

import argparse
import sys

from rtlang.cli.common import make_engine, sampling_params
from rtlang.runtime.engine import Engine
from rtlang.runtime.result import collect


def run_chat(args: argparse.Namespace) -> None:
    """Ends at the end of input, or at a line ``/quit``. Ctrl-C ends an answer, not the chat."""
    messages = [{"role": "system", "content": args.system}] if args.system else []
    with make_engine(args) as engine:
        print(f"{engine.config.model}; /quit or Ctrl-D ends", file=sys.stderr)
        while True:
            try:
                asked = input("> ")
            except EOFError:
                return
            if asked.strip() == "/quit":
                return
            if asked.strip():
                messages.append({"role": "user", "content": asked})
                answer = _answer(engine, messages, args)
                messages.append({"role": "assistant", "content": answer})


def _answer(engine: Engine, messages: list[dict[str, str]], args: argparse.Namespace) -> str:
    chunks = []
    try:
        for chunk in engine.generate(messages, sampling_params(args), stream=True):
            chunks.append(chunk)
            print(chunk.text, end="", flush=True)
    except KeyboardInterrupt:
        print(" (stopped)")
        return "".join(chunk.text for chunk in chunks)
    usage = collect(chunks).usage
    print(f"\n({usage.cached_tokens} of {usage.prompt_tokens} prompt tokens cached)")
    return "".join(chunk.text for chunk in chunks)
