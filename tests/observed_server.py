"""A server whose calls are followed by metrics, usage rows and traces; and calls to follow."""

from __future__ import annotations

import concurrent.futures
import contextlib
from collections.abc import Iterator
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families
from server_harness import RunningServer, serving

from rtlang.errors import EngineError
from rtlang.runtime.server.config import ServerConfig
from rtlang.runtime.server.keys import KeyStore
from rtlang.runtime.server.limits import LocalLimiter
from rtlang.runtime.server.observability import attach_observability
from rtlang.runtime.server.record import CallRecord
from rtlang.runtime.server.state import ServerState
from rtlang.testing import Reply

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


@contextlib.contextmanager
def observed(model: Any, **options: Any) -> Iterator[RunningServer]:
    """``serving``, with whatever follows the calls attached."""
    with serving(model, **options) as server:
        close = None
        if server.state.observability is None:
            close = attach_observability(server.state)
        yield server
        server.wait_idle()
        if close is not None:
            close()


def make_state(**config: Any) -> ServerState:
    options = ServerConfig(**config)
    return ServerState(options, KeyStore(options), LocalLimiter())


def parse(page: str) -> Samples:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def scraped(server: RunningServer) -> Samples:
    reply = httpx.get(server.url + "/metrics", verify=False)
    assert reply.status_code == 200
    assert reply.headers["content-type"].startswith("text/plain")
    return parse(reply.text)


def value(samples: Samples, name: str, **labels: str) -> float:
    return samples.get((name, tuple(sorted(labels.items()))), 0.0)


def post(server: RunningServer, body: dict[str, Any]) -> httpx.Response:
    # No certificates are read, which takes longer than all the rest.
    return httpx.post(server.url + "/generate", json=body, timeout=30, verify=False)


def generate(server: RunningServer, text: str, **body: Any) -> httpx.Response:
    params = {"max_new_tokens": 64, **body.pop("sampling_params", {})}
    body = {"text": text, "sampling_params": params, **body}
    return post(server, body)


def leave_early(server: RunningServer, text: str, **params: Any) -> None:
    """Close the connection after the first delta."""
    body = {"text": text, "stream": True, "sampling_params": {"max_new_tokens": 4000, **params}}
    with httpx.stream(
        "POST", server.url + "/generate", json=body, timeout=30, verify=False
    ) as reply:
        for line in reply.iter_lines():
            if line:
                break


def mixed_script(prompt: str) -> Reply | str:
    if prompt.endswith("broken"):
        return Reply(error=EngineError("broken"))
    if prompt.endswith("long"):
        return "x" * 200
    if prompt.endswith("endless"):
        return Reply("ab" * 2000, eos=False)
    return "fine answer"


def mixed_calls(server: RunningServer) -> None:
    """Good ones, of one sequence and more, and all ways to end badly."""
    shared = "shared " * 30
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        jobs: list[concurrent.futures.Future[Any]] = [
            pool.submit(generate, server, shared + "one"),
            pool.submit(generate, server, shared + "two", sampling_params={"n": 3}),
            pool.submit(generate, server, shared + "three", stream=True),
            pool.submit(generate, server, shared + "broken"),
            pool.submit(generate, server, shared + "broken", stream=True, sampling_params={"n": 2}),
            pool.submit(generate, server, shared + "endless", timeout=0.05,
                        sampling_params={"max_new_tokens": 4000}),
            pool.submit(generate, server, shared, sampling_params={"max_new_tokens": -1}),
            pool.submit(leave_early, server, shared + "endless", n=2),
            pool.submit(leave_early, server, "other endless"),
        ]  # fmt: skip
        batch = {"text": ["good", "broken", "endless"], "sampling_params": {"max_new_tokens": 99}}
        jobs.append(pool.submit(post, server, batch))
        for job in jobs:
            job.result()
    server.wait_idle()


def call(**changes: Any) -> CallRecord:
    known: dict[str, Any] = {
        "request_id": "x", "route": "/generate", "key": "", "model": "m", "stream": True,
        "num_sequences": 1, "received": 100.0, "sent": 100.5,
    }  # fmt: skip
    return CallRecord(**(known | changes))
