"""Starts a scheduler, in a thread or in its own process, and connects a client to it."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import functools
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import zmq

import rtlang.errors
from rtlang.errors import ConfigError, EngineError, ModelLoadError, SchedulerDied
from rtlang.runtime.checkpoint import CheckpointSource
from rtlang.runtime.client import SchedulerClient
from rtlang.runtime.config import EngineConfig
from rtlang.runtime.executor import ModelSource
from rtlang.runtime.worker import Worker

#: ``module:factory``, a model source that any process can load.
_IMPORT_PATH = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
#: Seconds that a scheduler gets to end by itself when the engine is closed.
CLOSE_S = 10.0


def load_source(config: EngineConfig) -> ModelSource:
    """The model that ``config.model`` names: a checkpoint, or ``module:factory`` for others."""
    if _IMPORT_PATH.fullmatch(config.model):
        module, _, name = config.model.partition(":")
        try:
            source: ModelSource = getattr(importlib.import_module(module), name)()
        except (ImportError, AttributeError) as error:
            raise ModelLoadError(f"{config.model}: {error}") from error
        return source
    return CheckpointSource(config)


class Launched:
    """A running scheduler and a client of it; ``close`` ends both."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        client: SchedulerClient,
        join: Callable[[], None],
        pid: int,
        endpoint: str,
        *,
        owns: bool = True,
    ) -> None:
        """``endpoint``: where further clients find the scheduler; ``owns``: closing ends it."""
        self.client = client
        self.pid = pid  # of the process that the scheduler runs in
        self.endpoint = endpoint
        self._owns = owns
        self._context = context
        self._join = join
        self._closed = False

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self.client.dead is None and self._owns:
            with contextlib.suppress(EngineError):  # it ended by itself, or is stuck: join decides
                self.client.call("shutdown", CLOSE_S)
        self._join()
        self.client.close()
        self._context.term()


def launch(config: EngineConfig, source: ModelSource) -> Launched:
    """Raises what loading the model raises, in either mode."""
    return _launch_process(config) if config.scheduler_process else _launch_thread(config, source)


def _launch_thread(config: EngineConfig, source: ModelSource) -> Launched:
    executor = source.create_executor(config)  # may raise: before there is anything to close
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    endpoint = f"inproc://{uuid.uuid4().hex}"
    worker = Worker(config, executor, source.tokenizer, context, endpoint)
    thread = threading.Thread(target=worker.run, name="rtlang-scheduler", daemon=True)
    thread.start()

    def death() -> str | None:
        return None if thread.is_alive() else "the scheduler's thread has ended"

    client = SchedulerClient(context, endpoint, f"{endpoint}-client", death)
    return Launched(context, client, lambda: thread.join(CLOSE_S), os.getpid(), endpoint)


def _launch_process(config: EngineConfig) -> Launched:
    folder = tempfile.mkdtemp(prefix="rtlang-")
    endpoint = f"ipc://{folder}/scheduler"
    root = str(Path(rtlang.errors.__file__).parents[1])
    paths = [root, *filter(None, sys.path)]  # whatever this process can import, the child can
    # A plain child with a pipe, not multiprocessing: the caller's script is never run again, so
    # it needs no main guard. The child ends when this pipe closes, however this process dies.
    process = subprocess.Popen(
        [sys.executable, "-m", "rtlang.runtime.worker_main"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )
    assert process.stdin is not None and process.stdout is not None
    at_exit = functools.partial(_end_process, process, folder, 0.0)
    atexit.register(at_exit)  # whoever ends without closing it leaves nothing behind
    job = {"config": dataclasses.asdict(config), "endpoint": endpoint, "started": time.time()}
    try:
        process.stdin.write(json.dumps(job).encode() + b"\n")
        process.stdin.flush()
        _raise_start_error(process.stdout.readline())
    except BaseException:
        at_exit()
        atexit.unregister(at_exit)
        raise

    def death() -> str | None:
        code = process.poll()
        return None if code is None else f"the scheduler's process ended with exit code {code}"

    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    client = SchedulerClient(context, endpoint, f"ipc://{folder}/client", death)

    def join() -> None:
        _end_process(process, folder, CLOSE_S)
        atexit.unregister(at_exit)

    return Launched(context, client, join, process.pid, endpoint)


def attach(endpoint: str, death: Callable[[], str | None]) -> Launched:
    """A further client of the scheduler at an ``ipc://`` endpoint, from another process."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    replies = f"{endpoint}-{uuid.uuid4().hex[:12]}"
    client = SchedulerClient(context, endpoint, replies, death)
    return Launched(context, client, lambda: None, 0, endpoint, owns=False)


def _end_process(process: subprocess.Popen[bytes], folder: str, patience_s: float) -> None:
    """Close its pipe, give it so long to end by itself; leave neither process nor folder."""
    assert process.stdin is not None and process.stdout is not None
    with contextlib.suppress(BrokenPipeError):  # what it was told last need not have arrived
        process.stdin.close()
    try:
        process.wait(patience_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    process.stdout.close()
    shutil.rmtree(folder, ignore_errors=True)


def _raise_start_error(line: bytes) -> None:
    if not line:
        raise SchedulerDied("the scheduler's process ended while it started")
    answer: dict[str, Any] = json.loads(line)
    if "error" in answer:
        raise rtlang.errors.from_wire(answer["error"], answer["message"])


def resolve_config(config: EngineConfig, source: ModelSource | None) -> EngineConfig:
    """The device and its defaults. A model given as an object cannot travel to another process:
    by default its scheduler is a thread, and ``ConfigError`` if that is not wanted."""
    if source is not None and config.scheduler_process:
        raise ConfigError(
            "scheduler_process=True needs a model by name: for a model object, "
            "give 'module:factory' instead"
        )
    if source is not None:
        config = dataclasses.replace(config, scheduler_process=False)
    return config.resolve("cuda" if torch.cuda.is_available() else "cpu")
