"""Sends a workload to any server that speaks OpenAI's chat API, each request at its time."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from typing import Any

import httpx

from rtlang.errors import ConfigError
from rtlang.loadtest.report import Outcome
from rtlang.loadtest.workload import Load

#: Seconds between two bytes of an answer (or its start), after which it counts as failed.
SILENCE_S = 600.0


class LoadClient:
    """``ignore_eos``: answers have exactly their ``max_tokens``; servers that do not know the
    field refuse it."""

    def __init__(
        self, url: str, *, model: str | None, api_key: str | None, ignore_eos: bool
    ) -> None:
        self._url = url.rstrip("/")
        self._model = model
        self._ignore_eos = ignore_eos
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}

    async def run(self, loads: Sequence[Load]) -> list[Outcome]:
        """Open loop: a late answer delays no later request."""
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        timeout = httpx.Timeout(SILENCE_S, connect=30.0, pool=None)
        async with httpx.AsyncClient(
            base_url=self._url, headers=self._headers, limits=limits, timeout=timeout
        ) as http:
            model = self._model or await self._served_model(http)
            start = time.monotonic()
            tasks: list[asyncio.Task[Outcome]] = []
            for load in loads:
                due = start + load.at
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                tasks.append(asyncio.create_task(self._one(http, model, load, due)))
            return list(await asyncio.gather(*tasks))

    async def _served_model(self, http: httpx.AsyncClient) -> str:
        try:
            answer = await http.get("/v1/models")
            answer.raise_for_status()
            name: str = answer.json()["data"][0]["id"]
        except (httpx.HTTPError, ValueError, KeyError, IndexError, TypeError) as error:
            raise ConfigError(f"{self._url} does not name its model: {error!r}") from error
        return name

    async def _one(self, http: httpx.AsyncClient, model: str, load: Load, due: float) -> Outcome:
        body: dict[str, Any] = {
            "model": model,
            "messages": [{"role": role, "content": text} for role, text in load.messages],
            "max_tokens": load.max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self._ignore_eos:
            body["ignore_eos"] = True
        outcome = Outcome(due=due, sent=time.monotonic())
        try:
            async with http.stream("POST", "/v1/chat/completions", json=body) as answer:
                outcome.first_byte = time.monotonic()
                if answer.status_code != 200:
                    await answer.aread()
                    outcome.error = f"HTTP {answer.status_code}"
                else:
                    await _read(answer, outcome)
        except (httpx.HTTPError, ValueError, KeyError, TypeError, AttributeError) as error:
            outcome.error = type(error).__name__  # lost, or no chat completion
        outcome.end = time.monotonic()
        return outcome


async def _read(answer: httpx.Response, outcome: Outcome) -> None:
    done = False
    async for line in answer.aiter_lines():
        if not line.startswith("data:"):
            continue
        now, data = time.monotonic(), line[5:].strip()
        if data == "[DONE]":
            done = True
            continue
        event = json.loads(data)
        if "error" in event:
            outcome.error = str(event["error"].get("code") or "error event")
            return
        if usage := event.get("usage"):
            outcome.prompt_tokens = usage["prompt_tokens"]
            outcome.completion_tokens = usage["completion_tokens"]
            details = usage.get("prompt_tokens_details") or {}
            outcome.cached_tokens = details.get("cached_tokens") or 0
        if any(_visible(choice.get("delta") or {}) for choice in event.get("choices", ())):
            outcome.deltas.append(now)
    if not done:
        outcome.error = "the stream broke off"


def _visible(delta: dict[str, Any]) -> bool:
    names = ("content", "reasoning_content", "reasoning", "tool_calls")
    return any(delta.get(name) for name in names)
