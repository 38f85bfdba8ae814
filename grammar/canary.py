"""Trial compiles in a process of their own, which can be killed: a compile itself cannot.

The verdict comes back, not the result: written out, a compiled constraint is many times larger
than in memory, and takes far longer to read than to compile.
"""

from __future__ import annotations

import contextlib
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator

from rtlang.errors import GrammarError, GrammarTimeout
from rtlang.grammar.vocab import Vocab

COMMAND = (sys.executable, "-m", "rtlang.grammar.canary_main")
OK = "ok"


class Canary:
    """One worker process, started when it is first needed and again after each kill.

    Thread-safe: one trial at a time, others wait. The process ends with this one, whatever ends
    this one, since its standard input is closed then.
    """

    def __init__(
        self,
        vocab: Vocab,
        *,
        limit_s: float = 5.0,
        start_limit_s: float = 60.0,
        command: tuple[str, ...] = COMMAND,
    ) -> None:
        """``limit_s`` is for a trial, ``start_limit_s`` for the imports before the first one."""
        self._vocab = vocab
        self._limit_s = limit_s
        self._start_limit_s = start_limit_s
        self._command = command
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False

    def check(self, ebnf: str) -> None:
        """Returns if xgrammar compiles this EBNF within the limits of time and memory.

        Raises ``GrammarTimeout`` if it had to be killed (or ended by itself), ``GrammarError`` if
        xgrammar refused it.
        """
        with self._lock:
            process = self._process or self._start()
            answer = self._ask(process, pickle.dumps(ebnf), self._limit_s)
        if answer is None:
            raise GrammarTimeout("the constraint takes too much time or memory to compile")
        if answer != OK:
            raise GrammarError(f"the constraint does not compile: {answer}")

    def close(self) -> None:
        """Ends the process. A trial that runs is lost."""
        self._closed = True
        process = self._process
        if process is not None:
            process.kill()
        with self._lock:
            if self._process is not None:
                self._end(self._process)

    def _start(self) -> subprocess.Popen[bytes]:
        if self._closed:
            raise GrammarTimeout("the service that compiles constraints was closed")
        pipe = subprocess.PIPE
        process = subprocess.Popen(self._command, stdin=pipe, stdout=pipe)
        self._process = process
        data = pickle.dumps((self._vocab.token_bytes, sorted(self._vocab.stop_ids)))
        if self._ask(process, data, self._start_limit_s) is None:
            raise GrammarTimeout("the process for trial compiles does not start")
        return process

    def _ask(self, process: subprocess.Popen[bytes], data: bytes, limit_s: float) -> str | None:
        """The answer to one message; None, and the process is gone, if there is none in time."""
        assert process.stdin is not None and process.stdout is not None
        with _killed_after(process, limit_s):
            try:
                process.stdin.write(len(data).to_bytes(8, "little") + data)
                process.stdin.flush()
                answer = process.stdout.readline()
            except BrokenPipeError:
                answer = b""
        if answer.endswith(b"\n"):
            return answer.decode().strip()
        self._end(process)
        return None

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None and process.stdout is not None
        self._process = None
        process.kill()
        with contextlib.suppress(BrokenPipeError):  # of what it did not take
            process.stdin.close()
        process.stdout.close()
        process.wait()


@contextlib.contextmanager
def _killed_after(process: subprocess.Popen[bytes], limit_s: float) -> Iterator[None]:
    timer = threading.Timer(limit_s, process.kill)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
