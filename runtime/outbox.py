"""What a step has to tell the clients, collected per client and sent once a step."""

from __future__ import annotations

from typing import Any

from rtlang.runtime.messages import Failed, Output, Outputs, Response, TokenLogprobs
from rtlang.runtime.req import Req


class Outbox:
    def __init__(self) -> None:
        self._outputs: dict[bytes, list[Output]] = {}
        self._failed: list[tuple[bytes, Failed]] = []

    def emit(
        self, req: Req, ids: list[int], logprobs: list[TokenLogprobs | None] | None, now: float
    ) -> None:
        """New tokens of ``req``, sent now or held until its interval is full; after its end the
        rest and its usage. ``now`` on the scheduler's clock."""
        req.held_ids += ids
        if req.logprobs is not None and logprobs is not None:
            req.held_logprobs += [entry for entry in logprobs if entry is not None]
        late = req.hold_s > 0 and now - req.sent_at >= req.hold_s
        if req.finish is not None or late or len(req.held_ids) >= req.interval:
            self.send_held(req, now)

    def send_held(self, req: Req, now: float) -> None:
        usage = req.usage if req.finish is not None else None
        output = Output(rid=req.rid, ids=req.held_ids, finish=req.finish, usage=usage)
        if req.finish is not None:
            output.timings = req.clock.read(now)
        req.held_ids, req.sent_at = [], now
        if req.held_logprobs:
            output.logprobs, req.held_logprobs = req.held_logprobs, []
        if req.pending_prompt_logprobs:
            output.prompt_logprobs = req.pending_prompt_logprobs
            req.pending_prompt_logprobs = []
        self._outputs.setdefault(req.client, []).append(output)

    def fail(self, req: Req, code: str, message: str, data: dict[str, Any], now: float) -> None:
        if req.held_ids:
            self.send_held(req, now)
        told = req.usage, req.clock.read(now)
        self._failed.append((req.client, Failed(req.rid, code, message, data, *told)))

    def drop_client(self, client: bytes) -> None:
        self._outputs.pop(client, None)
        self._failed = [item for item in self._failed if item[0] != client]

    def take(self) -> list[tuple[bytes, Response]]:
        """All that was collected since the last call: a client's outputs before its failures."""
        taken: list[tuple[bytes, Response]] = []
        for client, outputs in self._outputs.items():
            taken.append((client, Outputs(outputs)))
        taken.extend(self._failed)
        self._outputs, self._failed = {}, []
        return taken
