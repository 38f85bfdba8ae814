"""The process of ``canary.Canary``: ``python -m rtlang.grammar.canary_main``.

Standard input: frames of 8 bytes of length (little-endian) and a pickle of our own parent. First
the vocabulary (token bytes, stop ids), then texts of EBNF. Standard output: a line for each.
"""

from __future__ import annotations

import os
import pickle
import queue
import resource
import sys
import threading
from pathlib import Path
from typing import Any

from rtlang.errors import RtlangError
from rtlang.grammar.canary import OK
from rtlang.grammar.vocab import Vocab
from rtlang.grammar.xgr_backend import XgrBackend

#: What compiles may take beside the memory that the process has after its imports.
_MEMORY_BYTES = 2 << 30


def main() -> None:
    frames: queue.Queue[Any] = queue.Queue()
    threading.Thread(target=_read, args=(frames,), daemon=True).start()
    os.nice(10)  # what generates goes first
    token_bytes, stop_ids = frames.get()
    backend = XgrBackend(Vocab(token_bytes, len(token_bytes), frozenset(stop_ids)))
    _limit_memory()
    print(OK, flush=True)
    while True:
        print(_verdict(backend, frames.get()), flush=True)


def _read(frames: queue.Queue[Any]) -> None:
    """Reads on while a compile runs: when the parent is gone, so is this process, at once."""
    while header := sys.stdin.buffer.read(8):
        frames.put(pickle.loads(sys.stdin.buffer.read(int.from_bytes(header, "little"))))
    os._exit(0)


def _verdict(backend: XgrBackend, ebnf: str) -> str:
    try:
        backend.compile_ebnf(ebnf)
    except (RtlangError, MemoryError) as error:
        return " ".join(str(error).split()) or type(error).__name__
    return OK


def _limit_memory() -> None:
    statm = Path("/proc/self/statm")
    if statm.exists():  # Linux; elsewhere only time is limited
        mapped = int(statm.read_text().split()[0]) * resource.getpagesize()
        limit = mapped + _MEMORY_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


if __name__ == "__main__":
    main()
