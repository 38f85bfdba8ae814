"""EngineBackend: an in-process ``Engine`` as what programs run on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rtlang.backends.base import Call, Capabilities, Stream
from rtlang.runtime.job import CallOptions
from rtlang.runtime.tokenizer import Tokenizer

if TYPE_CHECKING:  # importing the engine imports torch; its owner has done so
    from rtlang.runtime.engine import Engine

#: Where nobody follows the text: pieces of so many tokens, or one so often, so that a program is
#: not woken for every token.
INTERVAL, HOLD_MS = 16, 40


class EngineBackend:
    """Implements ``Backend``. Many may share one engine."""

    capabilities = Capabilities()

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def __repr__(self) -> str:
        return f"EngineBackend({self.engine!r})"

    @property
    def tokenizer(self) -> Tokenizer:
        return self.engine.tokenizer

    def start(self, call: Call) -> Stream:
        options = CallOptions(
            logprobs=call.logprobs,
            priority=call.priority,
            timeout_s=call.timeout_s,
            namespace=call.namespace,
            fork_id=call.fork_id,
        )
        return self.engine.start(
            call.input_ids,
            call.params,
            options,
            chat=call.chat,
            choice=call.choice,
            interval=None if call.stream else max(INTERVAL, call.params.stream_interval),
            hold_ms=0 if call.stream else HOLD_MS,
        )

    def announce(
        self,
        input_ids: Sequence[int],
        branches: int,
        *,
        namespace: str = "",
        priority: int = 0,
    ) -> tuple[str, Stream]:
        options = CallOptions(namespace=namespace, priority=priority)
        return self.engine.announce(input_ids, branches, options)

    def close_branches(self, fork_id: str, count: int) -> None:
        self.engine.close_branches(fork_id, count)

    def flush_cache(self) -> None:
        self.engine.flush_cache()
