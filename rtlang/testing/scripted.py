"""ScriptedModel: the scheduler, the cache and the sampler are real, the model is a script."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from rtlang.errors import RtlangError
from rtlang.runtime.batch import Batch, BatchResult
from rtlang.runtime.byte_tokenizer import ByteTokenizer
from rtlang.runtime.config import EngineConfig
from rtlang.runtime.executor import DoneStep, Launch, MaskedStep, ModelInfo, Step
from rtlang.runtime.mem.rows import ReqToTokenPool
from rtlang.runtime.messages import TokenLogprobs
from rtlang.runtime.req import Req
from rtlang.runtime.sampling.logprobs import position_logprobs
from rtlang.runtime.sampling.sampler import Sampler
from rtlang.runtime.tokenizer import Tokenizer

#: What a reply with an error generates until the error is due.
FILLER = ord(".")


@dataclasses.dataclass(frozen=True, slots=True)
class Reply:
    """One scripted answer: its tokens, then EOS (or, ``eos=False``, more of the last token).

    ``error`` ends the request ``delay_s`` seconds after its first step instead.
    """

    text: str | Sequence[int] = ""
    eos: bool = True
    error: RtlangError | None = None
    delay_s: float = 0.0


Script = Callable[[str], "Reply | str"] | Mapping[str, "Reply | str"] | Sequence["Reply | str"]
#: Known tokens of a sequence -> logits of the next one, [vocab_size] or {token: logit}.
Logits = Callable[[list[int]], "npt.NDArray[np.float32] | Mapping[int, float]"]


class ScriptedModel:
    """A model source for ``Engine(model=...)``.

    ``script``: answers in the order in which requests are first sampled; or by the end of the
    prompt (a mapping: the longest key that the prompt ends with); or a function of the prompt's
    text; where a constraint forbids its token, the lowest id that is allowed comes instead.
    ``logits``: sample for real, from these. ``step_s``: how long every step takes.
    ``steps`` collects (mode, number of rows, number of tokens) of each step.
    """

    def __init__(
        self,
        script: Script = (),
        *,
        logits: Logits | None = None,
        tokenizer: Tokenizer | None = None,
        context_length: int = 8192,
        max_total_tokens: int = 65536,
        step_s: float = 0.0,
    ) -> None:
        self.script = script
        self.logits = logits
        self.tokenizer: Tokenizer = tokenizer or ByteTokenizer()
        self.context_length = context_length
        self.max_total_tokens = max_total_tokens
        self.step_s = step_s
        self.steps: list[tuple[str, int, int]] = []

    def create_executor(self, config: EngineConfig) -> ScriptedExecutor:
        return ScriptedExecutor(self, config)


class ScriptedExecutor:
    """Implements ``Executor``. It also checks the cache: what it "stored" in a slot must be the
    token, and the position, that a request reads from there."""

    def __init__(self, model: ScriptedModel, config: EngineConfig) -> None:
        self._model = model
        self._replies: dict[Req, tuple[Reply, float]] = {}
        self._num_started = 0
        self.info = ModelInfo(
            vocab_size=model.tokenizer.vocab_size,
            context_length=config.context_length or model.context_length,
            eos_ids=model.tokenizer.eos_ids,
            kv_bytes_per_token=8,
            max_total_tokens=config.max_total_tokens or model.max_total_tokens,
            chat_defaults={},
            model_path="",
        )

    def init_pools(self, num_slots: int, pool: ReqToTokenPool) -> None:
        self._stored: npt.NDArray[np.int64] = np.full(num_slots, -1, np.int64)
        self._sampler = Sampler(pool, self.info.vocab_size)
        self.bitmask = np.zeros((pool.num_rows, -(-self.info.vocab_size // 32)), np.int32)

    overlaps = False

    def prepare(self, batch: Batch) -> Launch:
        return functools.partial(self._launch, batch)

    def _launch(self, batch: Batch) -> Step:
        if self._model.step_s:
            time.sleep(self._model.step_s)
        self._model.steps.append((batch.mode.value, len(batch.reqs), batch.num_tokens))
        self._store_and_check(batch)
        sample = functools.partial(self._finish, batch)
        return MaskedStep(sample) if batch.masked else sample()

    def _finish(self, batch: Batch) -> DoneStep:
        result = self._sample(batch) if self._model.logits is not None else self._play(batch)
        for i in batch.logprob_rows():
            result.prompt_logprobs[i] = self._prompt_logprobs(batch, i)
        batch.store_ids(result)
        return DoneStep(result)

    def stats(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        self._replies.clear()

    def _store_and_check(self, batch: Batch) -> None:
        for i, row in enumerate(batch.rows.tolist()):
            seq, ext = int(batch.seq_lens[i]), int(batch.extend_lens[i])
            marks = batch.pool.token_ids[row, :seq].astype(np.int64) * 2**32 + np.arange(seq)
            self._stored[batch.pool.slots[row, seq - ext : seq]] = marks[seq - ext :]
        for i, row in enumerate(batch.rows.tolist()):
            seq = int(batch.seq_lens[i])
            marks = batch.pool.token_ids[row, :seq].astype(np.int64) * 2**32 + np.arange(seq)
            read = self._stored[batch.pool.slots[row, :seq]]
            assert np.array_equal(read, marks), f"{batch.reqs[i].rid} reads another one's KV"

    # -- from a script ----------------------------------------------------------------------

    def _play(self, batch: Batch) -> BatchResult:
        ids, errors = [], {}
        for i in batch.sample_rows.tolist():
            req = batch.reqs[i]
            if req not in self._replies:
                self._forget_finished()
                self._replies[req] = (self._reply_to(req), time.monotonic())
            reply, since = self._replies[req]
            output_len = int(batch.seq_lens[i]) - req.prompt_len
            ids.append(self._next_token(reply, output_len))
            if (j := len(ids) - 1) in batch.masked and not self._allows(j, ids[j]):
                ids[j] = next(t for t in range(self.info.vocab_size) if self._allows(j, t))
            if reply.error is not None and time.monotonic() >= since + reply.delay_s:
                errors[i] = (reply.error.code, reply.error.message)
        return BatchResult(np.array(ids, np.int32), None, {}, errors)

    def _allows(self, sample: int, token: int) -> bool:
        return bool(self.bitmask[sample, token // 32] >> (token % 32) & 1)

    def _next_token(self, reply: Reply, output_len: int) -> int:
        if reply.error is not None:
            return FILLER
        tokens = reply.text
        if isinstance(tokens, str):
            tokens = self._model.tokenizer.encode(tokens, add_bos=False, control=False)
        if output_len < len(tokens):
            return tokens[output_len]
        eos = min(self.info.eos_ids)
        return eos if reply.eos or not tokens else tokens[-1]

    def _reply_to(self, req: Req) -> Reply:
        script = self._model.script
        prompt = self._model.tokenizer.decode(
            req.ids[: req.prompt_len].tolist(), skip_special_tokens=False
        )
        found: Reply | str
        if callable(script):
            found = script(prompt)
        elif isinstance(script, Mapping):
            keys = [key for key in script if prompt.endswith(key)]
            found = script[max(keys, key=len)] if keys else ""
        else:
            found = script[self._num_started] if self._num_started < len(script) else ""
            self._num_started += 1
        return Reply(found) if isinstance(found, str) else found

    def _forget_finished(self) -> None:
        if len(self._replies) > 4096:
            self._replies = {r: v for r, v in self._replies.items() if r.finish is None}

    # -- from logits ------------------------------------------------------------------------

    def _logits_after(self, tokens: list[int]) -> torch.Tensor:
        assert self._model.logits is not None
        given = self._model.logits(tokens)
        if isinstance(given, Mapping):
            row = np.full(self.info.vocab_size, -np.inf, np.float32)
            row[list(given)] = list(given.values())
            given = row
        return torch.from_numpy(given.astype(np.float32))

    def _sample(self, batch: Batch) -> BatchResult:
        if not len(batch.sample_rows):
            return BatchResult(np.zeros(0, np.int32))
        rows = [
            self._logits_after(batch.pool.token_ids[batch.rows[i], : batch.seq_lens[i]].tolist())
            for i in batch.sample_rows
        ]
        return self._sampler.sample(torch.stack(rows), batch, self.bitmask)

    def _prompt_logprobs(self, batch: Batch, i: int) -> list[TokenLogprobs]:
        req = batch.reqs[i]
        assert req.logprobs is not None
        wanted = [p for block, _ in batch.prompt_positions(i, 1 << 20) for p in block]
        if not wanted:
            return []
        if self._model.logits is None:
            table = torch.zeros(len(wanted), self.info.vocab_size)
        else:
            table = torch.stack([self._logits_after(req.ids[:p].tolist()) for p in wanted])
        tokens = [req.ids[p] if p < req.prompt_len else -1 for p in wanted]
        return position_logprobs(table, tokens, req.logprobs)
