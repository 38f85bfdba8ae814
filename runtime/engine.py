"""Engine: the handle that a caller holds. Validates, tokenizes, sends, and collects results."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from rtlang.errors import (
    DuplicateRequestId,
    InvalidParameter,
    InvalidPrompt,
    RtlangError,
    Unsupported,
)
from rtlang.runtime import admission
from rtlang.runtime.config import EngineConfig
from rtlang.runtime.detokenizer import Detokenizer
from rtlang.runtime.executor import ModelInfo, ModelSource
from rtlang.runtime.job import Ask, CallOptions, Job, split_params, split_prompts
from rtlang.runtime.launch import Launched, attach, launch, load_source, resolve_config
from rtlang.runtime.messages import Generate
from rtlang.runtime.sampling.seeds import derive_seed
from rtlang.runtime.sampling_params import SamplingParams
from rtlang.runtime.stream import ChunkQueue, EngineStream
from rtlang.runtime.tokenizer import Tokenizer

#: Interval of a request whose caller waits for the end.
ALL_AT_ONCE = 2**31


class Engine:
    """A model being served in this process (or in a child of it). Thread-safe.

    A context manager; ``close`` ends every request. Raises ``ConfigError`` for a wrong option and
    ``ModelLoadError`` for a model that cannot be loaded.
    """

    def __init__(self, model: str | ModelSource = "smollm2", **config: Any) -> None:
        source = None if isinstance(model, str) else model
        name = model if isinstance(model, str) else type(model).__name__
        self.config = resolve_config(EngineConfig.from_kwargs(model=name, **config), source)
        source = source or load_source(self.config)
        self._use(source.tokenizer, launch(self.config, source))

    @classmethod
    def attach(cls, config: EngineConfig, endpoint: str, death: Callable[[], str | None]) -> Engine:
        """Another handle of a scheduler that runs in a process of its own. ``config``: resolved,
        the scheduler's; ``death``: why the scheduler has ended, None while it lives. Closing it
        ends this handle's requests, not the scheduler."""
        engine = cls.__new__(cls)
        engine.config = config
        engine._use(load_source(config).tokenizer, attach(endpoint, death))
        return engine

    def _use(self, tokenizer: Tokenizer | None, launched: Launched) -> None:
        self._tokenizer = tokenizer
        self._rids: dict[str, str] = {}  # a caller's request id -> ours, while it runs
        self._launched = launched
        self._client = launched.client
        limits = self._client.limits
        self.info = ModelInfo(**{**limits["info"], "eos_ids": frozenset(limits["info"]["eos_ids"])})

    def __repr__(self) -> str:
        state = "closed" if self._client.dead is not None else "running"
        return f"<Engine {self.config.model} {state}>"

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """End every request with ``EngineClosed`` and free the model. Idempotent."""
        self._launched.close()

    @property
    def is_alive(self) -> bool:
        return self._client.dead is None

    @property
    def client_id(self) -> bytes:
        """How the scheduler knows this handle: so that somebody else can tell it of its end."""
        return self._client.id

    @property
    def tokenizer(self) -> Tokenizer:
        """Raises ``Unsupported`` for a model without one."""
        if self._tokenizer is None:
            raise Unsupported("this model has no tokenizer: give token ids", param="tokenizer")
        return self._tokenizer

    @property
    def model_path(self) -> str:
        """The folder that the model runs from; transformers can load it."""
        return self.info.model_path

    # -- generation -------------------------------------------------------------------------

    def generate(
        self,
        prompts: Any,
        sampling_params: Any = None,
        *,
        stream: bool = False,
        raise_errors: bool = True,
        **options: Any,
    ) -> Any:
        """Generate from one prompt (text, ids, or messages) or from a list of prompts.

        Returns a ``GenerateResult``, or a list of them for a list of prompts; where ``n`` > 1,
        a list of n in its place. ``sampling_params``: one for all or a list, a mapping with
        SGLang's names or a ``SamplingParams``. ``stream=True``: an iterator of ``Chunk``.
        Options: ``return_logprob``, ``logprob_start_len``, ``top_logprobs_num``,
        ``token_ids_logprob``, ``rid``, ``priority``, ``timeout`` (seconds), ``cache_salt``,
        ``chat_template_kwargs``. Every refusal is raised before anything is sent. An error while
        running is raised when all have ended; with ``raise_errors=False`` it stands in the list.
        """
        job = self._open(prompts, sampling_params, options, stream=stream)
        if stream:
            return job.iterate()
        return job.results(job.gather(), raise_errors=raise_errors)

    async def async_generate(
        self,
        prompts: Any,
        sampling_params: Any = None,
        *,
        stream: bool = False,
        raise_errors: bool = True,
        **options: Any,
    ) -> Any:
        """``generate`` for event loops; with ``stream=True`` the result is an async iterator."""
        job = self._open(prompts, sampling_params, options, stream=stream)
        if stream:
            return job.aiterate()
        return job.results(await job.agather(), raise_errors=raise_errors)

    def start(
        self,
        input_ids: Sequence[int],
        params: SamplingParams,
        options: CallOptions | None = None,
        *,
        chat: bool = False,
        choice: int = 0,
        interval: int | None = None,
        hold_ms: int = 0,
    ) -> EngineStream:
        """Send one request and return at once. Raises ``RequestError`` for a bad one.

        ``chat``: the model's chat defaults apply. ``choice``: which of n siblings of one seed.
        ``interval``: tokens that a chunk holds at least (none: ``stream_interval``), unless
        ``hold_ms`` > 0 milliseconds have passed since the one before.
        """
        options = options or CallOptions()
        params = self._prepare(params, chat=chat)
        packed = self._check(input_ids, params, options)
        queue = ChunkQueue()
        return self._send(
            packed, params, options, queue, choice=choice, interval=interval, hold_ms=hold_ms
        )

    def announce(
        self, input_ids: Sequence[int], branches: int, options: CallOptions | None = None
    ) -> tuple[str, EngineStream]:
        """Compute a prefix once, and keep it until so many branches were admitted or closed."""
        fork_id = uuid.uuid4().hex
        options = dataclasses.replace(options or CallOptions(), fork_id=fork_id, announce=branches)
        params = SamplingParams(max_new_tokens=0)
        return fork_id, self.start(input_ids, params, options)

    def close_branches(self, fork_id: str, count: int) -> None:
        self._client.close_branches(fork_id, count)

    def abort(self, rid: str) -> None:
        """End the request with this id, exactly; unknown ids are ignored."""
        ours = self._rids.get(rid)
        if ours is not None:
            self._client.abort(ours)

    # -- the engine -------------------------------------------------------------------------

    def stats(self, timeout: float | None = None) -> dict[str, Any]:
        """Counters, queue states and memory; see ``docs/engine.md``. Raises ``DeadlineExceeded``
        where the scheduler has not answered after ``timeout`` seconds."""
        stats: dict[str, Any] = self._client.call("stats", timeout)
        return stats

    def cache_tree(
        self, *, max_nodes: int = 300, max_ids: int = 64, timeout: float | None = None
    ) -> dict[str, Any]:
        """The radix tree as data; see ``runtime.mem.snapshot``."""
        tree: dict[str, Any] = self._client.call(
            "tree", timeout, max_nodes=max_nodes, max_ids=max_ids
        )
        return tree

    def flush_cache(self) -> None:
        """Forget every cached prefix. Raises ``EngineBusy`` while a request runs or waits."""
        self._client.call("flush")

    def start_profile(self, path: str, num_steps: int) -> None:
        """Record the next so many steps with the torch profiler. Raises ``EngineBusy`` while
        another profile is taken."""
        self._client.call("profile", path=path, num_steps=num_steps)

    def finish_profile(self) -> int:
        """Write the trace (for chrome://tracing or Perfetto), however many steps there were;
        returns their number."""
        num_steps: int = self._client.call("finish_profile")
        return num_steps

    def check(self) -> None:
        """Assert the memory law in the scheduler: for tests. A violation kills the scheduler."""
        self._client.call("check")

    # -- inside -----------------------------------------------------------------------------

    def _forget_rid(self, rid: str | None) -> None:
        if rid is not None:
            self._rids.pop(rid, None)

    def _open(
        self, prompts: Any, sampling_params: Any, options: Mapping[str, Any], *, stream: bool
    ) -> Job:
        """Check all requests of a call, then send them all."""
        given, is_batch = split_prompts(prompts)
        call = CallOptions.parse(options)
        if call.rid is not None and len(given) > 1:
            raise InvalidParameter("a rid names one request, not a batch", param="rid")
        asks: list[Ask] = []
        all_params = split_params(sampling_params, len(given))
        for index, (prompt, params) in enumerate(zip(given, all_params, strict=True)):
            try:
                ids, chat = self._encode(prompt, call.chat_template_kwargs)
            except RtlangError as error:
                error.index = index
                raise
            asks.append(Ask(ids, params, call, chat))
        return self.submit(asks, stream=stream, is_batch=is_batch)

    def submit(self, asks: Sequence[Ask], *, stream: bool, is_batch: bool = True) -> Job:
        """Check all requests, then send them all. ``stream``: chunks come as tokens do (see
        ``stream_interval``), else all at the end. Raises the first refusal, with its ``index``,
        before anything is sent."""
        ready: list[tuple[bytes, SamplingParams]] = []
        for index, ask in enumerate(asks):
            try:
                params = self._prepare(ask.params, chat=ask.chat)
                ready.append((self._check(ask.ids, params, ask.options), params))
            except RtlangError as error:
                error.index = index
                raise
        queue = ChunkQueue()
        streams: list[EngineStream] = []
        interval = None if stream else ALL_AT_ONCE
        for index, (packed, params) in enumerate(ready):
            options = asks[index].options
            for choice in range(params.n):
                options_of = options if choice == 0 else dataclasses.replace(options, rid=None)
                where = {"index": index, "choice": choice}
                streams.append(
                    self._send(packed, params, options_of, queue, interval=interval, **where)
                )
        return Job(queue, streams, is_batch=is_batch, ns=[params.n for _, params in ready])

    def _encode(
        self, prompt: Any, template_kwargs: Mapping[str, Any]
    ) -> tuple[Sequence[int], bool]:
        """(ids, is a chat)."""
        if isinstance(prompt, str):
            return self.tokenizer.encode(prompt), False
        if isinstance(prompt, Sequence) and prompt and isinstance(prompt[0], Mapping):
            rendered = self.tokenizer.render_chat(prompt, **template_kwargs)
            return self.tokenizer.encode_rendered(rendered), True
        if not isinstance(prompt, Sequence):
            raise InvalidPrompt(f"a prompt is text, ids or messages, not {type(prompt).__name__}")
        return prompt, False

    def _prepare(self, params: SamplingParams, *, chat: bool) -> SamplingParams:
        params = params.resolve(self.info.chat_defaults if chat else None)
        admission.check_params(params, self.info, has_tokenizer=self._tokenizer is not None)
        return params

    def _check(self, ids: Sequence[int], params: SamplingParams, options: CallOptions) -> bytes:
        """The prompt, packed for the scheduler."""
        admission.check_call(
            priority=options.priority, timeout_s=options.timeout_s, namespace=options.namespace
        )
        packed = admission.pack_prompt(ids, self.info)
        admission.check_length(len(ids), params, self._client.limits)
        if options.logprobs is not None:
            admission.check_logprobs(options.logprobs, len(ids), self.info)
        if options.rid is not None and options.rid in self._rids:
            raise DuplicateRequestId(f"a request with the id {options.rid!r} is running")
        return packed

    def _send(
        self,
        input_ids: bytes,
        params: SamplingParams,
        options: CallOptions,
        queue: ChunkQueue,
        *,
        index: int = 0,
        choice: int = 0,
        interval: int | None = None,
        hold_ms: int = 0,
    ) -> EngineStream:
        if choice and params.sampling_seed is not None:
            seed = derive_seed(params.sampling_seed, choice)
            params = msgspec.structs.replace(params, sampling_seed=seed)
        rid = self._client.new_rid()
        detokenizer = Detokenizer(self._tokenizer, params) if self._tokenizer else None
        stream = EngineStream(
            rid,
            detokenizer,
            self._client.abort,
            queue=queue,
            index=index,
            choice=choice,
            on_end=lambda: self._forget_rid(options.rid),
        )
        message = Generate(
            rid=rid,
            input_ids=input_ids,
            params=params,
            logprobs=options.logprobs,
            namespace=options.namespace,
            priority=options.priority,
            timeout_s=options.timeout_s,
            fork_id=options.fork_id,
            announce=options.announce,
            interval=params.stream_interval if interval is None else interval,
            hold_ms=hold_ms,
        )
        if options.rid is not None:
            self._rids[options.rid] = rid
        self._client.start(message, stream)
        return stream
