"""What clients and the scheduler say to each other, over ZMQ, as msgpack.

Clients push (client id, message) to the scheduler's one socket; it pushes answers to the socket
that each client named in its ``Hello``. Ids are packed int32, little-endian: a list of 2,000
ints would cost 20 us.
"""

from __future__ import annotations

from array import array
from typing import Any

import msgspec

from rtlang.runtime.sampling_params import SamplingParams


class LogprobOptions(msgspec.Struct, frozen=True, array_like=True):
    """Which log-probabilities a request wants, all of the raw logits (before any processing).

    start_len   first prompt position reported; -1: output tokens only. A prefix hit is cut to
                ``start_len - 1`` tokens, since position p is predicted by position p - 1
    top_num     alternatives per position, most likely first
    token_ids   report these ids at every reported position, and (when nothing is generated)
                after the last prompt token too
    """

    start_len: int = -1
    top_num: int = 0
    token_ids: tuple[int, ...] = ()


class Generate(msgspec.Struct, tag=True, array_like=True, kw_only=True):
    """Start one sequence. ``rid`` is unique among what its client has running."""

    rid: str
    input_ids: bytes  # int32
    params: SamplingParams  # resolved; n == 1 (the client expands siblings)
    logprobs: LogprobOptions | None = None
    namespace: str = ""  # what else the KV depends on: adapter, salt, media; tagged by the client
    priority: int = 0  # larger first
    timeout_s: float | None = None  # from arrival at the scheduler
    fork_id: str = ""  # a branch of this announced fork
    announce: int = 0  # > 0: this IS the announcement of fork_id, with so many branches
    interval: int = 1  # an output holds at least so many tokens, but for the last,
    hold_ms: int = 0  # or (> 0) comes at the latest so long after the one before


class Abort(msgspec.Struct, tag=True, array_like=True):
    rid: str


class CloseBranches(msgspec.Struct, tag=True, array_like=True):
    """So many branches of the fork will never send a request; at zero its prefix is released."""

    fork_id: str
    count: int


class Hello(msgspec.Struct, tag=True, array_like=True):
    """A new client, and where it listens; answered by a ``Reply`` with the engine's limits."""

    call_id: str
    endpoint: str


class Control(msgspec.Struct, tag=True, array_like=True):
    """``op``: "flush", "stats", "tree" (args: max_nodes, max_ids), "check" (memory law),
    "profile" (args: path, num_steps), "finish_profile", "leave" (drop all I have), "shutdown";
    answered by one ``Reply``."""

    call_id: str
    op: str
    args: dict[str, Any] = {}


class TokenLogprobs(msgspec.Struct, array_like=True):
    """Log-probabilities of one position: the token itself, ``top_num`` best, the asked ids.

    ``token_id`` -1 and ``logprob`` None: no token at this position (it is the next one).
    A logprob of None also marks the very first token of a prompt.
    """

    token_id: int
    logprob: float | None
    top: list[tuple[int, float]] = []
    ids: list[float] = []


class FinishReason(msgspec.Struct, frozen=True, array_like=True):
    """Why a request ended. ``type``: "stop" | "length" | "abort" (only beside an error).

    matched  for a stop: the EOS or stop token id, or the stop string or regex, that ended it
    detail   "eos", "token", "string", "regex"; "max_new_tokens", "context"
    """

    type: str
    matched: int | str | None = None
    detail: str = ""


class Usage(msgspec.Struct, array_like=True, kw_only=True):
    """Token counts of one request. ``cached_tokens + computed_tokens == prompt_tokens``.

    What a retraction made the engine compute again is ``recomputed_tokens``, in neither.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    computed_tokens: int = 0
    completion_tokens: int = 0
    forced_tokens: int = 0
    recomputed_tokens: int = 0
    num_retractions: int = 0

    def __add__(self, other: Usage) -> Usage:
        names = self.__struct_fields__
        return Usage(**{n: getattr(self, n) + getattr(other, n) for n in names})


class Timings(msgspec.Struct, array_like=True, kw_only=True):
    """Seconds of one request by the scheduler's clock, from its arrival there to its end. The
    four stages add up to the whole; a retracted request goes through some of them again.

    compiling      its constraint is being compiled
    queued         in the queue, for the first time or after a retraction
    prefill        out of the queue, its next token is not known yet
    decode         between tokens
    first_token    from the arrival until its first token was known; None: there was none
    """

    compiling_s: float = 0.0
    queued_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    first_token_s: float | None = None

    @property
    def total_s(self) -> float:
        return self.compiling_s + self.queued_s + self.prefill_s + self.decode_s


class Output(msgspec.Struct, array_like=True, kw_only=True):
    """What one step gave one request. The first one of a request carries its prompt logprobs."""

    rid: str
    ids: list[int]
    finish: FinishReason | None = None
    usage: Usage | None = None  # with ``finish``
    logprobs: list[TokenLogprobs] | None = None  # one per id
    prompt_logprobs: list[TokenLogprobs] | None = None
    timings: Timings | None = None  # with ``finish``


class Failed(msgspec.Struct, tag=True, array_like=True):
    """The request ended with an error; nothing more comes for it."""

    rid: str
    code: str
    message: str
    data: dict[str, Any] = {}
    usage: Usage | None = None
    timings: Timings | None = None


class Outputs(msgspec.Struct, tag=True, array_like=True):
    outputs: list[Output]


class Reply(msgspec.Struct, tag=True, array_like=True):
    call_id: str
    value: Any = None
    error: tuple[str, str] | None = None  # (code, message)


class Died(msgspec.Struct, tag=True, array_like=True):
    """The scheduler's last word: every request it had is lost."""

    message: str


Request = Generate | Abort | CloseBranches | Control | Hello
Response = Outputs | Failed | Reply | Died

encode = msgspec.msgpack.Encoder().encode
decode_request = msgspec.msgpack.Decoder(Request).decode
decode_response = msgspec.msgpack.Decoder(Response).decode


def unpack_ids(data: bytes) -> array[int]:
    ids = array("i")
    ids.frombytes(data)
    return ids
