"""``rtlang grammar check SPEC [TEXT]``: is a constraint enforced, and does it allow a text?"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from rtlang import grammar
from rtlang.errors import GrammarError, InvalidParameter
from rtlang.grammar.spec import GrammarSpec, parsed_json
from rtlang.grammar.translate import translate

_WHERE = ("pointer", "keyword", "reason", "pos", "line", "column", "limit")


def add_grammar(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    check = commands.add_parser("check", help="is it enforced, and does it allow a text?")
    check.add_argument("spec", metavar="SPEC", help="a file or a text; - reads standard input")
    check.add_argument("text", metavar="TEXT", nargs="?", help="what might be generated")
    kinds = check.add_mutually_exclusive_group()
    for option, kind, what in (
        ("--schema", "json_schema", "SPEC is a JSON schema"),
        ("--regex", "regex", "SPEC is a regular expression"),
        ("--ebnf", "ebnf", "SPEC is a grammar"),
        ("--choice", "choice", "SPEC is a JSON list of texts"),
    ):
        kinds.add_argument(option, dest="kind", action="store_const", const=kind, help=what)
    check.set_defaults(command=run_check)


def run_check(args: argparse.Namespace) -> int:
    """0: enforced (and allows the text), 1: refused (and why), 2: does not allow the text."""
    try:
        spec = _spec(args.kind, _read(args.spec))
        translate(spec)
        allowed = args.text is None or grammar.accepts(spec, args.text)
    except (GrammarError, InvalidParameter) as error:
        print(f"refused: {error.code}: {error}")
        for name in _WHERE:
            if name in error.data:
                print(f"  {name}: {error.data[name]}")
        return 1
    print("accepted" if args.text is None else "allowed" if allowed else "not allowed")
    return 0 if allowed else 2


def _read(given: str) -> str:
    if given == "-":
        return sys.stdin.read()
    return Path(given).read_text(encoding="utf-8") if os.path.isfile(given) else given


def _spec(kind: str | None, source: str) -> GrammarSpec:
    """``source`` is of that kind; without: JSON as ``GrammarSpec.of`` takes it."""
    if kind in ("json_schema", "regex", "ebnf"):
        return GrammarSpec.of({kind: source})
    found: Any = parsed_json(source, "SPEC")
    return GrammarSpec.of({kind: found} if kind is not None else found)
