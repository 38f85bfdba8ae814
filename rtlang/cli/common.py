"""What the commands share: the engine and the sampling parameters that the options describe."""

from __future__ import annotations

import argparse
from typing import Any

from rtlang.runtime.engine import Engine

_SAMPLING = ("max_new_tokens", "temperature", "top_p", "top_k", "min_p", "sampling_seed", "stop")


def make_engine(args: argparse.Namespace) -> Engine:
    options = {
        name.removeprefix("engine_"): value
        for name, value in vars(args).items()
        if name.startswith("engine_")
    }
    return Engine(**options)


def sampling_params(args: argparse.Namespace) -> dict[str, Any]:
    """Only what was given: the model's own defaults fill the rest."""
    return {name: value for name in _SAMPLING if (value := getattr(args, name)) is not None}
