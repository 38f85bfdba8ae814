"""Limits per key: buckets on a clock of the test's, and 429 over HTTP."""

from __future__ import annotations

import asyncio
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from server_harness import RunningServer, serving

from rtlang.errors import PromptTooLong, RateLimited
from rtlang.runtime.server.channel import Channel
from rtlang.runtime.server.coordinator import Coordinator
from rtlang.runtime.server.keys import ANYBODY, Principal
from rtlang.runtime.server.limits import Bucket, LocalLimiter
from rtlang.runtime.server.relay import Relay
from rtlang.testing import Reply, ScriptedModel


class Clock:
    def __init__(self) -> None:
        self.time = 1000.0

    def __call__(self) -> float:
        return self.time


def key(name: str = "a", **limits: Any) -> Principal:
    return Principal(name=name, operator=False, **limits)


def refused(limiter: LocalLimiter, principal: Principal, num_tokens: int = 0) -> RateLimited:
    with pytest.raises(RateLimited) as caught:
        limiter.admit(principal, num_tokens)
    return caught.value


def test_requests_a_minute_and_a_retry_after_that_is_true() -> None:
    clock = Clock()
    limiter = LocalLimiter(clock)
    user = key(requests_per_minute=6)
    for _ in range(6):
        limiter.admit(user, 0)
    clock.time += 0.5
    assert refused(limiter, user).data["retry_after"] == 10  # 9.5 s, in whole seconds
    clock.time += 9.4
    refused(limiter, user)
    clock.time += 0.2
    limiter.admit(user, 0)
    refused(limiter, user)


def test_after_the_time_that_it_was_told_a_request_is_admitted() -> None:
    clock = Clock()
    limiter = LocalLimiter(clock)
    user = key(tokens_per_minute=700, requests_per_minute=1000)
    for num_tokens in (700, 13, 650, 1, 99, 700):
        while True:
            try:
                limiter.admit(user, num_tokens)
                break
            except RateLimited as error:
                clock.time += error.data["retry_after"]
                limiter.admit(user, num_tokens)
                break
        limiter.leave(user, 37)


def test_a_completion_is_charged_when_it_is_known_and_may_cost_more_than_was_left() -> None:
    clock = Clock()
    limiter = LocalLimiter(clock)
    user = key(tokens_per_minute=60)
    limiter.admit(user, 50)
    limiter.leave(user, 40)  # 30 below zero
    assert refused(limiter, user, 10).data["retry_after"] == 40
    clock.time += 40
    limiter.admit(user, 10)


def test_what_is_refused_costs_nothing() -> None:
    clock = Clock()
    limiter = LocalLimiter(clock)
    user = key(requests_per_minute=2, tokens_per_minute=10, concurrency=1)
    limiter.admit(user, 10)
    for _ in range(5):
        refused(limiter, user, 1)  # no tokens are left
    clock.time += 6.0  # one token; the request's place is still held
    assert "run" in refused(limiter, user, 1).message
    limiter.leave(user, 0)
    limiter.admit(user, 1)


def test_a_request_larger_than_the_bucket_is_refused_as_such() -> None:
    limiter = LocalLimiter(Clock())
    with pytest.raises(PromptTooLong, match=r"11 prompt tokens.* 10 a minute") as caught:
        limiter.admit(key(tokens_per_minute=10), 11)
    assert caught.value.data["limit"] == 10


def test_concurrency_is_given_back() -> None:
    limiter = LocalLimiter(Clock())
    user = key(concurrency=2)
    limiter.admit(user, 5)
    limiter.admit(user, 5)
    assert refused(limiter, user).data["retry_after"] == 1
    limiter.leave(user, 3)
    limiter.admit(user, 5)
    assert limiter.running("a") == 2


def test_keys_do_not_share_and_anybody_without_limits_is_not_counted() -> None:
    limiter = LocalLimiter(Clock())
    limiter.admit(key("a", concurrency=1), 0)
    limiter.admit(key("b", concurrency=1), 0)
    for _ in range(1000):
        limiter.admit(ANYBODY, 10**9)
    limiter.leave(ANYBODY, 10**9)
    assert limiter.running("") == 0


