"""GpuRunner: the executor on a GPU. Prepares and launches steps, and never waits for one."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import triton

from rtlang.errors import ConfigError
from rtlang.grammar.vocab import Bitmask
from rtlang.kernels.attention.base import AttentionBackend, AttentionRows, DeviceRows
from rtlang.kernels.ops import TorchOps
from rtlang.kernels.triton.ops import TritonOps
from rtlang.runtime.batch import Batch, ForwardMode, Int32s
from rtlang.runtime.config import EngineConfig
from rtlang.runtime.executor import Launch, MaskedStep, Step
from rtlang.runtime.gpu.backends import choose_backends
from rtlang.runtime.gpu.graphs import (
    GraphRunner,
    Key,
    bucket_of,
    few_buckets,
    row_buckets,
    token_buckets,
)
from rtlang.runtime.gpu.memory import GRAPH_SHARE, Ledger, out_of_memory_is_explained
from rtlang.runtime.gpu.sampler import VARIANTS, DeviceSampler, SampledStep
from rtlang.runtime.gpu.tables import DeviceTables, Runs, Tokens
from rtlang.runtime.layers.decoder import Pass
from rtlang.runtime.loading import load_model, make_info
from rtlang.runtime.mem.kv_pool import TokenToKVPool
from rtlang.runtime.mem.rows import ReqToTokenPool
from rtlang.runtime.messages import TokenLogprobs
from rtlang.runtime.models.source import ModelFiles
from rtlang.runtime.sampling.logprobs import LOGPROB_ROWS, index_tensor, start_logprobs

Reader = Callable[[], list[TokenLogprobs]]
Finish = Callable[[torch.Tensor], Step]


class GpuRunner:
    """Implements ``Executor``. Runs on the CPU too, slowly, in Triton's interpreter: for tests."""

    def __init__(
        self,
        config: EngineConfig,
        files: ModelFiles,
        tokenizer_eos: frozenset[int] = frozenset(),
    ) -> None:
        """Loads the weights. Raises ``ModelLoadError`` or ``ConfigError``."""
        self._config = config = config.resolve("cuda")
        assert config.max_running_requests is not None and config.chunked_prefill_size is not None
        self._device = torch.device(config.device)
        self._cuda = self._device.type == "cuda"
        self.overlaps = self._cuda
        self._max_rows = min(config.max_running_requests, config.chunked_prefill_size)
        self._max_tokens = config.chunked_prefill_size
        self._ledger = Ledger(self._device if self._cuda else None)
        ops = TorchOps() if config.attention_backend == "torch" else TritonOps()
        with out_of_memory_is_explained("loading the weights", "the model does not fit this GPU"):
            loaded = load_model(config, files, self._device, ops)
        self._loaded, self._spec, self._model = loaded, loaded.spec, loaded.model
        self._ledger.note("weights")
        limits = (self._max_rows, self._max_tokens)
        dtypes = (loaded.dtype, loaded.kv_dtype)
        self._backends = choose_backends(config, loaded.spec, dtypes, self._device, limits)
        graphs = self._cuda and not config.disable_cuda_graph and self._backends.captures_decode
        self.graphs = GraphRunner(self._device, enabled=graphs)
        self._row_buckets = row_buckets(self._max_rows)
        self._full_buckets = few_buckets(self._max_rows)
        captured = 0 if self._backends.captured is None else config.cuda_graph_max_tokens
        self._token_buckets = token_buckets(min(captured, self._max_tokens))
        self._peak = 0  # bytes of the largest step, measured where the pool is sized
        self._read_stream = torch.cuda.Stream(self._device) if self._cuda else None  # type: ignore[no-untyped-call]
        hidden_rows = max(self._max_rows, *(self._token_buckets or [0]))
        self._hidden = torch.zeros(
            (hidden_rows, loaded.spec.hidden_size), dtype=loaded.dtype, device=self._device
        )
        self._ledger.note("workspaces")
        slots = self._num_slots()
        self._ledger.note("measuring")
        self.info = make_info(loaded, config, files, tokenizer_eos, slots)

    @staticmethod
    def interpreted() -> bool:
        """Whether Triton's kernels are interpreted, and so run without a GPU."""
        return bool(triton.knobs.runtime.interpret)

    # -- memory -----------------------------------------------------------------------------

    def _num_slots(self) -> int:
        """Size of the KV pool in tokens. Raises ``ConfigError`` if it does not fit."""
        wanted = self._config.max_total_tokens
        context = self._config.context_length or self._spec.max_positions
        most = self._max_rows * context
        if not self._cuda:
            return wanted or min(most, 1 << 16)
        affordable = self._affordable_tokens(context)
        if wanted is not None and wanted > affordable:
            raise ConfigError(
                f"max_total_tokens={wanted}: beside weights and activations there is room for "
                f"{affordable}; raise mem_fraction_static or lower chunked_prefill_size"
            )
        return wanted or min(affordable, most)

    def _affordable_tokens(self, context: int) -> int:
        """What fits beside the weights, the largest step's activations and the graphs."""
        config = self._config
        assert config.mem_fraction_static is not None
        with out_of_memory_is_explained(
            "measuring the largest step", "lower chunked_prefill_size or max_running_requests"
        ):
            peak = self._activation_peak()
        free, total = torch.cuda.mem_get_info(self._device)
        reserve = peak + int(GRAPH_SHARE * total) * self.graphs.enabled
        width = context + config.page_size
        # Per row: the tables, and logits and scratch of the sampler, 4 bytes an element each.
        rows = self._max_rows * (8 * width + 17 * self._spec.vocab_size)
        reserve += LOGPROB_ROWS * 16 * self._spec.vocab_size
        budget = config.mem_fraction_static * (free - reserve - rows)
        self._peak = peak
        slots = int(budget / self._loaded.kv_bytes_per_token)
        if slots < config.page_size:
            raise ConfigError(
                f"no GPU memory is left for the KV pool ({free / 2**30:.1f} GiB free, "
                f"{(reserve + rows) / 2**30:.1f} GiB reserved): raise mem_fraction_static, or "
                f"lower chunked_prefill_size, max_running_requests or context_length"
            )
        return slots

    def _activation_peak(self) -> int:
        """Bytes that a prefill of the largest size takes beside the weights, measured."""
        tokens, page = self._max_tokens, self._config.page_size
        pool = ReqToTokenPool(1, tokens + page)
        tables = DeviceTables(pool, self._device, 1, tokens)
        kv = TokenToKVPool(self._spec, page, self._loaded.kv_dtype, self._device, heads_first=False)
        pool.slots[:], pool.lens[:] = 0, tokens
        seq = np.array([tokens], np.int32)
        none = np.zeros(0, np.int32)
        batch = Batch(ForwardMode.EXTEND, [], np.zeros(1, np.int32), seq, seq, 0, none, pool)
        torch.cuda.reset_peak_memory_stats(self._device)
        before = torch.cuda.memory_allocated(self._device)
        runs = tables.make_runs(batch)
        tables.pack_extend(tables.begin_extend(tokens, 1, runs), batch, tokens, 1)
        with torch.inference_mode():
            tables.upload()
            tables.write(runs)
            rows, ids = tables.extend_rows(tokens, 1)
            self._plan(self._backends.extend, batch, rows)
            self._forward(self._backends.extend, ids, kv, None)
        torch.cuda.synchronize(self._device)
        peak = torch.cuda.max_memory_allocated(self._device) - before
        torch.cuda.empty_cache()
        return peak

    def init_pools(self, num_slots: int, pool: ReqToTokenPool) -> None:
        device = self._device
        with out_of_memory_is_explained(
            "making the KV pool", "lower mem_fraction_static or max_total_tokens"
        ):
            self._kv = TokenToKVPool(
                self._spec, num_slots, self._loaded.kv_dtype, device, heads_first=False
            )
            # Padding rows of captured graphs read slot 0, and nobody writes it before them.
            for tensor in (*self._kv.keys, *self._kv.values):
                tensor[0] = 0
        self._ledger.note("KV pool")
        with out_of_memory_is_explained(
            "making row tables", "lower max_running_requests or context_length"
        ):
            self.tables = DeviceTables(pool, device, self._max_rows, self._max_tokens)
            vocab = (self._max_rows, self._spec.vocab_size)
            self._logits = torch.empty(vocab, dtype=torch.float32, device=device)
            self._sampler = DeviceSampler(self.tables, self._max_rows, self._spec.vocab_size)
        self._ledger.note("row tables and sampler")
        with (
            torch.inference_mode(),
            out_of_memory_is_explained("capturing CUDA graphs", "lower mem_fraction_static"),
        ):
            self.graphs.capture(self._launches())
        self._ledger.note("graphs")
        self._ledger.report()

    def _launches(self) -> list[tuple[Key, Callable[[], object]]]:
        """All that is captured, the largest first."""
        found: list[tuple[Key, Callable[[], object]]] = []
        for n in reversed(self._token_buckets):
            found.append((("extend", n), functools.partial(self._extend, n)))
        for n in reversed(self._row_buckets):
            found.append((("decode", n), functools.partial(self._decode, n)))
        for variant in VARIANTS:
            for n in reversed(self._sample_buckets(variant)):
                sample = functools.partial(self._sample, n, variant)
                found.append((_sample_key(n, variant), sample))
        return found

    def _sample_buckets(self, variant: str) -> list[int]:
        return self._full_buckets if variant == "full" else self._row_buckets

    # -- a step -----------------------------------------------------------------------------

    @property
    def bitmask(self) -> Bitmask:
        return self._sampler.bitmask

    def prepare(self, batch: Batch) -> Launch:
        num_samples = len(batch.sample_rows)
        variant = self._sampler.plan(batch) if num_samples else "plain"
        buckets = self._sample_buckets(variant)
        sample_bucket = bucket_of(buckets, num_samples) if num_samples else 0
        assert sample_bucket is not None
        tables = self.tables
        if batch.mode is ForwardMode.DECODE:
            rows = bucket_of(self._row_buckets, len(batch.rows)) or len(batch.rows)
            host = tables.begin(rows)
            tables.pack_decode(host, batch, rows)
            hidden_rows = batch.sample_rows
            forward = functools.partial(self._launch_decode, batch, rows)
        else:
            runs, tokens = tables.make_runs(batch), batch.num_tokens
            bucket = bucket_of(self._token_buckets, tokens)
            rows = len(batch.rows) if bucket is None else self._max_rows
            host = tables.begin_extend(bucket or tokens, rows, runs)
            tables.pack_extend(host, batch, bucket or tokens, rows)
            hidden_rows = np.cumsum(batch.extend_lens, dtype=np.int32)[batch.sample_rows] - 1
            forward = functools.partial(self._launch_extend, batch, runs, bucket, hidden_rows)
            if bucket is None:
                # Too large for a graph: its samples' hidden states are gathered right away.
                hidden_rows = np.arange(num_samples, dtype=np.int32)
        if num_samples:
            self._sampler.pack(host, batch, sample_bucket, hidden_rows)
        logprobs = bool(num_samples) and self._sampler.wants_logprobs
        finish = functools.partial(self._finish, batch, sample_bucket, variant, logprobs)
        return functools.partial(self._or_wait, self._launch, batch, forward, finish)

    @torch.inference_mode()
    def _launch(self, batch: Batch, forward: Callable[[], torch.Tensor], finish: Finish) -> Step:
        """``forward`` returns the hidden states that ``finish`` is given."""
        if len(batch.sample_rows):
            self._sampler.upload_edits()
        hidden = forward()
        if batch.masked:
            return MaskedStep(functools.partial(self._or_wait, finish, hidden))
        return finish(hidden)

    def _or_wait(self, call: Callable[..., Step], *args: Any) -> Step:
        """After an error nothing is copied any more from memory that the next steps write."""
        try:
            return call(*args)
        except Exception:
            if self._cuda:
                torch.cuda.current_stream(self._device).synchronize()
            raise

    def _launch_decode(self, batch: Batch, bucket: int) -> torch.Tensor:
        self.tables.upload()
        self._run_decode(batch, bucket)
        return self._hidden

    def _launch_extend(
        self, batch: Batch, runs: Runs, bucket: int | None, last_rows: Int32s
    ) -> torch.Tensor:
        self.tables.upload()
        self.tables.write(runs)
        if bucket is None:
            return self._run_large(batch, last_rows)
        self.graphs.run(("extend", bucket), lambda: self._extend(bucket))
        return self._hidden

    @torch.inference_mode()
    def _finish(
        self, batch: Batch, bucket: int, variant: str, wants_logprobs: bool, hidden: torch.Tensor
    ) -> Step:
        if batch.masked:
            self._sampler.upload_masks(batch)
        prompt_logprobs = self._prompt_logprobs(batch, hidden)
        logprobs: dict[int, Reader] = {}
        if bucket:
            if self._sampler.oversized:
                self.graphs.fall_back("many logit edits")
                self._sample(bucket, variant)
            else:
                key = _sample_key(bucket, variant)
                self.graphs.run(key, lambda: self._sample(bucket, variant))
            if wants_logprobs:
                ids, _ = self._sampler.readback.out(bucket)
                logprobs = self._output_logprobs(batch, ids)
        found = logprobs, prompt_logprobs
        return SampledStep(batch, self._sampler, bucket, *found, self._read_stream)

    # What follows only launches; all but the attention's plan is the same for any step of a size.

    def _decode(self, num_rows: int) -> None:
        rows, tokens = self.tables.decode_rows(num_rows)
        self._backends.decode.plan(_device_only(rows))
        self._forward(self._backends.decode, tokens, self._kv, self._hidden[:num_rows])

    def _run_decode(self, batch: Batch, bucket: int) -> None:
        if self._backends.captures_decode:
            self.graphs.run(("decode", bucket), lambda: self._decode(bucket))
            return
        n = len(batch.rows)
        rows, tokens = self.tables.decode_rows(bucket)
        rows = DeviceRows(rows.seq_lens[:n], rows.q_starts[: n + 1], rows.rows[:n],
                          rows.slot_table, decode=True)  # fmt: skip
        self._plan(self._backends.decode, batch, rows)
        ids, positions, slots = (t[:n] for t in tokens)
        self._forward(self._backends.decode, (ids, positions, slots), self._kv, self._hidden[:n])
        self.graphs.fall_back(f"attention by {self._backends.names[0]}")

    def _extend(self, num_tokens: int) -> None:
        backend = self._backends.captured
        assert backend is not None
        rows, tokens = self.tables.extend_rows(num_tokens, self._max_rows)
        backend.plan(_device_only(rows))
        self._forward(backend, tokens, self._kv, self._hidden[:num_tokens])

    def _run_large(self, batch: Batch, last_rows: Int32s) -> torch.Tensor:
        rows, tokens = self.tables.extend_rows(batch.num_tokens, len(batch.rows))
        self._plan(self._backends.extend, batch, rows)
        hidden = self._forward(self._backends.extend, tokens, self._kv, None)
        if len(last_rows):
            at = index_tensor(last_rows.tolist(), self._device)
            torch.index_select(hidden, 0, at, out=self._hidden[: len(last_rows)])
        self.graphs.fall_back("many prompt tokens")
        return hidden

    def _plan(self, backend: AttentionBackend, batch: Batch, rows: DeviceRows) -> None:
        table = np.zeros((0, 0), np.int32)
        if self._backends.host_rows:
            table = batch.pool.slots[batch.rows, : int(batch.seq_lens.max())]
        backend.plan(AttentionRows(batch.seq_lens, batch.extend_lens, table, rows))

    def _forward(
        self,
        backend: AttentionBackend,
        tokens: Tokens,
        kv: TokenToKVPool,
        out: torch.Tensor | None,
    ) -> torch.Tensor:
        ids, positions, slots = tokens
        if self._backends.host_rows:
            slots = slots.long()
        return self._model.hidden(ids, positions, Pass(slots, kv, backend), out)

    def _sample(self, num_samples: int, variant: str) -> None:
        rows, hidden_rows = self.tables.sample_rows(num_samples)
        logits = self._logits[:num_samples]
        self._model.logits(self._hidden.index_select(0, hidden_rows), logits)
        self._sampler.run(logits, rows, variant)

    # -- log-probabilities ------------------------------------------------------------------

    def _output_logprobs(self, batch: Batch, ids: torch.Tensor) -> dict[int, Reader]:
        """By sample, of those that want them; rows that want the same are launched together."""
        groups: dict[tuple[int, tuple[int, ...]], list[int]] = {}
        for j, i in enumerate(batch.sample_rows.tolist()):
            options = batch.reqs[i].logprobs
            if options is not None:
                groups.setdefault((options.top_num, tuple(options.token_ids)), []).append(j)
        found: dict[int, Reader] = {}
        for samples in groups.values():
            options = batch.reqs[batch.sample_rows[samples[0]]].logprobs
            assert options is not None
            at = index_tensor(samples, self._device)
            read = functools.cache(start_logprobs(self._logits[at], ids[at].long(), options))
            for k, j in enumerate(samples):
                found[j] = functools.partial(lambda read, k: [read()[k]], read, k)
        return found

    def _prompt_logprobs(self, batch: Batch, hidden: torch.Tensor) -> dict[int, Reader]:
        found: dict[int, Reader] = {}
        for i in batch.logprob_rows():
            found[i] = self._row_logprobs(batch, i, hidden)
        return found

    def _row_logprobs(self, batch: Batch, i: int, hidden: torch.Tensor) -> Reader:
        """Of the positions that row ``i`` made known in this step and that its request wants."""
        req = batch.reqs[i]
        assert req.logprobs is not None
        readers: list[Reader] = []
        for positions, rows in batch.prompt_positions(i, LOGPROB_ROWS):
            ids = [req.ids[p] if p < req.prompt_len else -1 for p in positions]
            chosen = index_tensor(ids, self._device)
            readers.append(start_logprobs(self._model.logits(hidden[rows]), chosen, req.logprobs))
        return lambda: [entry for read in readers for entry in read()]

    def stats(self) -> dict[str, Any]:
        decode, extend = self._backends.names
        return {
            "attention_decode": decode,
            "attention_extend": extend,
            "memory": dict(self._ledger.bytes) | {"activation peak": self._peak},
            "start_s": dict(self._ledger.seconds),
            **self.graphs.stats(),
        }

    def close(self) -> None:
        """Nothing to do: memory goes with the object."""


def _sample_key(num_samples: int, variant: str) -> Key:
    return f"sample {variant}", num_samples


def _device_only(rows: DeviceRows) -> AttentionRows:
    none = np.zeros(0, np.int32)
    return AttentionRows(none, none, none.reshape(0, 0), rows)
