"""``rtlang generate PROMPT``: one generation, printed as it comes."""

from __future__ import annotations

import argparse
import sys

import msgspec

from rtlang.cli.common import make_engine, sampling_params
from rtlang.runtime.result import collect


def run_generate(args: argparse.Namespace) -> None:
    text = sys.stdin.read() if args.prompt == "-" else args.prompt
    prompt = [{"role": "user", "content": text}] if args.chat else text
    with make_engine(args) as engine:
        chunks = []
        for chunk in engine.generate(prompt, sampling_params(args), stream=True):
            chunks.append(chunk)
            if not args.json:
                print(chunk.text, end="", flush=True)
        result = collect(chunks)
    if args.json:
        fields = ("text", "token_ids", "finish_reason", "usage")
        shown = {name: msgspec.to_builtins(getattr(result, name)) for name in fields}
        shown["finish_reason"] = result.finish_reason.type
        shown["usage"] = msgspec.structs.asdict(result.usage)
        print(msgspec.json.encode(shown).decode())
    else:
        print()
