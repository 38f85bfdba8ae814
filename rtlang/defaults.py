"""Which backend serves a program, and the values that its calls have unless they say otherwise.

Precedence: a call's own value, then ``run()``'s, then ``use()``'s, then the built-in one.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import importlib
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

from rtlang.backends.base import Backend
from rtlang.errors import ConfigError, InvalidParameter, ProgramError, Unsupported
from rtlang.runtime.messages import LogprobOptions
from rtlang.runtime.sampling_params import NOT_BUILT, SamplingParams, is_int64

#: ``run()`` takes these for all calls of the program; ``n`` and a seed belong to one call.
SAMPLING_NAMES = frozenset(SamplingParams.__struct_fields__) - {"n", "sampling_seed"}
LOGPROB_NAMES = frozenset(
    {"return_logprob", "logprob_start_len", "top_logprobs_num", "return_text_in_logprobs"}
)
OTHER_NAMES = frozenset({"seed", "priority", "chat_template_kwargs"})
OPTION_NAMES = SAMPLING_NAMES | LOGPROB_NAMES | OTHER_NAMES


@dataclasses.dataclass(frozen=True, slots=True)
class Defaults:
    """What ``use()`` and ``run()`` have set. ``sampling`` and ``logprobs`` hold only what was.

    ``seed``: the seeds of the program's calls are derived from it and from their place in the
    program, so a result does not depend on what else runs; None: they are drawn.
    """

    sampling: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    logprobs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    chat_template_kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    seed: int | None = None
    priority: int = 0

    def updated(self, options: Mapping[str, Any]) -> Defaults:
        """With ``options`` on top. Raises ``InvalidParameter`` or ``Unsupported``."""
        for name in options:
            if name in NOT_BUILT:
                raise Unsupported(f"{name}: {NOT_BUILT[name]}", param=name)
            if name not in OPTION_NAMES:
                raise InvalidParameter(f"unknown option {name!r}", param=name)
        others = {k: v for k, v in options.items() if k in OTHER_NAMES}
        if "chat_template_kwargs" in others:
            given = others["chat_template_kwargs"] or {}
            others["chat_template_kwargs"] = {**self.chat_template_kwargs, **given}
        new = dataclasses.replace(
            self,
            sampling={**self.sampling, **given_sampling(options)},
            logprobs={**self.logprobs, **_given(options, LOGPROB_NAMES)},
            **others,
        )
        new.sampling_params({})
        new.logprob_options({})
        if new.seed is not None and not is_int64(new.seed):
            raise InvalidParameter(f"seed must be an int64, got {new.seed!r}", param="seed")
        return new

    def sampling_params(self, own: Mapping[str, Any]) -> SamplingParams:
        """The parameters of a call that has given ``own``."""
        return SamplingParams.parse({**self.sampling, **own})

    def logprob_options(self, own: Mapping[str, Any]) -> tuple[LogprobOptions | None, bool]:
        """(what a call asks of the engine, whether token texts are wanted in the meta info)."""
        given = {**self.logprobs, **own}
        wanted = given.pop("return_logprob", False)
        if not wanted:
            if given:
                name = next(iter(given))
                raise InvalidParameter(f"{name} needs return_logprob=True", param=name)
            return None, False
        options = LogprobOptions(
            start_len=given.get("logprob_start_len", -1),
            top_num=given.get("top_logprobs_num", 0),
        )
        return options, bool(given.get("return_text_in_logprobs", False))


def given_sampling(options: Mapping[str, Any]) -> dict[str, Any]:
    """The sampling options that were given, in copies of the caller's lists.

    None means "not given", except for the length, where it means "to the end of the context".
    """
    names = frozenset(SamplingParams.__struct_fields__) - {"n"}
    found = {k: v for k, v in options.items() if k in names}
    found = {k: v for k, v in found.items() if v is not None or k == "max_new_tokens"}
    parsed = SamplingParams.parse(found)
    return {k: getattr(parsed, k) for k in found}


def _given(options: Mapping[str, Any], names: frozenset[str]) -> dict[str, Any]:
    return {k: v for k, v in options.items() if k in names and v is not None}


# -- which backend --------------------------------------------------------------------------

_BACKEND_METHODS = ("capabilities", "tokenizer", "start", "announce", "close_branches")
_default_backend: Backend | None = None
_scope: contextvars.ContextVar[tuple[Backend | None, Defaults]] = contextvars.ContextVar(
    "rtlang_scope", default=(None, Defaults())
)
_adapters: weakref.WeakKeyDictionary[Any, Backend] = weakref.WeakKeyDictionary()


def as_backend(given: Any) -> Backend:
    """A backend as it is; an ``Engine`` through its adapter. Raises ``ConfigError``."""
    if all(hasattr(type(given), name) or hasattr(given, name) for name in _BACKEND_METHODS):
        backend: Backend = given
        return backend
    if type(given).__module__ == "rtlang.runtime.engine":
        if given not in _adapters:
            # Not at the top: an engine needs torch, a program for a remote server does not.
            adapter = importlib.import_module("rtlang.backends.engine")
            _adapters[given] = adapter.EngineBackend(given)
        return _adapters[given]
    raise ConfigError(f"{given!r} is no backend: pass an rtlang.Engine, or a Backend")


def set_default_backend(backend: Any) -> None:
    """Serve programs of this process with ``backend``, unless ``use`` or ``run`` name another.

    None: no default any more.
    """
    global _default_backend
    _default_backend = None if backend is None else as_backend(backend)


@contextlib.contextmanager
def use(backend: Any = None, **options: Any) -> Iterator[None]:
    """Within the block, in this thread or task, serve programs with ``backend`` and give their
    calls these defaults (the names of ``run()``'s options). Blocks nest."""
    outer_backend, outer = _scope.get()
    inner = outer_backend if backend is None else as_backend(backend)
    token = _scope.set((inner, outer.updated(options)))
    try:
        yield
    finally:
        _scope.reset(token)


def current(backend: Any = None) -> tuple[Backend, Defaults]:
    """Who serves a program that starts now, and with which defaults."""
    scoped, defaults = _scope.get()
    if backend is not None:
        return as_backend(backend), defaults
    found = scoped or _default_backend
    if found is None:
        raise ProgramError(
            "no backend: call rtlang.set_default_backend(engine), or pass backend=engine"
        )
    return found, defaults


def flush_cache(backend: Any = None) -> None:
    """Forget every cached prefix of the backend. Raises ``EngineBusy`` while it serves calls."""
    found, _ = current(backend)
    found.flush_cache()
