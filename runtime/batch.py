"""What one step runs: the plan that the scheduler makes on the host, and the step's result."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from rtlang.runtime.messages import TokenLogprobs

if TYPE_CHECKING:
    from rtlang.runtime.mem.rows import ReqToTokenPool
    from rtlang.runtime.req import Req

#: ``logprob_from`` of a request that wants no prompt log-probabilities.
NEVER = 2**31

Int32s = npt.NDArray[np.int32]


class ForwardMode(enum.Enum):
    EXTEND = "extend"  # every row computes new prompt tokens after a (maybe empty) prefix
    DECODE = "decode"  # every row computes exactly one token
    MIXED = "mixed"  # decode rows first, then extend rows
    IDLE = "idle"  # nothing to run


@dataclasses.dataclass(slots=True)
class Batch:
    """One step's plan. Row i of the batch is pool row ``rows[i]``; decode rows come first.

    Tokens ``[seq_lens[i] - extend_lens[i], seq_lens[i])`` of that pool row are computed by this
    step; their ids and KV slots are in the row tables already. Valid until its commit.
    """

    mode: ForwardMode
    reqs: list[Req]
    rows: Int32s  # [num_rows]
    seq_lens: Int32s  # [num_rows], tokens after this step
    extend_lens: Int32s  # [num_rows], tokens computed by this step, >= 1
    num_decode: int  # the first so many rows are decode rows
    sample_rows: Int32s  # [num_samples], batch indices of rows that get a next token, ascending
    pool: ReqToTokenPool  # the host's row tables; read only for the executor
    masked: list[int] = dataclasses.field(default_factory=list)  # samples under a constraint

    @property
    def num_tokens(self) -> int:
        return int(self.extend_lens.sum())

    def store_ids(self, result: BatchResult) -> None:
        """Sampled ids into the host's table. Rows that could not be sampled keep what is there:
        it may have been forced meanwhile."""
        samples, ids = self.sample_rows, result.next_ids
        if result.errors:
            good = ~np.isin(samples, list(result.errors))
            samples, ids = samples[good], ids[good]
        self.pool.token_ids[self.rows[samples], self.seq_lens[samples]] = ids

    def logprob_rows(self) -> list[int]:
        """Rows whose requests want log-probabilities of their prompts."""
        return [
            i for i in range(self.num_decode, len(self.reqs)) if self.reqs[i].logprob_from != NEVER
        ]

    def prompt_positions(self, i: int, block: int) -> Iterator[tuple[range, slice]]:
        """What ``BatchResult.prompt_logprobs`` holds for row ``i``, in blocks of positions; with
        each the step's tokens (of all that the batch computes) whose logits tell of them."""
        req = self.reqs[i]
        assert req.logprobs is not None
        start = int(self.seq_lens[i] - self.extend_lens[i])
        wants_next = req.params.max_new_tokens == 0 and bool(req.logprobs.token_ids)
        first = max(start + 1, req.logprob_from)
        last = min(int(self.seq_lens[i]) + 1, req.prompt_len + wants_next)
        shift = int(self.extend_lens[:i].sum()) - 1 - start
        for at in range(first, last, block):
            end = min(at + block, last)
            yield range(at, end), slice(shift + at, shift + end)


@dataclasses.dataclass(slots=True)
class BatchResult:
    """What the executor gives back for a batch.

    next_ids         [num_samples] int32, in the order of ``sample_rows``
    logprobs         per sampled row what it asked for, or None
    prompt_logprobs  batch index -> log-probabilities of the prompt positions that this step made
                     known: computed position p makes position p + 1 known. Reported are those with
                     ``req.logprob_from <= p + 1 < req.prompt_len``, in order; and, for a request
                     with ``max_new_tokens == 0`` that asked for ``token_ids``, p + 1 == prompt_len
                     as an entry with token_id -1 and logprob None
    errors           batch index -> (code, message): that row is lost, its neighbours are not
    """

    next_ids: Int32s
    logprobs: list[TokenLogprobs | None] | None = None
    prompt_logprobs: dict[int, list[TokenLogprobs]] = dataclasses.field(default_factory=dict)
    errors: dict[int, tuple[str, str]] = dataclasses.field(default_factory=dict)
