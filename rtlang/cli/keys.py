"""``rtlang keys add | list | remove``: the file with a server's API keys."""

from __future__ import annotations

import argparse
from pathlib import Path

from rtlang.errors import ConfigError
from rtlang.runtime.server.keys import KeyEntry, KeyFile, new_key, read_key_file, write_key_file

_LIMITS = ("requests_per_minute", "tokens_per_minute", "concurrency")


def add_keys(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    add = commands.add_parser("add", help="make a key, print it once, keep its hash")
    listing = commands.add_parser("list", help="names, rights and limits")
    remove = commands.add_parser("remove", help="a running server forgets it at once")
    for each, what in ((add, run_add), (listing, run_list), (remove, run_remove)):
        each.add_argument("file", help="JSON file, as in --api-key-file")
        each.set_defaults(command=what)
    for each in (add, remove):
        each.add_argument("name")
    add.add_argument("--operator", action="store_true", help="may use the control endpoints")
    add.add_argument("--salt", default="", help="keys of another salt share no cached token")
    for limit in _LIMITS:
        add.add_argument("--" + limit.replace("_", "-"), type=int)


def run_add(args: argparse.Namespace) -> int:
    file = _read(args.file) if Path(args.file).exists() else KeyFile.empty()
    if any(entry.name == args.name for entry in file.keys):
        raise ConfigError(f"{args.file} has a key named {args.name!r} already")
    key = new_key()
    entry = KeyEntry(
        name=args.name,
        hash=file.hashed(key),
        operator=args.operator,
        salt=args.salt,
        **{limit: getattr(args, limit) for limit in _LIMITS},
    )
    write_key_file(args.file, file.having(entry))
    print(key)
    return 0


def run_list(args: argparse.Namespace) -> int:
    for entry in _read(args.file).keys:
        limits = [f"{n}={v}" for n in _LIMITS if (v := getattr(entry, n)) is not None]
        salt = [f"salt={entry.salt!r}"] if entry.salt else []
        print("\t".join([entry.name, "operator" if entry.operator else "user", *salt, *limits]))
    return 0


def run_remove(args: argparse.Namespace) -> int:
    write_key_file(args.file, _read(args.file).lacking(args.name))
    return 0


def _read(path: str) -> KeyFile:
    return read_key_file(path)
