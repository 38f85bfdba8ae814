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
│   ├── BodyTooLarge            a request's body is beyond the server's limit (``limit``, bytes)
│   ├── NotAuthenticated        no API key, or one that the server does not know
│   ├── NotAllowed              the key is not an operator's
│   ├── NotFound                the server has no such thing
│   │   └── ModelNotFound           it serves no model of that name
│   ├── RateLimited             the key's limit is used up (``retry_after``, seconds)
│   ├── GrammarError            a constraint is wrong (``GrammarSpec``, or compiling it)
│   │   ├── InvalidJson             a schema's text is not JSON
│   │   ├── InvalidSchema           no JSON schema (``pointer``, ``keyword``)
│   │   ├── UnsupportedKeyword      a part of a schema that cannot be enforced (``pointer``,
│   │   │                           ``keyword``, ``reason``)
│   │   ├── InvalidRegex            (``pos``: the index of the character)
│   │   ├── InvalidEbnf             (``line``, ``column``, from 1)
│   │   ├── GrammarTooLarge         beyond a limit (``limit`` names it)
│   │   ├── GrammarUnsatisfiable    no text at all matches it
│   │   ├── GrammarTimeout          compiling it took too long
│   │   └── ConflictingConstraints  two of them, or one beside an option that breaks it
│   └── Unsupported             a backend cannot do what was asked (``param`` names it)
├── EngineError                 a request, or the engine, failed while running
│   ├── NumericalError          NaN or +inf in this request's logits
│   ├── GrammarBusy             no constraint can be compiled at the moment
│   ├── GrammarDeadEnd          its constraint lets no token follow
│   ├── GrammarDesync           a sampled token and its constraint disagree: a bug of ours
│   ├── GrammarTooSlow          its constraint takes too long for each token
│   ├── RequestAborted          somebody aborted it
│   ├── DeadlineExceeded        its timeout passed (``text`` holds what was generated)
│   ├── EngineBusy              the operation needs an idle engine
│   ├── QueueFull               as many requests wait as may wait
│   ├── ServerUnavailable       the server loads its model, or is about to end
│   ├── ServerUnreachable       no answer came from the server (``sent``: the request may have)
│   ├── EngineClosed            the engine was closed by its owner
│   ├── SchedulerStalled        the scheduler lives, and does not answer
│   └── SchedulerDied           the scheduler's thread or process is gone
└── ProgramError                an rtlang program is wrong, raised at the line that is
    ├── TruncatedOutput         a typed value was cut by a limit (``text`` holds what there is)
    ├── ToolError               a tool raised (chained), or the model called an unknown one
    ├── ToolLoopLimit           the model called tools more often than it may (``limit``)
    ├── UnknownVariable         reading a name that no call will ever set (a KeyError too)
    └── ForkErrors              what failed in the branches of a fork (an ExceptionGroup)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

__all__ = [
    "BodyTooLarge",
    "ChatTemplateError",
    "ConfigError",
    "ConflictingConstraints",
    "DeadlineExceeded",
    "DuplicateRequestId",
    "EngineBusy",
    "EngineClosed",
    "EngineError",
    "ForkErrors",
    "GrammarBusy",
    "GrammarDeadEnd",
    "GrammarDesync",
    "GrammarError",
    "GrammarTimeout",
    "GrammarTooLarge",
    "GrammarTooSlow",
    "GrammarUnsatisfiable",
    "InvalidEbnf",
    "InvalidJson",
    "InvalidParameter",
    "InvalidPrompt",
    "InvalidRegex",
    "InvalidSchema",
    "ModelLoadError",
    "ModelNotFound",
    "NotAllowed",
    "NotAuthenticated",
    "NotFound",
    "NumericalError",
    "ProgramError",
    "PromptTooLong",
    "QueueFull",
    "RateLimited",
    "RequestAborted",
    "RequestError",
    "RtlangError",
    "SchedulerDied",
    "SchedulerStalled",
    "ServerUnavailable",
    "ServerUnreachable",
    "ToolError",
    "ToolLoopLimit",
    "TruncatedOutput",
    "UnknownVariable",
    "Unsupported",
    "UnsupportedKeyword",
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


class BodyTooLarge(RequestError):
    code = "body_too_large"


class NotAuthenticated(RequestError):
    code = "invalid_api_key"


class NotAllowed(RequestError):
    code = "permission_denied"


class NotFound(RequestError):
    code = "not_found"


class ModelNotFound(NotFound):
    code = "model_not_found"


class RateLimited(RequestError):
    code = "rate_limit_exceeded"


class Unsupported(RequestError):
    code = "unsupported"


class GrammarError(RequestError):
    code = "grammar_error"


class InvalidJson(GrammarError):
    code = "invalid_json"


class InvalidSchema(GrammarError):
    code = "invalid_schema"


class UnsupportedKeyword(GrammarError):
    code = "unsupported_keyword"


class InvalidRegex(GrammarError):
    code = "invalid_regex"


class InvalidEbnf(GrammarError):
    code = "invalid_ebnf"


class GrammarTooLarge(GrammarError):
    code = "grammar_too_large"


class GrammarUnsatisfiable(GrammarError):
    code = "grammar_unsatisfiable"


class GrammarTimeout(GrammarError):
    code = "grammar_timeout"


class ConflictingConstraints(GrammarError):
    code = "conflicting_constraints"


class EngineError(RtlangError, RuntimeError):
    code = "engine_error"


class NumericalError(EngineError):
    code = "numerical_error"


class GrammarBusy(EngineError):
    code = "grammar_busy"


class GrammarDeadEnd(EngineError):
    code = "grammar_dead_end"


class GrammarDesync(EngineError):
    code = "grammar_desync"


class GrammarTooSlow(EngineError):
    code = "grammar_too_slow"


class RequestAborted(EngineError):
    code = "aborted"


class DeadlineExceeded(EngineError, TimeoutError):
    code = "deadline_exceeded"


class EngineBusy(EngineError):
    code = "engine_busy"


class QueueFull(EngineError):
    code = "queue_full"


class ServerUnavailable(EngineError):
    code = "server_unavailable"


class ServerUnreachable(EngineError):
    code = "server_unreachable"


class EngineClosed(EngineError):
    code = "engine_closed"


class SchedulerStalled(EngineError):
    code = "scheduler_stalled"


class SchedulerDied(EngineError):
    code = "scheduler_died"


class ProgramError(RtlangError):
    code = "program_error"


class TruncatedOutput(ProgramError):
    code = "truncated_output"


class ToolError(ProgramError):
    code = "tool_error"


class ToolLoopLimit(ProgramError):
    code = "tool_loop_limit"


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
