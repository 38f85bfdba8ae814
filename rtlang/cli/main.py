"""``rtlang`` and ``python -m rtlang``: the commands and their options."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from rtlang.cli.bench import add_bench_offline
from rtlang.cli.bench_serve import add_bench_compare, add_bench_serve
from rtlang.cli.chat import run_chat
from rtlang.cli.common import add_options
from rtlang.cli.generate import run_generate
from rtlang.cli.grammar import add_grammar
from rtlang.cli.keys import add_keys
from rtlang.cli.run import run_file
from rtlang.cli.serve import add_serve
from rtlang.errors import RtlangError
from rtlang.runtime.config import EngineConfig

#: Options of the engine that make no sense for a command.
_HIDDEN = ("debug",)


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0, 1 for an error (told on standard error), 130 for Ctrl-C."""
    given = list(sys.argv[1:] if argv is None else argv)
    # What stands behind "--" is the program's: argparse would mix it with our options.
    cut = given.index("--") if "--" in given else len(given)
    parser = _parser()
    args = parser.parse_args(given[:cut])
    args.arguments = given[cut + 1 :]
    if args.arguments and args.command is not run_file:
        parser.error("only the run command takes arguments behind --")
    command: Any = args.command
    try:
        return int(command(args) or 0)
    except RtlangError as error:
        print(f"rtlang: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="rtlang", description="A language for LLM programs, and the runtime that serves them."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    run = commands.add_parser("run", help="run a Python file with an engine as default backend")
    run.add_argument("file", help="its own arguments, if any, come behind --")
    run.set_defaults(command=run_file)

    chat = commands.add_parser("chat", help="talk to a model")
    chat.add_argument("--system", help="system prompt")
    chat.add_argument("--url", help="of a server to talk to, instead of starting an engine")
    chat.add_argument("--api-key", help="for servers that want one")
    _add_sampling(chat, max_new_tokens=512)
    chat.set_defaults(command=run_chat)

    generate = commands.add_parser("generate", help="continue a text, or answer with --chat")
    generate.add_argument("prompt", help="the text; - reads standard input")
    generate.add_argument("--chat", action="store_true", help="the prompt is a user's message")
    generate.add_argument("--json", action="store_true", help="print the result as JSON")
    _add_sampling(generate, max_new_tokens=128)
    generate.set_defaults(command=run_generate)

    kinds = commands.add_parser("bench", help="measure").add_subparsers(
        required=True, metavar="KIND"
    )
    bench = kinds.add_parser("offline", help="an engine: all requests of a workload at once")
    add_bench_offline(bench)
    add_bench_serve(kinds.add_parser("serve", help="a server: requests that arrive over time"))
    add_bench_compare(kinds.add_parser("compare", help="two reports of the same workload"))
    add_grammar(commands.add_parser("grammar", help="check a constraint"))
    add_serve(commands.add_parser("serve", help="serve a model over HTTP"))
    add_keys(commands.add_parser("keys", help="make and remove API keys of a server"))
    for command in (run, chat, generate, bench):
        add_engine_options(command)
    return parser


def _add_sampling(parser: argparse.ArgumentParser, *, max_new_tokens: int) -> None:
    parser.add_argument("--max-new-tokens", type=int, default=max_new_tokens)
    for name in ("temperature", "top-p", "min-p"):
        parser.add_argument(f"--{name}", type=float)
    parser.add_argument("--top-k", type=int)
    parser.add_argument("--seed", type=int, dest="sampling_seed")
    parser.add_argument("--stop", action="append", help="may be given several times")


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    """One option per field of ``EngineConfig``; only those given are passed on."""
    add_options(parser, EngineConfig, "engine", _HIDDEN)


if __name__ == "__main__":
    sys.exit(main())
