"""DeviceSampler: from a batch's requests to sampled ids on the device, without waiting for them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch

from rtlang.grammar.vocab import Bitmask
from rtlang.kernels.triton.sampling import (
    DEAD_END,
    FILTERED,
    GREEDY,
    MASKED,
    NUMERICAL_ERROR,
    PENALISED,
    Edits,
    SampleRows,
    TritonSampler,
    mask_logits,
)
from rtlang.runtime.batch import Batch, BatchResult, ForwardMode, Int32s
from rtlang.runtime.gpu.copies import PrefixCopy, Stages, pinned_ints
from rtlang.runtime.gpu.tables import SAMPLE_FIELDS, DeviceTables
from rtlang.runtime.messages import TokenLogprobs
from rtlang.runtime.sampling.row_params import RowParams

#: Logit biases and held-back stop ids of one step that a captured graph has room for.
MAX_EDITS = 1 << 15

#: "plain": temperature and a draw; "masked": also a constraint's mask; "full": everything.
VARIANTS = ("plain", "masked", "full")

_FIELD = {f.name: i for i, f in enumerate(dataclasses.fields(SampleRows))}
_MESSAGES = {
    NUMERICAL_ERROR: ("numerical_error", "the model's logits are not finite"),
    DEAD_END: ("grammar_dead_end", "the constraint allows no token"),
}
Entries = list[TokenLogprobs]


class DeviceSampler:
    """Owns the sampler's scratch and the tables of parameters by row.

    ``plan`` looks at a batch, ``pack`` writes it for the upload: the host's part, while the batch
    before may still wait for its sampling. ``upload_edits`` comes when that one is launched;
    ``run`` launches (and may be captured); ``SampledStep`` brings the result back.
    """

    def __init__(self, tables: DeviceTables, max_samples: int, vocab_size: int) -> None:
        device = tables.device
        self._tables = tables
        self.params = RowParams(tables.pool)
        self._packed = np.zeros((SAMPLE_FIELDS, tables.pool.num_rows), np.int32)
        self._sampler = TritonSampler(max_samples, vocab_size, device)
        words = (max_samples, -(-vocab_size // 32))
        self._mask_bits = torch.zeros(words, dtype=torch.int32, device=device)
        # Written by the host while the step computes; its copy is over before the next one's.
        pinned = pinned_ints(words, device)
        self.bitmask: Bitmask = pinned.numpy()
        self._copy_masks = PrefixCopy(self._mask_bits, pinned)
        self._edits = torch.zeros(1 + 3 * MAX_EDITS, dtype=torch.int32, device=device)
        self._staged: torch.Tensor | None = None  # edits of the planned batch, on the host
        self._has_edits = False
        self._large: torch.Tensor | None = None  # more edits than the captured buffer holds
        self.readback = Readback(max_samples, device)
        # Of the last batch. Decode steps of the same rows (the same array) only differ in lengths.
        self._rows: Int32s | None = None
        self._variant = VARIANTS[0]
        self._template = np.zeros((SAMPLE_FIELDS, 0), np.int32)
        self.wants_logprobs = False  # someone in the planned batch, of sampled tokens

    def plan(self, batch: Batch) -> str:
        """Refresh the rows' parameters; returns which of ``VARIANTS`` serves them all."""
        if batch.rows is not self._rows:
            self._rows = None
            self._variant, is_steady = self._plan(batch)
            if is_steady:
                self._rows = batch.rows
        return self._variant

    def _plan(self, batch: Batch) -> tuple[str, bool]:
        """The variant, and whether it is also that of the next decode steps of the same rows."""
        rows, seq_lens = batch.rows[batch.sample_rows], batch.seq_lens[batch.sample_rows]
        params = self.params
        for row in params.refresh([batch.reqs[i] for i in batch.sample_rows], rows.tolist()):
            self._pack(row)
        output_lens = seq_lens - batch.pool.prompt_lens[rows]
        held = output_lens < params.min_new_tokens[rows]
        held &= ~batch.pool.constrained[rows]  # their masks see to it
        edited = params.biased[rows] | held
        steady = batch.mode is ForwardMode.DECODE and not edited.any()
        self._template = self._template[:, :0]
        reqs = [batch.reqs[i] for i in batch.sample_rows]
        self.wants_logprobs = any(req.logprobs is not None for req in reqs)
        self._staged = None
        if edited.any():
            self._staged = self._stage_edits(np.flatnonzero(edited).tolist(), rows, held)
        if (params.filtered[rows] | params.penalised[rows] | edited).any():
            return "full", steady
        # Masking writes over the logits, of which log-probabilities are reported.
        if not batch.masked:
            return "plain", steady
        plain = all(reqs[j].logprobs is None for j in batch.masked)
        return "masked" if plain else "full", steady

    @property
    def oversized(self) -> bool:
        """The batch whose edits were uploaded has too many for a captured graph."""
        return self._large is not None

    def pack(self, host: Int32s, batch: Batch, num_samples: int, hidden_rows: Int32s) -> None:
        """The planned batch's samples, padded to ``num_samples``.

        hidden_rows  [samples of the batch] int32, where each finds its hidden state
        """
        rows, seq_lens = batch.rows[batch.sample_rows], batch.seq_lens[batch.sample_rows]
        n = len(rows)
        fields = host[: SAMPLE_FIELDS * num_samples].reshape(SAMPLE_FIELDS, num_samples)
        if batch.rows is self._rows and self._template.shape == fields.shape:
            fields[:] = self._template
            fields[_FIELD["seq_len"], :n] = seq_lens
            fields[_FIELD["position"], :n] = seq_lens - fields[_FIELD["prompt_len"], :n]
            return
        prompt_lens = batch.pool.prompt_lens[rows]
        fields[:, :n] = self._packed[:, rows]
        fields[:, n:] = 0
        fields[_FIELD["flags"], n:] = GREEDY
        fields[_FIELD["flags"], batch.masked] |= int(MASKED)
        fields[_FIELD["row"], :n], fields[_FIELD["row"], n:] = rows, self._tables.pad_row
        fields[_FIELD["seq_len"], :n] = seq_lens
        fields[_FIELD["prompt_len"], :n] = prompt_lens
        fields[_FIELD["position"], :n] = seq_lens - prompt_lens
        fields[-1, :n] = hidden_rows
        if batch.rows is self._rows:
            self._template = fields.copy()

    def _pack(self, row: int) -> None:
        p, column = self.params, self._packed[:, row]

        def put(name: str, value: float | int, kind: type) -> None:
            column[_FIELD[name]] = np.array(value, kind).view(np.int32)

        put("temperature", p.temperature[row], np.float32)
        put("top_k", min(int(p.top_k[row]), 2**31 - 1), np.int32)
        put("top_p", p.top_p[row], np.float32)
        put("min_p", p.min_p[row], np.float32)
        put("repetition", p.repetition[row], np.float32)
        put("frequency", p.frequency[row], np.float32)
        put("presence", p.presence[row], np.float32)
        low, high = p.seed[row : row + 1].view(np.int32)  # little-endian
        column[_FIELD["seed_low"]], column[_FIELD["seed_high"]] = low, high
        column[_FIELD["flags"]] = (
            GREEDY * p.greedy[row] | FILTERED * p.filtered[row] | PENALISED * p.penalised[row]
        )

    def _stage_edits(
        self, samples: list[int], rows: Int32s, held: npt.NDArray[np.bool_]
    ) -> torch.Tensor:
        """[3, num_edits] int32 on the host: samples, tokens, addends."""
        at: list[int] = []
        tokens: list[int] = []
        values: list[float] = []
        for j in samples:
            row = int(rows[j])
            if self.params.biased[row]:
                ids, addends = self.params.bias[row]
                at += [j] * len(ids)
                tokens += ids
                values += addends
            if held[j]:
                ids = self.params.stop_ids[row]
                at += [j] * len(ids)
                tokens += ids
                values += [-np.inf] * len(ids)
        count = len(at)
        packed = np.empty((3, count), np.int32)
        packed[0], packed[1] = at, tokens
        packed[2] = np.array(values, np.float32).view(np.int32)
        staged = torch.from_numpy(packed)
        return staged.pin_memory() if self._edits.device.type == "cuda" else staged

    def upload_edits(self) -> None:
        """Of the planned batch; the one before it has been launched as a whole."""
        staged, self._staged, self._large = self._staged, None, None
        if staged is None:
            if self._has_edits:
                self._edits[:1].zero_()
                self._has_edits = False
            return
        device, count = self._edits.device, staged.shape[1]
        on_device = staged.to(device, non_blocking=True)
        self._has_edits = True
        if count > MAX_EDITS:
            total = torch.full((1,), count, dtype=torch.int32, device=device)
            self._large = torch.cat((total, on_device.reshape(-1)))
            return
        self._edits[1:].view(3, MAX_EDITS)[:, :count].copy_(on_device)
        self._edits[:1].fill_(count)

    def upload_masks(self, batch: Batch) -> None:
        self._copy_masks(batch.masked[-1] + 1)

    def run(self, logits: torch.Tensor, rows: SampleRows, variant: str) -> None:
        """Launch the chain for [num_samples, vocab_size] logits; capturable. The variant "masked"
        overwrites them."""
        n = logits.shape[0]
        edits = None
        mask_bits = None
        if variant == "masked":
            mask_logits(logits, rows.flags, self._mask_bits[:n])
        if variant == "full":
            packed = self._edits if self._large is None else self._large
            sample, token, value = packed[1:].view(3, -1).unbind(0)
            edits = Edits(packed[:1], sample, token, value.view(torch.float32))
            mask_bits = self._mask_bits[:n]
        token_ids = self._tables.token_ids
        out, status = self.readback.out(n)
        self._sampler.sample(
            logits,
            rows,
            token_ids,
            out,
            status,
            full=variant == "full",
            mask_bits=mask_bits,
            edits=edits,
        )


