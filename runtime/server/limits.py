"""Limits per key: requests and tokens a minute, requests at once."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Protocol

from rtlang.errors import PromptTooLong, RateLimited
from rtlang.runtime.server.keys import Principal
from rtlang.runtime.server.record import now

#: Nobody knows when a running request ends: a client asks again after so many seconds.
ASK_AGAIN_S = 1


class Limiter(Protocol):
    """Admits calls. ``leave`` follows every ``enter`` that did not raise, exactly once."""

    async def enter(self, principal: Principal, num_tokens: int) -> None:
        """Admit one call of so many prompt tokens. Raises ``RateLimited`` with the time after
        which it would be admitted, or ``PromptTooLong`` where no time would do."""
        ...

    def leave(self, principal: Principal, num_tokens: int) -> None:
        """It has ended, with so many completion tokens."""
        ...


class Bucket:
    """So much a minute, and at most so much at once: full at first, filled up steadily."""

    def __init__(self, capacity: int, time: float) -> None:
        self.capacity = capacity
        self._level = float(capacity)  # below zero: completions cost more than was left
        self._time = time

    def wait_s(self, amount: int, time: float) -> float:
        """Seconds until it holds so much, if nobody takes anything meanwhile."""
        assert amount <= self.capacity, (amount, self.capacity)
        self._fill(time)
        return max(0.0, (amount - self._level) * 60 / self.capacity)

    def take(self, amount: int, time: float) -> None:
        self._fill(time)
        self._level -= amount

    def resize(self, capacity: int, time: float) -> None:
        """A new limit: what was used stays used."""
        self._fill(time)
        self._level += capacity - self.capacity
        self.capacity = capacity

    def _fill(self, time: float) -> None:
        gained = (time - self._time) * self.capacity / 60
        self._level = min(float(self.capacity), self._level + gained)
        self._time = time


@dataclasses.dataclass(slots=True)
class _Account:
    """What one key has used. A bucket is None where its limit is."""

    requests: Bucket | None = None
    tokens: Bucket | None = None
    running: int = 0


class LocalLimiter:
    """Counts in this process. Time is the monotonic clock's, in seconds."""

    def __init__(self, clock: Callable[[], float] = now) -> None:
        self._clock = clock
        self._accounts: dict[str, _Account] = {}

    async def enter(self, principal: Principal, num_tokens: int) -> None:
        self.admit(principal, num_tokens)

    def admit(self, principal: Principal, num_tokens: int) -> None:
        """``enter``, for those who need not wait. What is refused costs nothing."""
        if not principal.is_limited:
            return
        time = self._clock()
        account = self._accounts.setdefault(principal.name, _Account())
        account.requests = _bucket(account.requests, principal.requests_per_minute, time)
        account.tokens = _bucket(account.tokens, principal.tokens_per_minute, time)
        if account.tokens is not None and num_tokens > account.tokens.capacity:
            limit = account.tokens.capacity
            raise PromptTooLong(
                f"{num_tokens} prompt tokens, and this key may use {limit} a minute", limit=limit
            )
        for bucket, amount, what in (
            (account.requests, 1, "requests"),
            (account.tokens, num_tokens, "tokens"),
        ):
            if bucket is not None and (wait := bucket.wait_s(amount, time)) > 0:
                text = f"this key may use {bucket.capacity} {what} a minute"
                raise RateLimited(text, retry_after=max(1, math.ceil(wait)))
        most = principal.concurrency
        if most is not None and account.running >= most:
            text = f"{account.running} requests of this key run, of {most} that may"
            raise RateLimited(text, retry_after=ASK_AGAIN_S)
        if account.requests is not None:
            account.requests.take(1, time)
        if account.tokens is not None:
            account.tokens.take(num_tokens, time)
        account.running += 1

    def leave(self, principal: Principal, num_tokens: int) -> None:
        if not principal.is_limited:
            return
        account = self._accounts[principal.name]
        account.running -= 1
        assert account.running >= 0, principal.name
        if account.tokens is not None:
            account.tokens.take(num_tokens, self._clock())

    def running(self, name: str) -> int:
        """Calls of this key that have entered and not left."""
        account = self._accounts.get(name)
        return account.running if account is not None else 0


def _bucket(bucket: Bucket | None, capacity: int | None, time: float) -> Bucket | None:
    """The bucket for this limit, which may have changed."""
    if capacity is None:
        return None
    if bucket is None:
        return Bucket(capacity, time)
    if bucket.capacity != capacity:
        bucket.resize(capacity, time)
    return bucket
