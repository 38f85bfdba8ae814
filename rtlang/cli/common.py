"""What the commands share: the engine and the sampling parameters that the options describe."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rtlang.runtime.engine import Engine

_SAMPLING = ("max_new_tokens", "temperature", "top_p", "top_k", "min_p", "sampling_seed", "stop")


def make_engine(args: argparse.Namespace) -> Engine:
    options = given_options(args, "engine")
    # It loads torch, which takes seconds: not before the options are known to be right.
    from rtlang.runtime.engine import Engine  # noqa: PLC0415

    return Engine(**options)


def add_options(
    parser: argparse.ArgumentParser, config: Any, title: str, hidden: Collection[str] = ()
) -> None:
    """One option per field of a configuration's dataclass; only those given are passed on, as
    ``<title>_<field>``."""
    group = parser.add_argument_group(title)
    for field in dataclasses.fields(config):
        if field.name in hidden:
            continue
        option = "--" + field.name.replace("_", "-")
        kind = str(field.type).split(" | ")[0]
        how: dict[str, Any] = {"default": argparse.SUPPRESS, "help": field.metadata["doc"]}
        if kind == "bool":
            how["action"] = argparse.BooleanOptionalAction
        elif kind.startswith("tuple"):
            how |= {"action": "extend", "nargs": "+", "metavar": field.name.upper()}
        else:
            how["type"] = {"int": int, "float": float, "str": str}[kind]
        group.add_argument(option, dest=f"{title}_{field.name}", **how)


def given_options(args: argparse.Namespace, title: str) -> dict[str, Any]:
    """What ``add_options`` made of the command line, by the fields' names."""
    prefix = f"{title}_"
    return {
        name.removeprefix(prefix): tuple(value) if isinstance(value, list) else value
        for name, value in vars(args).items()
        if name.startswith(prefix)
    }


def sampling_params(args: argparse.Namespace) -> dict[str, Any]:
    """Only what was given: the model's own defaults fill the rest."""
    return {name: value for name in _SAMPLING if (value := getattr(args, name)) is not None}
