"""Program: what ``@function`` makes of a function."""

from __future__ import annotations

import contextvars
import functools
import inspect
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from typing import Any, Generic, Literal, TypeVar, overload

from rtlang import batching
from rtlang.defaults import OPTION_NAMES, Defaults, current
from rtlang.errors import ProgramError, Unsupported
from rtlang.execution import Execution
from rtlang.runtime.sampling_params import NOT_BUILT
from rtlang.state import ProgramRun, ProgramState

T = TypeVar("T")


class Program(Generic[T]):
    """A function of a state, to be run. ``T`` is what its body returns.

    Keyword arguments of ``run`` and its siblings are defaults for the program's calls where they
    have a name of ``SamplingParams`` or of ``defaults.OPTION_NAMES`` (``max_new_tokens``, 128
    unless given, ``temperature``, ``stop``, …, ``seed``), and else arguments of the body.
    """

    __name__: str
    __wrapped__: Callable[..., Any]

    def __init__(self, body: Callable[..., Any]) -> None:
        """Raises ``ProgramError`` for what cannot be a program."""
        functools.update_wrapper(self, body)
        self._body = body
        self._bound: dict[str, Any] = {}
        self._prefix: tuple[Any, ...] = ()  # the object, for a method
        self._name = getattr(body, "__qualname__", repr(body))
        self._is_async = inspect.iscoroutinefunction(body)
        if inspect.isgeneratorfunction(body) or inspect.isasyncgenfunction(body):
            raise ProgramError(f"{self._name} is a generator: a program's body must not yield")
        self._signature = inspect.signature(body)
        self._set_signature()

    def __repr__(self) -> str:
        return f"<Program {self._name}{self.__signature__}>"

    def __get__(self, owner: object | None, kind: type | None = None) -> Program[T]:
        """A program that is a method: the object comes before the state."""
        if owner is None:
            return self
        bound = self._derived()
        bound._prefix = (owner,)
        bound._set_signature()
        return bound

    def bind(self, **arguments: Any) -> Program[T]:
        """The same program with some arguments given; a call's own arguments win."""
        unknown = [n for n in arguments if n not in self._names and not self._takes_any]
        if unknown:
            raise ProgramError(f"{self._name} has no parameter {unknown[0]!r}")
        bound = self._derived()
        bound._bound = {**self._bound, **arguments}
        return bound

    # -- running one ----------------------------------------------------------------------------

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Called with a state, the body continues on it (in an async program, await it) and the
        result is what it returns. Without one it is ``run``."""
        if args and isinstance(args[0], ProgramState):
            state, *rest = args
            return self._body(*self._prefix, state, *rest, **{**self._bound, **kwargs})
        return self.run(*args, **kwargs)

    def run(
        self,
        *args: Any,
        backend: Any = None,
        stream: bool = False,
        raise_errors: bool = True,
        **kwargs: Any,
    ) -> ProgramRun[T]:
        """Run the body, wait for all that it has appended, return its state.

        Raises the first error, unless ``raise_errors=False``: then it is the state's ``error``,
        and reading a variable raises it. ``stream=True`` returns at once: the body runs in a
        thread of its own, ``text_iter`` follows it, and reads raise its error.
        """
        execution = self._prepare(backend, args, kwargs)
        if stream:
            execution.stream()
            context = contextvars.copy_context()
            thread = threading.Thread(
                target=context.run,
                args=(execution.run_quietly,),
                name=f"rtlang-{self._name}",
                daemon=True,
            )
            thread.start()
            return execution.result
        execution.run_here()
        if raise_errors:
            execution.raise_error()
        return execution.result

    async def arun(
        self,
        *args: Any,
        backend: Any = None,
        stream: bool = False,
        raise_errors: bool = True,
        **kwargs: Any,
    ) -> ProgramRun[T]:
        """``run``, awaited. An async body runs in this loop, another one in a thread."""
        execution = self._prepare(backend, args, kwargs)
        if stream:
            execution.stream()
            execution.start_task()
            return execution.result
        await execution.run_async()
        if raise_errors:
            execution.raise_error()
        return execution.result

    # -- running many -----------------------------------------------------------------------------

    @overload
    def run_batch(
        self,
        items: Iterable[batching.Item],
        *,
        backend: Any = ...,
        num_threads: int | Literal["auto"] = ...,
        progress_bar: bool = ...,
        generator_style: Literal[False] = ...,
        **options: Any,
    ) -> list[ProgramRun[T]]: ...

    @overload
    def run_batch(
        self,
        items: Iterable[batching.Item],
        *,
        backend: Any = ...,
        num_threads: int | Literal["auto"] = ...,
        progress_bar: bool = ...,
        generator_style: Literal[True],
        **options: Any,
    ) -> Iterator[ProgramRun[T]]: ...

    def run_batch(
        self,
        items: Iterable[batching.Item],
        *,
        backend: Any = None,
        num_threads: int | Literal["auto"] = "auto",
        progress_bar: bool = False,
        generator_style: bool = False,
        **options: Any,
    ) -> list[ProgramRun[T]] | Iterator[ProgramRun[T]]:
        """Run the program once per item: a mapping of arguments, or a tuple (list) of them.

        Results in order; an item's error is the ``error`` of its result, and does not touch the
        others. ``num_threads`` run at once. ``generator_style``: an iterator that takes items as
        results are read. Interrupted, or left early, it cancels what still runs.
        """
        workers = batching.num_workers(num_threads)
        jobs = self._jobs(items, backend, options)
        ahead = 2 * workers if generator_style else None
        results = batching.run_jobs(jobs, workers, ahead, batching.size(items), progress_bar)
        return results if generator_style else list(results)

    async def abatch(
        self,
        items: Iterable[batching.Item],
        *,
        backend: Any = None,
        concurrency: int = batching.DEFAULT_WORKERS,
        progress_bar: bool = False,
        **options: Any,
    ) -> list[ProgramRun[T]]:
        """``run_batch``, awaited; ``concurrency`` programs run at once, async ones as tasks."""
        workers = batching.num_workers(concurrency)
        jobs = self._jobs(items, backend, options)
        return await batching.arun_jobs(jobs, workers, batching.size(items), progress_bar)

    # -- inside -----------------------------------------------------------------------------------

    def _derived(self) -> Program[T]:
        twin: Program[T] = Program(self._body)
        twin._bound, twin._prefix = dict(self._bound), self._prefix
        twin._set_signature()
        return twin

    def _set_signature(self) -> None:
        """The body's without the object and the state."""
        parameters = list(self._signature.parameters.values())
        hidden = len(self._prefix) + 1
        if len(parameters) < hidden or parameters[0].kind not in (
            inspect.Parameter.POSITIONAL_ONLY,
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
        ):
            raise ProgramError(f"{self._name} needs a first parameter for the state")
        own = parameters[hidden:]
        self.__signature__ = self._signature.replace(parameters=own)
        self._names = frozenset(p.name for p in own if p.kind is not inspect.Parameter.VAR_KEYWORD)
        self._takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in own)

    def _prepare(
        self, backend: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Execution[T]:
        found, defaults = current(backend)
        known = OPTION_NAMES | NOT_BUILT.keys()
        options = {k: v for k, v in kwargs.items() if k in known}
        for name in options:
            if name in self._names:
                raise ProgramError(
                    f"{name!r} is an option of run() and a parameter of {self._name}: give the "
                    "parameter by position or with bind()"
                )
        arguments = {k: v for k, v in kwargs.items() if k not in known}
        return self._execution(found, defaults.updated(options), args, arguments)

    def _execution(
        self, backend: Any, defaults: Defaults, args: tuple[Any, ...], arguments: Mapping[str, Any]
    ) -> Execution[T]:
        bound = {**self._bound, **arguments}
        if args:
            names = list(self.__signature__.parameters)
            for name in names[: len(args)]:
                if name not in arguments:
                    bound.pop(name, None)  # given by position
        call = functools.partial(self._body, *self._prefix)
        return Execution(self._name, call, self._is_async, backend, defaults, args, bound)

    def _jobs(
        self, items: Iterable[batching.Item], backend: Any, options: Mapping[str, Any]
    ) -> Iterator[Execution[T]]:
        """One execution per item, made when its turn has come. Wrong options raise at once."""
        found, defaults = current(backend)
        defaults = defaults.updated(options)

        def each() -> Iterator[Execution[T]]:
            for index, item in enumerate(items):
                args, arguments = batching.split_item(index, item)
                yield self._execution(found, defaults, args, arguments)

        return each()


@overload
def function(body: Callable[..., Coroutine[Any, Any, T]]) -> Program[T]: ...
@overload
def function(body: Callable[..., T]) -> Program[T]: ...
@overload
def function(
    *, num_api_spec_tokens: int | None = None
) -> Callable[[Callable[..., T]], Program[T]]: ...


def function(
    body: Callable[..., Any] | None = None, *, num_api_spec_tokens: int | None = None
) -> Any:
    """Make a program of a function (or method, async or not) whose first parameter is the state.

    ``num_api_spec_tokens`` (speculative execution on completion APIs) is not built.
    """
    if num_api_spec_tokens is not None:
        raise Unsupported("num_api_spec_tokens is not built", param="num_api_spec_tokens")
    if body is None:
        return Program
    return Program(body)
