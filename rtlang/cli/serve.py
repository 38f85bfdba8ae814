"""``rtlang serve``: a model over HTTP."""

from __future__ import annotations

import argparse
import importlib.util

from rtlang.cli.common import add_options, given_options
from rtlang.errors import ConfigError
from rtlang.runtime.config import EngineConfig
from rtlang.runtime.server.config import ServerConfig
from rtlang.runtime.server.listen import bind, check_tls

#: What the server needs beside the engine: the extra ``server``.
_NEEDED = ("fastapi", "uvicorn", "prometheus_client", "sqlalchemy")
#: Of the engine's options: a server's scheduler always has its own process.
_HIDDEN = ("debug", "scheduler_process")


def add_serve(parser: argparse.ArgumentParser) -> None:
    add_options(parser, ServerConfig, "server")
    add_options(parser, EngineConfig, "engine", _HIDDEN)
    parser.set_defaults(command=run_serve)


def run_serve(args: argparse.Namespace) -> int:
    """Serve until a signal: 0 when every request had its end, 1 when some were cut, or when the
    scheduler died. What is wrong with the options or the port is told before anything loads."""
    config = ServerConfig(**given_options(args, "server"))
    engine = EngineConfig.from_kwargs(**given_options(args, "engine"), scheduler_process=True)
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(f"rtlang serve needs {', '.join(missing)}: pip install 'rtlang[server]'")
    check_tls(config)
    listener = bind(config)
    # It loads torch and the web framework, which takes seconds: the port comes first.
    from rtlang.runtime.server.supervisor import run_server  # noqa: PLC0415

    return run_server(config, engine, listener)
