"""A scheduler and an executor without sockets or threads: tests look between the steps."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any

import torch

from rtlang.runtime.batch import Batch
from rtlang.runtime.config import EngineConfig
from rtlang.runtime.executor import Step
from rtlang.runtime.gpu.runner import GpuRunner
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
        )
        executor.init_pools(self.scheduler.allocator.tensor_len, self.scheduler.pool)
        self.overlap = overlap
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
        names = [f"{len(self.ids) + i}" for i in range(len(prompts))]
        sampling = {"temperature": 0.0, "max_new_tokens": new, **params}
        for name, prompt in zip(names, prompts, strict=True):
            self.ids[name] = []
            resolved = SamplingParams(**sampling).resolve()
            limit = min(len(prompt) + new, self.scheduler.limit_len)
            ids = array("i", prompt)
            seed = resolved.sampling_seed
            seed = int(name) if seed is None else seed
            self.scheduler.add(Req(name, b"c", ids, len(prompt), resolved, seed, limit))
        while self.scheduler.has_work or self.inflight is not None:
            batch = self.scheduler.next_batch() if self.scheduler.has_work else None
            step: Step | None = None
            if batch is not None:
                if before is not None:
                    before(batch)
                step = self.runner.launch(batch)
                if after is not None:
                    after(batch)
            self._land()
            if batch is not None and step is not None:
                self.inflight = batch, step
                if not self.overlap:
                    self._land()
            self._collect()
        self.scheduler.check()
        assert self.scheduler.kv.available_len == self.scheduler.allocator.total_len
        return [self.ids[name] for name in names]

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