def test_a_limit_that_changes_keeps_what_was_used() -> None:
    clock = Clock()
    bucket = Bucket(100, clock())
    bucket.take(90, clock())
    bucket.resize(40, clock())  # 90 are used: 50 too many
    assert bucket.wait_s(1, clock()) == pytest.approx(51 * 60 / 40)
    bucket.resize(200, clock())
    assert bucket.wait_s(110, clock()) == 0


def test_a_bucket_never_holds_more_than_its_capacity() -> None:
    bucket = Bucket(10, 0.0)
    bucket.take(10, 1e6)
    assert bucket.wait_s(10, 1e6) == 60


def generate(server: RunningServer, **options: object) -> httpx.Response:
    body = {"text": "abc", "sampling_params": {"max_new_tokens": 4}, **options}
    return httpx.post(f"{server.url}/generate", json=body)


def test_over_http_a_limit_is_429_with_retry_after_in_both_ways() -> None:
    with serving(ScriptedModel(lambda _: "fine"), requests_per_minute=2) as server:
        assert [generate(server).status_code for _ in range(2)] == [200, 200]
        answers = [generate(server, stream=stream) for stream in (False, True)]
        for answer in answers:
            assert answer.status_code == 429
            assert 1 <= int(answer.headers["retry-after"]) <= 30
            error = answer.json()["error"]
            assert (error["type"], error["code"]) == ("rate_limit_error", "rate_limit_exceeded")
        assert answers[0].json()["error"]["message"] == answers[1].json()["error"]["message"]


def test_over_http_a_prompt_that_never_fits_is_400() -> None:
    with serving(ScriptedModel(lambda _: "fine"), tokens_per_minute=10) as server:
        answer = generate(server, text="x" * 11)
        assert answer.status_code == 400
        assert "retry-after" not in answer.headers
        assert generate(server).status_code == 200


def test_over_http_every_way_out_gives_the_place_back() -> None:
    script = ScriptedModel(
        lambda p: Reply("x" * 9, eos=False) if "long" in p else "fine", step_s=0.005
    )
    with serving(script, concurrency=1) as server:
        url = f"{server.url}/generate"
        long = {"text": "long", "sampling_params": {"max_new_tokens": 3000}}
        with httpx.stream("POST", url, json={**long, "stream": True}) as answer:
            lines = answer.iter_lines()  # which closes the connection when it goes
            next(lines)
            assert generate(server).status_code == 429
        server.wait_idle()  # it left in the middle
        bad = generate(server, sampling_params={"max_new_tokens": 4, "logit_bias": {"99999": 1}})
        assert bad.status_code == 400
        assert generate(server, text="x" * 9000).status_code == 400
        with ThreadPoolExecutor() as pool:
            stopped = pool.submit(httpx.post, url, json={**long, "rid": "one"}, timeout=60)
            while "one" not in server.state.running:
                time.sleep(0.005)
            httpx.post(f"{server.url}/abort_request", json={"rid": "one"})
            assert stopped.result().status_code >= 500
        assert generate(server).status_code == 200


def test_a_call_that_is_given_up_while_it_waits_for_the_others_is_given_back() -> None:
    asyncio.run(_given_up())


async def _given_up() -> None:
    """The frontend asks; whoever asked has gone when the answer comes."""
    ours, theirs = socket.socketpair()
    limiter = LocalLimiter()
    coordinator = Coordinator(limiter, lambda _: None, 1)
    serving = asyncio.create_task(coordinator.serve(await Channel.open(ours)))
    channel = await Channel.open(theirs)
    relay = Relay(channel)
    listening = asyncio.create_task(relay.listen(None, lambda: None))  # type: ignore[arg-type]
    user = key(concurrency=1)
    asking = asyncio.create_task(relay.enter(user, 1))
    await asyncio.sleep(0)
    asking.cancel()
    while limiter.running("a") or not asking.done():
        await asyncio.sleep(0.001)
    await relay.enter(user, 1)
    with pytest.raises(RateLimited) as caught:
        await relay.enter(user, 1)
    assert caught.value.data["retry_after"] == 1
    channel.close()
    await serving  # the frontend has ended: what it held is free
    assert limiter.running("a") == 0
    await listening
