"""A sampler with its row tables, and batches on them, without a scheduler."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from rtlang.runtime.batch import Batch, BatchResult, ForwardMode
from rtlang.runtime.mem.rows import ReqToTokenPool
from rtlang.runtime.messages import LogprobOptions
from rtlang.runtime.req import Req
from rtlang.runtime.sampling.sampler import Sampler
from rtlang.runtime.sampling_params import SamplingParams


class Rows:
    def __init__(self, vocab_size: int, *, num_rows: int = 12, width: int = 256) -> None:
        self.pool = ReqToTokenPool(num_rows, width)
        self.sampler = Sampler(self.pool, vocab_size)

    def add(
        self,
        prompt: Sequence[int] = (0,),
        output: Sequence[int] = (),
        *,
        seed: int = 0,
        stop_ids: Iterable[int] = (),
        logprobs: LogprobOptions | None = None,
        **params: Any,
    ) -> Req:
        """A request in a row of its own, after ``output`` was generated."""
        req = Req(
            rid="",
            client=b"",
            ids=array("i", [*prompt, *output]),
            prompt_len=len(prompt),
            params=SamplingParams(**params).resolve(),
            seed=seed,
            limit_len=self.pool.width,
            logprobs=logprobs,
            stop_ids=frozenset(stop_ids),
        )
        self.place(req)
        return req

    def place(self, req: Req) -> None:
        """Into a free row, as after admission or after a retraction."""
        req.row = self.pool.alloc()
        self.pool.token_ids[req.row, : len(req.ids)] = req.ids
        self.pool.lens[req.row] = len(req.ids)
        self.pool.prompt_lens[req.row] = req.prompt_len

    def remove(self, req: Req) -> None:
        self.pool.free(req.row)

    def append(self, req: Req, token: int) -> None:
        req.ids.append(token)
        self.pool.token_ids[req.row, len(req.ids) - 1] = token
        self.pool.lens[req.row] = len(req.ids)

    def sample(
        self, logits: torch.Tensor, reqs: list[Req], mask_bits: torch.Tensor | None = None
    ) -> BatchResult:
        """Row j of ``logits`` belongs to ``reqs[j]``."""
        rows = np.array([req.row for req in reqs], np.int32)
        count = len(reqs)
        batch = Batch(
            mode=ForwardMode.DECODE,
            reqs=reqs,
            rows=rows,
            seq_lens=self.pool.lens[rows],
            extend_lens=np.ones(count, np.int32),
            num_decode=count,
            sample_rows=np.arange(count, dtype=np.int32),
            pool=self.pool,
        )
        if mask_bits is None:
            return self.sampler.sample(logits, batch)
        batch.masked = list(range(count))
        return self.sampler.sample(logits, batch, mask_bits.numpy())

    def one(self, logits: torch.Tensor, req: Req, mask_bits: torch.Tensor | None = None) -> int:
        """The next token of one request alone; logits [vocab_size]."""
        result = self.sample(logits[None], [req], mask_bits)
        assert not result.errors, result.errors
        return int(result.next_ids[0])


def pack_mask(allowed: torch.Tensor) -> torch.Tensor:
    """[n, vocab_size] bool to [n, ceil(vocab_size / 32)] int32, bit by bit."""
    words = np.zeros((len(allowed), -(-allowed.shape[1] // 32)), np.uint32)
    for j, token in allowed.nonzero().tolist():
        words[j, token // 32] |= np.uint32(1 << (token % 32))
    return torch.from_numpy(words.view(np.int32))


@pytest.fixture
def make_rows() -> Callable[..., Rows]:
    """``make_rows(vocab_size)``: see ``Rows``."""
    return Rows


@pytest.fixture
def pack() -> Callable[[torch.Tensor], torch.Tensor]:
    return pack_mask
