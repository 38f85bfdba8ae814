"""Many runs of a program, a bounded number at once, results in order."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

from rtlang.errors import InvalidParameter

Item = Mapping[str, Any] | Sequence[Any]
R = TypeVar("R", covariant=True)
DEFAULT_WORKERS = 64


class Job(Protocol[R]):
    """One run; see ``execution.Execution``. Its errors end up in its result."""

    @property
    def result(self) -> R: ...

    def run_here(self) -> None: ...

    async def run_async(self) -> None: ...

    def cancel(self) -> None: ...


def num_workers(given: Any) -> int:
    if given == "auto":
        return DEFAULT_WORKERS
    if isinstance(given, bool) or not isinstance(given, int) or given < 1:
        raise InvalidParameter(f"a batch needs at least one worker, got {given!r}")
    return given


def split_item(index: int, item: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """(positional, keyword) arguments; copies. Raises ``TypeError`` for neither."""
    if isinstance(item, Mapping):
        return (), dict(item)
    if isinstance(item, tuple | list):
        return tuple(item), {}
    raise TypeError(
        f"item {index} of the batch is no mapping or tuple of arguments: {type(item).__name__}"
    )


def size(items: Iterable[Any]) -> int | None:
    return len(items) if isinstance(items, Sequence) else None


def run_jobs(
    jobs: Iterator[Job[R]], workers: int, ahead: int | None, total: int | None, bar: bool
) -> Iterator[R]:
    """Results in order. At most ``ahead`` jobs are taken before their result is read (None: all).

    However the iteration ends, nothing of it runs on.
    """
    pool = ThreadPoolExecutor(workers, thread_name_prefix="rtlang-batch")
    window: deque[tuple[Job[R], Future[None]]] = deque()
    try:
        with _progress(total, bar) as advance:
            for job in jobs:
                future = pool.submit(contextvars.copy_context().run, job.run_here)
                future.add_done_callback(advance)
                window.append((job, future))
                if ahead is not None and len(window) >= ahead:
                    yield _result(*window.popleft())
            while window:
                yield _result(*window.popleft())
    finally:
        for job, future in window:
            if not future.cancel():
                job.cancel()
        # Waiting would delay a Ctrl-C: a cancelled body ends at its next read.
        pool.shutdown(wait=False, cancel_futures=True)


def _result(job: Job[R], future: Future[None]) -> R:
    try:
        future.result()
    except BaseException:
        job.cancel()
        raise
    return job.result


async def arun_jobs(jobs: Iterator[Job[R]], workers: int, total: int | None, bar: bool) -> list[R]:
    """Results in order; cancelled, or failed on a bad item, it cancels what still runs."""
    done: dict[int, R] = {}
    numbered = enumerate(jobs)

    async def work(advance: Callable[[Any], None]) -> None:
        for index, job in numbered:
            await job.run_async()
            done[index] = job.result
            advance(None)

    with _progress(total, bar) as advance:
        tasks = [asyncio.ensure_future(work(advance)) for _ in range(workers)]
        try:
            await asyncio.gather(*tasks)
        except BaseException:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            raise
    return [done[index] for index in sorted(done)]


@contextlib.contextmanager
def _progress(total: int | None, wanted: bool) -> Iterator[Callable[[Any], None]]:
    """Gives what to call when a job is done."""
    if not wanted:
        yield lambda _: None
        return
    from rich.progress import Progress  # noqa: PLC0415 - not needed to run programs

    with Progress() as progress:
        task = progress.add_task("programs", total=total)
        yield lambda _: progress.advance(task)
