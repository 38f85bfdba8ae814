"""The one exception tree: the leaf that every package of the project may import.

RtlangError
├── ConfigError                 an option of Engine or of the command line is wrong
│   └── ModelLoadError          unknown model, broken checkpoint, no space to convert it
├── RequestError                one request is wrong; it was refused and nothing else changed
│   ├── InvalidParameter        a sampling or request parameter (``param`` names it)
│   ├── InvalidPrompt           empty, not text, ids outside the vocabulary
│   ├── PromptTooLong           longer than the context or the KV pool (``limit``)
│   ├── ChatTemplateError       no template, or the template raised
│   ├── DuplicateRequestId      the id belongs to a request that still runs
│   └── Unsupported             a backend cannot do what was asked (``param`` names it)
├── EngineError                 a request, or the engine, failed while running
│   ├── NumericalError          NaN or +inf in this request's logits
│   ├── RequestAborted          somebody aborted it
│   ├── DeadlineExceeded        its timeout passed (``text`` holds what was generated)
│   ├── EngineBusy              the operation needs an idle engine
│   ├── EngineClosed            the engine was closed by its owner
│   └── SchedulerDied           the scheduler's thread or process is gone
└── ProgramError                an rtlang program is wrong, raised at the line that is
    ├── UnknownVariable         reading a name that no call will ever set (a KeyError too)
    └── ForkErrors              what failed in the branches of a fork (an ExceptionGroup)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

__all__ = [
    "ChatTemplateError",
    "ConfigError",
    "DeadlineExceeded",
    "DuplicateRequestId",
    "EngineBusy",
    "EngineClosed",
    "EngineError",
    "ForkErrors",
    "InvalidParameter",
    "InvalidPrompt",
    "ModelLoadError",
    "NumericalError",
    "ProgramError",
    "PromptTooLong",
    "RequestAborted",
    "RequestError",
    "RtlangError",
    "SchedulerDied",
    "UnknownVariable",
    "Unsupported",
    "from_wire",
]


class RtlangError(Exception):
    """Root of everything that rtlang raises on purpose.

    ``code`` is stable and goes over the wire; ``index`` is the branch or batch position of the
    failed item, where there is one.
    """

    code: ClassVar[str] = "internal_error"
    index: int | None = None

    def __init__(self, message: str = "", **data: Any) -> None:
        super().__init__(message)
        self.message = message
        self.data = data

    def __getattr__(self, name: str) -> Any:
        # The fields named in the tree above (param, limit, text, request_id) live in ``data``.
        data = self.__dict__.get("data", {})
        if name in data:
            return data[name]
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.data)


class ConfigError(RtlangError, ValueError):
    code = "config_error"


class ModelLoadError(ConfigError):
    code = "model_load_error"


class RequestError(RtlangError, ValueError):
    code = "invalid_request"


class InvalidParameter(RequestError):
    code = "invalid_parameter"


class InvalidPrompt(RequestError):
    code = "invalid_prompt"


class PromptTooLong(RequestError):
    code = "context_length_exceeded"


class ChatTemplateError(RequestError):
    code = "chat_template_error"


class DuplicateRequestId(RequestError):
    code = "duplicate_request_id"


class Unsupported(RequestError):
    code = "unsupported"


class EngineError(RtlangError, RuntimeError):
    code = "engine_error"


class NumericalError(EngineError):
    code = "numerical_error"


class RequestAborted(EngineError):
    code = "aborted"


class DeadlineExceeded(EngineError, TimeoutError):
    code = "deadline_exceeded"


class EngineBusy(EngineError):
    code = "engine_busy"


class EngineClosed(EngineError):
    code = "engine_closed"


class SchedulerDied(EngineError):
    code = "scheduler_died"


class ProgramError(RtlangError):
    code = "program_error"


class UnknownVariable(ProgramError, KeyError):
    code = "unknown_variable"

    def __str__(self) -> str:  # KeyError would show the repr of the message
        return self.message


class ForkErrors(ExceptionGroup[Exception]):
    """Failures of several branches; each exception carries its branch in ``index``."""

    def derive(self, excs: Sequence[Exception], /) -> ForkErrors:  # type: ignore[override]
        return ForkErrors(self.message, excs)


def _rebuild(cls: type[RtlangError], message: str, data: dict[str, Any]) -> RtlangError:
    return cls(message, **data)


def _by_code(cls: type[RtlangError]) -> dict[str, type[RtlangError]]:
    found = {cls.code: cls}
    for sub in cls.__subclasses__():
        found |= _by_code(sub)
    return found


def from_wire(code: str, message: str, data: dict[str, Any] | None = None) -> RtlangError:
    """The exception for a ``code`` that a scheduler or a server sent.

    An unknown code (a newer server) becomes an ``EngineError`` that names it.
    """
    cls = _by_code(RtlangError).get(code)
    if cls is None:
        return EngineError(f"{code}: {message}", **(data or {}))
    return cls(message, **(data or {}))
