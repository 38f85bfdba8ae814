"""What runs in the process of a ``helper.Helper``: it answers one question after the other."""

from __future__ import annotations

import os
import queue
import resource
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rtlang.errors import RtlangError
from rtlang.grammar.helper import read_frame, write_frame

#: What answers may take beside the memory that the process has when it is ready.
_MEMORY_BYTES = 2 << 30


def serve(prepare: Callable[[Any], Callable[[Any], Any]], *, niceness: int) -> None:
    """Never returns. ``prepare``: from the first message to what answers all others.

    It ends when its standard input does, in the middle of an answer too, and when there is no
    memory for one: then nothing is known of what else was lost.
    """
    frames: queue.Queue[Any] = queue.Queue()
    threading.Thread(target=_read, args=(frames,), daemon=True).start()
    os.nice(niceness)  # what generates goes first
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whatever a library prints
    answer = prepare(frames.get())
    _limit_memory()
    write_frame(answers, "ready")
    while True:
        write_frame(answers, _outcome(answer, frames.get()))


def _read(frames: queue.Queue[Any]) -> None:
    """Reads on while an answer is made: when the parent is gone, so is this process, at once."""
    while (message := read_frame(sys.stdin.buffer)) is not None:
        frames.put(message)
    os._exit(0)


def _outcome(answer: Callable[[Any], Any], question: Any) -> Any:
    try:
        return answer(question)
    except RtlangError as error:
        return error
    except MemoryError:
        os._exit(1)
    except Exception:  # a bug of ours, of which the parent tells
        return RuntimeError(traceback.format_exc())


def _limit_memory() -> None:
    statm = Path("/proc/self/statm")
    if statm.exists():  # Linux; elsewhere only time is limited
        mapped = int(statm.read_text().split()[0]) * resource.getpagesize()
        limit = mapped + _MEMORY_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
