"""ModelRunner: the CPU's executor. Owns weights, KV tensors and the sampler."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rtlang.kernels.attention.torch_native import TorchAttention
from rtlang.kernels.ops import TorchOps
from rtlang.runtime.batch import Batch, BatchResult
from rtlang.runtime.config import EngineConfig
from rtlang.runtime.executor import DoneStep, Launch, MaskedStep, Step
from rtlang.runtime.forward_batch import make_forward_batch
from rtlang.runtime.layers.decoder import Pass
from rtlang.runtime.loading import load_model, make_info
from rtlang.runtime.mem.kv_pool import TokenToKVPool
from rtlang.runtime.mem.rows import ReqToTokenPool
from rtlang.runtime.messages import TokenLogprobs
from rtlang.runtime.models.source import ModelFiles
from rtlang.runtime.sampling.logprobs import LOGPROB_ROWS, position_logprobs
from rtlang.runtime.sampling.sampler import Sampler


class ModelRunner:
    def __init__(
        self,
        config: EngineConfig,
        files: ModelFiles,
        tokenizer_eos: frozenset[int] = frozenset(),
    ) -> None:
        """Loads the weights. Raises ``ModelLoadError`` or ``ConfigError``."""
        config = config.resolve("cpu")
        loaded = load_model(config, files, torch.device("cpu"), TorchOps())
        self._spec, self._dtype, self._model = loaded.spec, loaded.dtype, loaded.model
        self._backend = TorchAttention()
        slots = config.max_total_tokens
        if slots is None:
            assert config.mem_fraction_static is not None and config.max_running_requests
            budget = config.mem_fraction_static * available_memory()
            context = config.context_length or self._spec.max_positions
            affordable = int(budget / loaded.kv_bytes_per_token)
            slots = min(affordable, config.max_running_requests * context)
        self.info = make_info(loaded, config, files, tokenizer_eos, slots)
        self._kv: TokenToKVPool | None = None
        self._sampler: Sampler | None = None

    def init_pools(self, num_slots: int, pool: ReqToTokenPool) -> None:
        self._kv = TokenToKVPool(self._spec, num_slots, self._dtype)
        self._sampler = Sampler(pool, self._spec.vocab_size)
        self.bitmask = np.zeros((pool.num_rows, -(-self._spec.vocab_size // 32)), np.int32)

    overlaps = False

    def prepare(self, batch: Batch) -> Launch:
        return functools.partial(self._launch, batch)

    @torch.inference_mode()
    def _launch(self, batch: Batch) -> Step:
        assert self._kv is not None and self._sampler is not None, "init_pools first"
        forward = make_forward_batch(batch)
        self._backend.plan(forward.attention)
        step = Pass(forward.out_slots, self._kv, self._backend)
        hidden = self._model.hidden(forward.input_ids, forward.positions, step)
        sampled = torch.from_numpy(forward.last_tokens[batch.sample_rows].astype(np.int64))
        logits = None
        if len(sampled):
            logits = self._model.logits(hidden if len(sampled) == len(hidden) else hidden[sampled])
        sample = functools.partial(self._sample, batch, hidden, logits)
        return MaskedStep(sample) if batch.masked else sample()

    @torch.inference_mode()
    def _sample(self, batch: Batch, hidden: torch.Tensor, logits: torch.Tensor | None) -> DoneStep:
        assert self._sampler is not None
        result = BatchResult(np.zeros(0, np.int32))
        if logits is not None:
            result = self._sampler.sample(logits, batch, self.bitmask)
        for i in batch.logprob_rows():
            result.prompt_logprobs[i] = self._prompt_logprobs(batch, i, hidden)
        batch.store_ids(result)
        return DoneStep(result)

    def _prompt_logprobs(self, batch: Batch, i: int, hidden: torch.Tensor) -> list[TokenLogprobs]:
        """Of the positions that row ``i`` made known in this step and that its request wants."""
        req = batch.reqs[i]
        assert req.logprobs is not None
        entries: list[TokenLogprobs] = []
        for positions, rows in batch.prompt_positions(i, LOGPROB_ROWS):
            tokens = [req.ids[p] if p < req.prompt_len else -1 for p in positions]
            entries += position_logprobs(self._model.logits(hidden[rows]), tokens, req.logprobs)
        return entries

    def stats(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        self._kv = None


def available_memory() -> int:
    """Bytes that a process may still take."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass  # not Linux: the fallback below is less exact, not wrong
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
