"""A scheduler and an executor without sockets or threads: tests look between the steps."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any

import torch

from rtlang.grammar.service import GrammarService
from rtlang.grammar.translate import translate
from rtlang.grammar.vocab import Vocab
from rtlang.grammar.xgr_backend import XgrBackend
from rtlang.runtime.batch import Batch
from rtlang.runtime.config import EngineConfig
from rtlang.runtime.constraints import Constraints
from rtlang.runtime.executor import Launch, Step
from rtlang.runtime.gpu.runner import GpuRunner
from rtlang.runtime.jump import forced_ids
from rtlang.runtime.messages import Failed, Outputs
from rtlang.runtime.req import Req
from rtlang.runtime.sampling_params import SamplingParams
from rtlang.runtime.scheduler import Scheduler
from rtlang.testing.tiny import TinyModel

#: Where Triton kernels run: on a GPU, or else in Triton's interpreter.
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class StepLoop:
    """Overlapped by one step, as the worker's loop on a GPU is."""

    def __init__(self, model: TinyModel, *, overlap: bool = True, **options: Any) -> None:
        defaults: dict[str, Any] = {
            "device": DEVICE,
            "attention_backend": "triton",
            "max_total_tokens": 4096,
            "context_length": 512,
            "debug": True,
        }
        self.config = EngineConfig(**(defaults | options)).resolve(DEVICE)
        executor = model.create_executor(self.config)
        assert isinstance(executor, GpuRunner)
        self.runner = executor
        self.scheduler = Scheduler(
            self.config,
            num_slots=executor.info.max_total_tokens,
            width=executor.info.context_length,
            jump=lambda req: forced_ids(req, model.tokenizer),
        )
        executor.init_pools(self.scheduler.allocator.tensor_len, self.scheduler.pool)
        self.overlap = overlap
        tokenizer = model.tokenizer
        self._backend = XgrBackend(
            Vocab.build(
                tokenizer.token_bytes,
                executor.info.vocab_size,
                stop_ids=executor.info.eos_ids,
                special_ids=tokenizer.special_ids,
            )
        )
        self.constraints = Constraints(self._no_service, lambda: None)
        self.inflight: tuple[Batch, Step] | None = None
        self.ids: dict[str, list[int]] = {}
        self.errors: dict[str, str] = {}

    def run(
        self,
        prompts: list[list[int]],
        new: int = 8,
        before: Callable[[Batch], None] | None = None,
        after: Callable[[Batch], None] | None = None,
        **params: Any,
    ) -> list[list[int]]:
        """Generate for all at once. ``before`` and ``after`` are called around each launch."""
        return self.run_each(prompts, [params] * len(prompts), new, before, after)

    def run_each(
        self,
        prompts: list[list[int]],
        params: list[dict[str, Any]],
        new: int = 8,
        before: Callable[[Batch], None] | None = None,
        after: Callable[[Batch], None] | None = None,
    ) -> list[list[int]]:
        names = [f"{len(self.ids) + i}" for i in range(len(prompts))]
        for name, prompt, given in zip(names, prompts, params, strict=True):
            self._add(name, prompt, {"temperature": 0.0, "max_new_tokens": new, **given})
        planned: tuple[Batch, Launch] | None = None
        while self.scheduler.has_work or self.inflight is not None or planned is not None:
            current, planned = planned or self._plan(), None
            if current is None:
                self._land()
                self._collect()
                continue
            batch, launch = current
            if before is not None:
                before(batch)
            step = launch()
            if after is not None:
                after(batch)
            self._land()
            if batch.masked:
                planned = self._plan() if self.overlap else None
                assert not self.constraints.fill(batch, self.runner.bitmask)
                step.sample()
            self.inflight = batch, step
            if not self.overlap:
                self._land()
            self._collect()
        self.scheduler.check()
        assert self.scheduler.kv.available_len == self.scheduler.allocator.total_len
        return [self.ids[name] for name in names]

    def _add(self, name: str, prompt: list[int], params: dict[str, Any]) -> None:
        self.ids[name] = []
        resolved = SamplingParams(**params).resolve()
        limit = min(len(prompt) + params["max_new_tokens"], self.scheduler.limit_len)
        seed = resolved.sampling_seed
        seed = int(name) if seed is None else seed
        req = Req(name, b"c", array("i", prompt), len(prompt), resolved, seed, limit)
        if resolved.grammar is not None:
            req.matcher = self._backend.compile(translate(resolved.grammar)).matcher()
            req.stop_ids = self.runner.info.eos_ids
            req.jumps = resolved.jump_forward == "canonical"
        self.scheduler.add(req)

    def _no_service(self) -> GrammarService:
        raise AssertionError("constraints are compiled here")

    def _plan(self) -> tuple[Batch, Launch] | None:
        batch = self.scheduler.next_batch() if self.scheduler.has_work else None
        return None if batch is None else (batch, self.runner.prepare(batch))

    def _land(self) -> None:
        if self.inflight is not None:
            (batch, step), self.inflight = self.inflight, None
            self.scheduler.commit(batch, step.read())

    def _collect(self) -> None:
        for _, response in self.scheduler.outbox.take():
            if isinstance(response, Failed):
                self.errors[response.rid] = response.code
            elif isinstance(response, Outputs):
                for output in response.outputs:
                    self.ids[output.rid] += output.ids

    def pools(self) -> torch.Tensor:
        """All KV as numbers: [layers, 2, num_slots, num_kv_heads * head_dim]."""
        kv = self.runner._kv
        layers = [torch.stack((k.float(), v.float())) for k, v in zip(kv.keys, kv.values)]  # noqa: B905
        return torch.stack(layers).flatten(3).cpu()
