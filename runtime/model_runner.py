"""ModelRunner: the executor that really computes. Owns weights, KV tensors and the sampler."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch

from rtlang.errors import ConfigError
from rtlang.kernels.attention.torch_native import TorchAttention
from rtlang.runtime.batch import Batch, BatchResult
from rtlang.runtime.config import EngineConfig
from rtlang.runtime.executor import ModelInfo
from rtlang.runtime.forward_batch import make_forward_batch
from rtlang.runtime.layers.decoder import Decoder
from rtlang.runtime.layers.weights import DummyReader, WeightReader
from rtlang.runtime.mem.kv_pool import TokenToKVPool, kv_bytes_per_token
from rtlang.runtime.mem.rows import ReqToTokenPool
from rtlang.runtime.messages import TokenLogprobs
from rtlang.runtime.models.registry import decoder_spec
from rtlang.runtime.models.source import ModelFiles
from rtlang.runtime.models.weights import iterate_weights
from rtlang.runtime.req import NEVER
from rtlang.runtime.sampling.logprobs import position_logprobs
from rtlang.runtime.sampling.sampler import Sampler

_DTYPES = {
    "auto": torch.float32,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
_CHAT_DEFAULTS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
#: Prompt log-probabilities are computed for so many positions at once.
LOGPROB_ROWS = 64


class ModelRunner:
    def __init__(
        self,
        config: EngineConfig,
        files: ModelFiles,
        tokenizer_eos: frozenset[int] = frozenset(),
    ) -> None:
        """Loads the weights. Raises ``ModelLoadError`` or ``ConfigError``."""
        self._spec = decoder_spec(files.hf_config)
        self._dtype = _DTYPES[config.dtype]
        limit = self._spec.max_positions
        if config.context_length is not None and config.context_length > limit:
            raise ConfigError(
                f"context_length={config.context_length} is longer than the model's {limit}"
            )
        dummy = files.load_format == "dummy"
        tensors = [] if dummy else list(iterate_weights(files.path))
        reader = DummyReader(self._dtype) if dummy else WeightReader(tensors, self._dtype)
        with torch.inference_mode():
            self._model = Decoder(self._spec, reader)
        reader.finish(tied=self._spec.tied)
        self._backend = TorchAttention()
        self.info = self._make_info(config, files, tokenizer_eos)
        self._kv: TokenToKVPool | None = None
        self._sampler: Sampler | None = None

    def _make_info(
        self, config: EngineConfig, files: ModelFiles, tokenizer_eos: frozenset[int]
    ) -> ModelInfo:
        spec, generation = self._spec, files.generation_config
        text = files.hf_config.get("text_config") or {}
        context = config.context_length or spec.max_positions
        per_token = kv_bytes_per_token(spec, self._dtype)
        slots = config.max_total_tokens
        if slots is None:
            affordable = int(config.mem_fraction_static * available_memory() / per_token)
            slots = min(affordable, config.max_running_requests * context)
        defaults = {k: generation[k] for k in _CHAT_DEFAULTS if generation.get(k) is not None}
        if not generation.get("do_sample", True):
            defaults = {}
        return ModelInfo(
            vocab_size=spec.vocab_size,
            context_length=context,
            eos_ids=tokenizer_eos
            | _ids(files.hf_config.get("eos_token_id"))
            | _ids(text.get("eos_token_id"))
            | _ids(generation.get("eos_token_id")),
            kv_bytes_per_token=per_token,
            max_total_tokens=slots,
            chat_defaults=defaults,
            model_path=str(files.path),
        )

    def init_pools(self, num_slots: int, pool: ReqToTokenPool) -> None:
        self._kv = TokenToKVPool(self._spec, num_slots, self._dtype)
        self._sampler = Sampler(pool, self._spec.vocab_size)

    @torch.inference_mode()
    def execute(self, batch: Batch) -> BatchResult:
        assert self._kv is not None and self._sampler is not None, "init_pools first"
        forward = make_forward_batch(batch)
        self._backend.plan(forward.attention)
        hidden = self._model.hidden(forward, self._kv, self._backend)
        sampled = torch.from_numpy(forward.last_tokens[batch.sample_rows].astype(np.int64))
        if len(sampled):
            logits = self._model.logits(hidden if len(sampled) == len(hidden) else hidden[sampled])
            result = self._sampler.sample(logits, batch)
        else:
            result = BatchResult(np.zeros(0, np.int32))
        first_tokens = forward.last_tokens + 1 - batch.extend_lens
        for i in range(batch.num_decode, len(batch.reqs)):
            if batch.reqs[i].logprob_from != NEVER:
                entries = self._prompt_logprobs(batch, i, hidden, int(first_tokens[i]))
                result.prompt_logprobs[i] = entries
        return result

    def _prompt_logprobs(
        self, batch: Batch, i: int, hidden: torch.Tensor, first_token: int
    ) -> list[TokenLogprobs]:
        """Of the positions that row ``i`` made known in this step and that its request wants."""
        req = batch.reqs[i]
        assert req.logprobs is not None
        start = int(batch.seq_lens[i] - batch.extend_lens[i])
        wants_next = req.params.max_new_tokens == 0 and bool(req.logprobs.token_ids)
        first = max(start + 1, req.logprob_from)
        last = min(int(batch.seq_lens[i]) + 1, req.prompt_len + wants_next)
        entries: list[TokenLogprobs] = []
        for at in range(first, last, LOGPROB_ROWS):
            end = min(at + LOGPROB_ROWS, last)
            rows = slice(first_token + at - 1 - start, first_token + end - 1 - start)
            tokens = [req.ids[p] if p < req.prompt_len else -1 for p in range(at, end)]
            logits = self._model.logits(hidden[rows])
            entries += position_logprobs(logits, tokens, req.logprobs)
        return entries

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


def _ids(value: int | Iterable[int] | None) -> frozenset[int]:
    if value is None:
        return frozenset()
    return frozenset((value,) if isinstance(value, int) else value)
