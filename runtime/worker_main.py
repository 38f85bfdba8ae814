"""The scheduler's own process: reads its job from standard input, serves until that closes."""

from __future__ import annotations

import gc
import json
import logging
import os
import signal
import sys
import threading
import time
import traceback
from typing import Any

import zmq

from rtlang.errors import RtlangError
from rtlang.runtime.config import EngineConfig
from rtlang.runtime.launch import load_source
from rtlang.runtime.worker import Worker

logger = logging.getLogger("rtlang.runtime.worker_main")  # it runs as __main__


def main() -> None:
    # Its end comes by the pipe, and is the caller's to decide: what is sent to a whole group of
    # processes (Ctrl-C, a service manager's stop) must not cut requests that may run to their end.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    # Only this protocol may write to the pipe; whatever else prints goes to standard error.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    logging.basicConfig(format="%(name)s: %(message)s")  # to standard error
    logging.getLogger("rtlang").setLevel(logging.INFO)
    job = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()  # also while the model loads
    logger.info("process and imports: %.1f s", time.time() - job["started"])
    try:
        config = EngineConfig(**job["config"])
        source = load_source(config)
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        executor = source.create_executor(config)
        worker = Worker(config, executor, source.tokenizer, context, job["endpoint"])
    except RtlangError as error:
        _answer(answers, error=error.code, message=error.message)
        sys.exit(1)
    except Exception:
        _answer(answers, error="engine_error", message=traceback.format_exc())
        sys.exit(1)
    # What the start has made stays: no collection of garbage need look at it again.
    gc.collect()
    gc.freeze()
    _answer(answers, ready=True)
    worker.run()


def _answer(answers: Any, **fields: Any) -> None:
    answers.write(json.dumps(fields) + "\n")
    answers.flush()


def _end_with_parent() -> None:
    while os.read(0, 4096):  # not sys.stdin, whose lock a thread must not hold at the end
        pass
    os._exit(0)


if __name__ == "__main__":
    main()
