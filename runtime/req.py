"""A request's life: its state, its two cursors, and why it ended."""

from __future__ import annotations

import dataclasses
import enum
from array import array

from rtlang.grammar.matcher import Matcher
from rtlang.runtime.batch import NEVER
from rtlang.runtime.mem.radix_cache import TreeNode
from rtlang.runtime.messages import FinishReason, LogprobOptions, TokenLogprobs, Usage
from rtlang.runtime.sampling_params import SamplingParams
from rtlang.runtime.stage_clock import StageClock
from rtlang.runtime.stops import StopChecker


class ReqState(enum.Enum):
    """Each request is in exactly one; ``scheduler.counts()`` reports how many are in each."""

    COMPILING = "compiling"  # its constraint is being compiled; in no queue, holds nothing
    WAITING = "waiting"  # in the queue; holds nothing
    PREFILL = "prefill"  # has a row, its prompt is being computed
    RUNNING = "running"  # has a row, decodes
    RETRACTED = "retracted"  # in the queue again after losing its KV to others; holds nothing
    FINISHED = "finished"  # released


@dataclasses.dataclass(eq=False, slots=True)
class Req:
    """One sequence being served: two cursors into ``ids``, everything else is derived.

    [0, tree_len)             KV in slots that the radix tree owns, locked through ``node``
    [tree_len, computed_len)  KV in slots that this request owns
    [computed_len, len(ids))  to be computed by a later step
    """

    rid: str
    client: bytes  # ZMQ identity of who asked
    ids: array[int]  # prompt and generated
    prompt_len: int
    params: SamplingParams
    seed: int
    limit_len: int  # len(ids) never exceeds it: context, pool and max_new_tokens
    logprobs: LogprobOptions | None = None
    namespace: str = ""
    priority: int = 0
    deadline: float | None = None  # of the scheduler's clock
    fork_id: str = ""
    announce: int = 0
    stop_ids: frozenset[int] = frozenset()  # EOS (unless ignored) and stop_token_ids
    stops: StopChecker | None = None
    matcher: Matcher | None = None  # of its constraint; has accepted exactly the output tokens
    jumps: bool = False  # text that the constraint forces is appended, not sampled
    num_slow_fills: int = 0  # masks in a row that took too long

    state: ReqState = ReqState.WAITING
    row: int = -1
    node: TreeNode | None = None
    tree_len: int = 0
    computed_len: int = 0
    knows_sample: bool = False  # what the step in flight samples for it is among its ids already
    num_inflight: int = 0  # planned steps that have it and were not read yet: 0, 1 or 2
    interval: int = 1  # tokens that an output holds at least, but for the last
    hold_s: float = 0.0  # > 0: an output comes at the latest so long after the one before
    sent_at: float = 0.0  # when the last one went, on the scheduler's clock
    held_ids: list[int] = dataclasses.field(default_factory=list)  # not sent yet
    held_logprobs: list[TokenLogprobs] = dataclasses.field(default_factory=list)
    usage: Usage = dataclasses.field(default_factory=Usage)
    clock: StageClock = dataclasses.field(default_factory=StageClock)
    finish: FinishReason | None = None
    high_water: int = 0  # longest computed_len ever: what is computed below it is a recomputation
    arrival: int = 0  # order of arrival
    arrival_step: int = 0  # scheduler step at arrival, for ageing
    hit_len: int = 0  # last known prefix hit while waiting
    hit_version: int = -1  # cache version of hit_len
    logprob_from: int = NEVER  # first prompt position whose log-probability is still to be reported
    pending_prompt_logprobs: list[TokenLogprobs] = dataclasses.field(default_factory=list)

    @property
    def output_len(self) -> int:
        return len(self.ids) - self.prompt_len

    @property
    def extend_len(self) -> int:
        return len(self.ids) - self.computed_len

    def arrive(self, number: int, step: int, now: float) -> None:
        """At the scheduler, as its ``number``-th request, before step ``step``."""
        self.arrival, self.arrival_step = number, step
        self.usage.prompt_tokens = self.prompt_len
        self.clock.arrive(now, compiling=self.state is ReqState.COMPILING)

    def start(self, now: float) -> None:
        """It has its row and its hit, which is counted as far as it never was."""
        hit = min(self.computed_len, self.prompt_len)
        self.usage.cached_tokens += max(0, hit - self.high_water)
        self.high_water = max(self.high_water, self.computed_len)
        self.state = ReqState.PREFILL
        self.clock.prefill(now)

    def retract(self, now: float) -> None:
        """Its memory was taken away; it is queued again."""
        self.state = ReqState.RETRACTED
        self.usage.num_retractions += 1
        self.clock.queue(now)

    def finish_after(self, token: int) -> FinishReason | None:
        """Why the request ends with ``token``, its last one, if it does. Precedence: EOS or stop
        token, stop string, length. Raises ``EngineError``: a stop regex takes too long."""
        if token in self.stop_ids:
            own = token in self.params.stop_token_ids
            return FinishReason("stop", token, "token" if own else "eos")
        if self.stops is not None:
            matched = self.stops.match_token(token, self.output_len)
            if matched is not None:
                return matched
        if len(self.ids) >= self.limit_len:
            own = self.output_len == self.params.max_new_tokens
            return FinishReason("length", None, "max_new_tokens" if own else "context")
        return None

    def want_prompt_logprobs(self, start_len: int) -> None:
        """Report prompt log-probabilities from ``start_len`` on; the first token has none."""
        self.logprob_from = max(start_len, 1)
        if start_len == 0:
            self.pending_prompt_logprobs.append(TokenLogprobs(self.ids[0], None))

    def check(self) -> None:
        known = len(self.ids) + min(self.num_inflight, 1)
        assert 0 <= self.tree_len <= self.computed_len <= known, self
