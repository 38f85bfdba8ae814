"""The seam between deciding and computing: what the scheduler's loop needs of a model.

``ModelRunner`` is the real one; ``rtlang.testing.ScriptedModel`` has one that computes nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol

from rtlang.grammar.vocab import Bitmask
from rtlang.runtime.batch import Batch, BatchResult
from rtlang.runtime.config import EngineConfig
from rtlang.runtime.mem.rows import ReqToTokenPool
from rtlang.runtime.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True, slots=True)
class ModelInfo:
    """What the scheduler and the clients must know of a model."""

    vocab_size: int  # width of the logits; every prompt id is below it
    context_length: int  # tokens
    eos_ids: frozenset[int]  # union of config, generation config and tokenizer
    kv_bytes_per_token: int
    max_total_tokens: int  # slots that the KV pool may have on this machine
    chat_defaults: dict[str, float]  # sampling defaults of generation_config.json
    model_path: str  # the folder that it runs from ("" for stand-ins without one)


class Step(Protocol):
    """A step that was launched."""

    def sample(self) -> None:
        """Sample; only for a batch with ``masked`` samples, once ``Executor.bitmask`` says for
        each of them what may follow. Called before ``read``, and before any later step is
        launched."""
        ...

    def read(self) -> BatchResult:
        """Its result; waits for it. Called once, before the result of any later step."""
        ...


#: Launches a prepared step.
Launch = Callable[[], Step]


@dataclasses.dataclass(frozen=True, slots=True)
class DoneStep:
    """A step of an executor that computes at once."""

    result: BatchResult

    def sample(self) -> None:
        raise AssertionError("nothing waits for a mask")

    def read(self) -> BatchResult:
        return self.result


class MaskedStep:
    """A step that waits for masks."""

    def __init__(self, sample: Callable[[], Step]) -> None:
        self._sample = sample
        self._sampled: Step | None = None

    def sample(self) -> None:
        self._sampled = self._sample()

    def read(self) -> BatchResult:
        assert self._sampled is not None, "sample first"
        return self._sampled.read()


class Executor(Protocol):
    """Owns the device, the weights and the KV tensors. Not thread-safe: one loop calls it."""

    @property
    def info(self) -> ModelInfo: ...

    def init_pools(self, num_slots: int, pool: ReqToTokenPool) -> None:
        """Make KV tensors for slots ``0 .. num_slots - 1`` (the allocator's reserved ones
        included) and map the row tables. Called once, before the first batch."""
        ...

    @property
    def bitmask(self) -> Bitmask:
        """[max rows, ceil(vocab_size / 32)]: row j is for sample j of a batch with masked samples,
        written between its launch and ``sample``; others' rows are not read."""
        ...

    @property
    def overlaps(self) -> bool:
        """Whether launching returns before the step is computed, so that planning the next step
        meanwhile is worth the step more that a request then runs after its unforeseen end."""
        ...

    def prepare(self, batch: Batch) -> Launch:
        """What the host does for a step before it is launched; its result is called once, before
        any later batch is prepared. The step before may wait for its masks meanwhile, and is
        sampled before this one is launched.

        Launched, it forwards the batch, stores its KV, samples (with masked samples: when told
        to). Reads the batch's tables; writes there only the sampled ids, if it reads them from
        there in the next step.

        The batch may hold rows whose last token is that of a step not read yet. A row that cannot
        be sampled is reported in ``errors``; an exception of either loses the batch.
        """
        ...

    def stats(self) -> dict[str, Any]:
        """What ``Engine.stats()`` shows beside the scheduler's counters."""
        ...

    def close(self) -> None: ...


class ModelSource(Protocol):
    """A model that ``Engine(model=...)`` takes as an object instead of a name."""

    @property
    def tokenizer(self) -> Tokenizer | None: ...

    def create_executor(self, config: EngineConfig) -> Executor: ...