class Readback:
    """Sampled ids and status on their way back to the host, in pinned buffers used in turn: of the
    step that is being launched, of the one before it, which may not have been read yet."""

    def __init__(self, max_samples: int, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._out = torch.zeros(2 * max_samples, dtype=torch.int32, device=device)
        self._stages = Stages(self._out, to_device=False)
        self._events = [torch.cuda.Event() for _ in self._stages.hosts] if self._cuda else []  # type: ignore[no-untyped-call]

    def out(self, bucket: int) -> tuple[torch.Tensor, torch.Tensor]:
        """(ids, status), each [bucket] int32 on the device: what the sampling writes."""
        return self._out[:bucket], self._out[bucket : 2 * bucket]

    def start(self, bucket: int) -> int:
        """Copy what was sampled in this bucket; returns what ``read`` is to be given."""
        turn = self._stages.take()
        self._stages.copy(turn, 2 * bucket)
        if self._cuda:
            self._events[turn].record()
        return turn

    def read(self, turn: int, bucket: int) -> tuple[Int32s, Int32s]:
        """(ids, status) of a step; waits for it. They change with the next one but one."""
        if self._cuda:
            self._events[turn].synchronize()
        host = self._stages.hosts[turn]
        return host[:bucket], host[bucket : 2 * bucket]


class SampledStep:
    """Implements ``Step``: ids that are on their way back to the host."""

    def __init__(
        self,
        batch: Batch,
        sampler: DeviceSampler,
        bucket: int,
        logprobs: dict[int, Callable[[], Entries]],
        prompt_logprobs: dict[int, Callable[[], Entries]],
        stream: torch.cuda.Stream | None,
    ) -> None:
        """``bucket``: of the samples; ``logprobs``: by sample; ``stream``: what their copies run
        on, beside the next step."""
        self._batch = batch
        self._sampler, self._bucket = sampler, bucket
        self._logprobs, self._prompt_logprobs = logprobs, prompt_logprobs
        self._stream = stream
        self._turn = sampler.readback.start(bucket)

    def sample(self) -> None:
        raise AssertionError("nothing waits for a mask")

    def read(self) -> BatchResult:
        n = len(self._batch.sample_rows)
        ids, status = self._sampler.readback.read(self._turn, self._bucket)
        result = BatchResult(ids[:n].copy())
        if status[:n].any():
            for j in np.flatnonzero(status[:n]).tolist():
                # The mask is still there: the next one is written when this has been read.
                emptied = j in self._batch.masked and not self._sampler.bitmask[j].any()
                found = DEAD_END if emptied else int(status[j])
                result.errors[int(self._batch.sample_rows[j])] = _MESSAGES[found]
        if not (self._logprobs or self._prompt_logprobs):
            return result
        if self._stream is None:
            return self._with_logprobs(result)
        with torch.cuda.stream(self._stream):  # the main stream is busy with the next step
            return self._with_logprobs(result)

    def _with_logprobs(self, result: BatchResult) -> BatchResult:
        if self._logprobs:
            chosen = [self._logprobs.get(j) for j in range(len(result.next_ids))]
            good = [int(i) not in result.errors for i in self._batch.sample_rows]
            result.logprobs = [
                read()[0] if read is not None and ok else None
                for read, ok in zip(chosen, good, strict=True)
            ]
        for i, read in self._prompt_logprobs.items():
            result.prompt_logprobs[i] = read()
        return result
