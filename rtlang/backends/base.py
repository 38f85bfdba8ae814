"""The seam between the language and whatever serves its calls."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Protocol

from rtlang.runtime.chunk import Chunk
from rtlang.runtime.messages import LogprobOptions
from rtlang.runtime.sampling_params import SamplingParams
from rtlang.runtime.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a backend can do; a program that needs more is refused before its first request."""

    token_ids: bool = True  # takes and returns ids; else ``Call.messages``, and text
    score: bool = True  # log-probabilities of given continuations
    fork: bool = True  # announced prefixes
    prefill: bool = True  # an answer may begin with given text
    logprobs: bool = True  # log-probabilities of what was generated
    sampling: frozenset[str] = frozenset(SamplingParams.__struct_fields__)
    #: Raises ``Unsupported`` for values that it cannot honour, of parameters that it can.
    check: Callable[[SamplingParams], None] | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One generation: ids in, ids out. ``params.n`` is 1 (the language asks n times).

    ``messages`` are there instead of ids for a backend that takes none: turns of ``role`` and
    ``content``. A last one of the assistant is what the answer begins with.
    """

    params: SamplingParams  # resolved or not: the backend resolves
    input_ids: Sequence[int] = ()
    messages: Sequence[Mapping[str, str]] = ()
    logprobs: LogprobOptions | None = None
    fork_id: str = ""
    namespace: str = ""
    priority: int = 0
    timeout_s: float | None = None
    choice: int = 0  # index among n siblings: the seed of choice i is derived from (seed, i)
    stream: bool = False  # somebody follows the text: a chunk for every token
    chat: bool = False  # the prompt is a chat: the model's chat defaults apply


class Stream(Protocol):
    """A running request. Iterating raises its error; every exit path ends the request."""

    @property
    def rid(self) -> str: ...

    def __aiter__(self) -> AsyncIterator[Chunk]: ...

    def abort(self) -> None:
        """Idempotent, from any thread. The iteration then raises ``RequestAborted``."""
        ...


class Backend(Protocol):
    """Non-blocking: every method may be called from an event loop."""

    @property
    def capabilities(self) -> Capabilities: ...

    @property
    def tokenizer(self) -> Tokenizer: ...

    def start(self, call: Call) -> Stream:
        """Send a request. Raises ``RequestError`` for what can be refused at once."""
        ...

    def announce(
        self,
        input_ids: Sequence[int],
        branches: int,
        *,
        namespace: str = "",
        priority: int = 0,
    ) -> tuple[str, Stream]:
        """Compute a prefix once and keep it until ``branches`` requests that carry the returned
        fork id were admitted or closed. The stream ends when the prefix is computed."""
        ...

    def close_branches(self, fork_id: str, count: int) -> None: ...

    def flush_cache(self) -> None: ...
