"""``rtlang run FILE``: the file's programs find an engine as their default backend."""

from __future__ import annotations

import argparse
import runpy
import sys
from pathlib import Path

from rtlang.cli.common import make_engine
from rtlang.defaults import set_default_backend
from rtlang.errors import ConfigError


def run_file(args: argparse.Namespace) -> None:
    """As ``python FILE``, ``__name__`` being ``"__main__"``. Raises what the file raises."""
    path = Path(args.file)
    if not path.is_file():
        raise ConfigError(f"there is no file {args.file}")
    with make_engine(args) as engine:
        set_default_backend(engine)
        saved = sys.argv, list(sys.path)
        sys.argv = [args.file, *args.arguments]
        sys.path.insert(0, str(path.resolve().parent))
        try:
            runpy.run_path(str(path), run_name="__main__")
        finally:
            sys.argv, sys.path[:] = saved
            set_default_backend(None)
