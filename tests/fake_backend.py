"""FakeBackend: the language's own stand-in. It records what it is asked, and plays streams."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections.abc import AsyncIterator, Callable, Sequence

from rtlang.backends.base import Call, Capabilities, Stream
from rtlang.errors import RequestAborted
from rtlang.runtime.chunk import Chunk
from rtlang.runtime.messages import FinishReason, Usage
from rtlang.runtime.sampling_params import SamplingParams
from rtlang.runtime.tokenizer import Tokenizer
from rtlang.testing import ByteTokenizer


@dataclasses.dataclass
class Play:
    """One answer: ``text``, a character per chunk and ``delay_s``; then ``error``, if any, is
    raised. With a ``gate`` it waits for it first (an abort ends the wait)."""

    text: str = ""
    error: Exception | None = None
    delay_s: float = 0.0
    gate: threading.Event | None = None


class FakeStream:
    def __init__(self, backend: FakeBackend, call: Call, play: Play) -> None:
        self.rid = f"fake-{len(backend.calls)}"
        self.aborted = False
        self.ended = False
        self._backend = backend
        self._call = call
        self._play = play

    def abort(self) -> None:
        if not self.ended and not self.aborted:
            self.aborted = True
            self._backend.aborted.append(self._call)

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        play, tokenizer = self._play, self._backend.tokenizer
        try:
            while play.gate is not None and not play.gate.is_set():
                await self._pause(0.002)
            for character in play.text:
                await self._pause(play.delay_s)
                ids = tokenizer.encode(character, add_bos=False, control=False)
                yield Chunk(text=character, token_ids=ids)
            await self._pause(play.delay_s)
            if play.error is not None:
                raise play.error
            size = len(tokenizer.encode(play.text, add_bos=False, control=False))
            prompt = len(self._call.input_ids)
            yield Chunk(
                text="",
                token_ids=[min(tokenizer.eos_ids)],
                finish=FinishReason("stop", None, "eos"),
                usage=Usage(
                    prompt_tokens=prompt, computed_tokens=prompt, completion_tokens=size + 1
                ),
                kept_ids=size,
            )
        finally:
            self.ended = True
            self._backend.num_running -= 1

    async def _pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        if self.aborted:
            raise RequestAborted("the request was aborted")


class FakeBackend:
    """Implements ``Backend``. ``play`` gives the answer to a call."""

    def __init__(
        self,
        play: Callable[[Call], Play | str] = lambda call: "ok",
        *,
        tokenizer: Tokenizer | None = None,
        capabilities: Capabilities | None = None,
        announcement: Play | None = None,
    ) -> None:
        self.capabilities = capabilities or Capabilities()
        self.tokenizer: Tokenizer = tokenizer or ByteTokenizer()
        self.calls: list[Call] = []
        self.aborted: list[Call] = []
        self.announced: list[tuple[list[int], int]] = []
        self.closed: list[tuple[str, int]] = []
        self.refuse: Exception | None = None
        self.num_running = 0
        self.num_flushed = 0
        self._play = play
        self._announcement = announcement or Play()

    def start(self, call: Call) -> Stream:
        if self.refuse is not None:
            raise self.refuse
        self.calls.append(call)
        self.num_running += 1
        play = self._play(call)
        return FakeStream(self, call, Play(play) if isinstance(play, str) else play)

    def announce(
        self,
        input_ids: Sequence[int],
        branches: int,
        *,
        namespace: str = "",
        priority: int = 0,
    ) -> tuple[str, Stream]:
        self.announced.append((list(input_ids), branches))
        self.num_running += 1
        call = Call(input_ids=input_ids, params=SamplingParams(max_new_tokens=0))
        return f"fork-{len(self.announced)}", FakeStream(self, call, self._announcement)

    def close_branches(self, fork_id: str, count: int) -> None:
        self.closed.append((fork_id, count))

    def flush_cache(self) -> None:
        self.num_flushed += 1

    def prompts(self) -> list[str]:
        """The prompts of the calls, in order."""
        decode = self.tokenizer.decode
        return [decode(list(c.input_ids), skip_special_tokens=False) for c in self.calls]

    def branch_balance(self, fork_id: str) -> int:
        """Branches of the fork that were neither used by a call nor closed."""
        index = int(fork_id.removeprefix("fork-")) - 1
        used = sum(call.fork_id == fork_id for call in self.calls)
        closed = sum(count for name, count in self.closed if name == fork_id)
        return self.announced[index][1] - used - closed
