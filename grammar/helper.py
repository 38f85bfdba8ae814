"""A process for work that has to be killable, and must not hold up this one's threads.

Messages are frames of 8 bytes of length (little-endian) and a pickle, from and to a process of
our own: what it runs is ``helper_loop.serve``.
"""

from __future__ import annotations

import contextlib
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import IO, Any

from rtlang.errors import GrammarTimeout


def command(module: str) -> tuple[str, ...]:
    return (sys.executable, "-m", module)


class Helper:
    """One process, started when it is first needed and again after each kill.

    Thread-safe: one question at a time, others wait. The process ends with this one, whatever
    ends this one, since its standard input is closed then.
    """

    def __init__(
        self, command: tuple[str, ...], hello: Any, *, start_limit_s: float = 60.0
    ) -> None:
        """``hello``: what it is told first. ``start_limit_s`` is for its imports, and all else
        that it does before it can be asked."""
        self._command = command
        self._hello = hello
        self._start_limit_s = start_limit_s
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False

    def start(self) -> None:
        """Now, if it does not run. Raises ``GrammarTimeout``."""
        with self._lock:
            self._running()

    def ask(self, question: Any, limit_s: float) -> Any:
        """Its answer, never None.

        Raises ``GrammarTimeout`` if it had to be killed (or ended by itself), and what answering
        raised there: a ``RtlangError``, or a ``RuntimeError`` with the traceback of a bug.
        """
        with self._lock:
            answer = self._exchange(self._running(), question, limit_s)
        if answer is None:
            raise GrammarTimeout("the constraint takes too much time or memory to compile")
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self) -> None:
        """Ends the process. A question that it works on fails."""
        self._closed = True
        process = self._process
        if process is not None:
            process.kill()
        with self._lock:
            if self._process is not None:
                self._end(self._process)

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is not None:
            return self._process
        if self._closed:
            raise GrammarTimeout("the service that compiles constraints was closed")
        pipe = subprocess.PIPE
        self._process = process = subprocess.Popen(self._command, stdin=pipe, stdout=pipe)
        if self._exchange(process, self._hello, self._start_limit_s) is None:
            raise GrammarTimeout("a process that constraints need does not start")
        return process

    def _exchange(self, process: subprocess.Popen[bytes], message: Any, limit_s: float) -> Any:
        """The answer to one message; None, and the process is gone, if there is none in time."""
        assert process.stdin is not None and process.stdout is not None
        with _killed_after(process, limit_s):
            try:
                write_frame(process.stdin, message)
                answer = read_frame(process.stdout)
            except BrokenPipeError:
                answer = None
        if answer is None:
            self._end(process)
        return answer

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None and process.stdout is not None
        self._process = None
        process.kill()
        with contextlib.suppress(BrokenPipeError):  # of what it did not take
            process.stdin.close()
        process.stdout.close()
        process.wait()


def write_frame(stream: IO[bytes], message: Any) -> None:
    data = pickle.dumps(message)
    stream.write(len(data).to_bytes(8, "little") + data)
    stream.flush()


def read_frame(stream: IO[bytes]) -> Any:
    """The next message; None at the end of the stream, and if it ends within one."""
    header = stream.read(8)
    size = int.from_bytes(header, "little")
    data = stream.read(size) if len(header) == 8 else b""
    return pickle.loads(data) if data and len(data) == size else None


@contextlib.contextmanager
def _killed_after(process: subprocess.Popen[bytes], limit_s: float) -> Iterator[None]:
    timer = threading.Timer(limit_s, process.kill)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
