"""Connection: how backends ask a server over HTTP: retries where safe, streams of events."""

from __future__ import annotations

import asyncio
import ipaddress
import ssl
import time
import weakref
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any

import msgspec

from rtlang import loop
from rtlang.errors import ConfigError, RtlangError, ServerUnreachable

try:
    import httpx
except ImportError as error:
    raise ImportError("backends over HTTP need httpx: pip install httpx") from error

#: (status, body) of a refusal -> what is raised for it.
ReadError = Callable[[int, bytes], RtlangError]

#: Requests of one backend that run at once; others wait for one of their connections.
MAX_CONNECTIONS = 256
#: An idle connection is dropped before the server drops it: a request on a connection that has
#: just been closed could not be told from one that was lost.
KEEP_ALIVE_S = 20.0
#: Longest wait that a server may ask for before another try, in seconds.
MAX_RETRY_AFTER_S = 60.0
_FIRST_WAIT_S = 0.1
_RETRIED = frozenset({429, 503})


class Connection:
    """Connections to one server, used from the background loop; ``call`` from any thread.

    A request is sent again only where it has certainly done nothing: no connection was made, or
    the server refused it with 429 or 503 and said when to come back. Every wait is bounded:
    connecting by ``connect_timeout``, silence while reading by ``timeout``, in seconds.
    """

    def __init__(
        self,
        url: str,
        headers: Mapping[str, str],
        read_error: ReadError,
        *,
        timeout: float,
        connect_timeout: float,
        retries: int,
        verify: bool | str | ssl.SSLContext = True,
    ) -> None:
        """``verify``: of TLS certificates: False, or a file with those to trust. Raises
        ``ConfigError`` for what is no address."""
        self.url = url.rstrip("/")
        _check_url(self.url)
        if not timeout > 0 or not connect_timeout > 0 or retries < 0:
            raise ConfigError("timeouts must be above 0, and retries at least 0")
        self._headers = dict(headers)
        self._read_error = read_error
        self._timeout = httpx.Timeout(timeout, connect=connect_timeout, pool=None)
        self._retries = retries
        self._options: dict[str, Any] = {
            "verify": ssl.create_default_context(cafile=verify)
            if isinstance(verify, str)
            else verify,
            # A proxy of the environment is not for a server on this machine.
            "trust_env": not _is_loopback(self.url),
        }
        self._clients: dict[asyncio.AbstractEventLoop, httpx.AsyncClient] = {}
        weakref.finalize(self, _close_later, self._clients).atexit = False

    # -- in the background loop ---------------------------------------------------------------

    async def post(self, path: str, body: Any, *, timeout: float) -> bytes:
        """The answer's body, within ``timeout`` seconds. Not sent twice."""
        request = self._request(self._client(), path, body)
        request.extensions["timeout"] = httpx.Timeout(timeout).as_dict()
        try:
            response = await self._client().send(request)
        except httpx.TransportError as error:
            raise self._broken(error) from error
        if response.is_error:
            raise self._read_error(response.status_code, response.content)
        return response.content

    async def events(
        self, path: str, body: Any, *, until: float | None = None
    ) -> AsyncGenerator[bytes, None]:
        """The data of each server-sent event of the answer. No other try begins after ``until``
        (a time of the monotonic clock).

        Raises what the server refused with, or ``ServerUnreachable``.
        """
        response = await self._open(path, body, until)
        try:
            async for data in _data_of_events(response):
                yield data
        except httpx.TransportError as error:
            raise self._broken(error) from error
        finally:
            await response.aclose()

    async def _open(self, path: str, body: Any, until: float | None) -> httpx.Response:
        client, attempt = self._client(), 0
        while True:
            try:
                response = await client.send(self._request(client, path, body), stream=True)
                if not response.is_error:
                    return response
                content = await response.aread()
                failed, delay = self._refused(response, content)
            except httpx.TransportError as error:
                failed, delay = self._lost(error, attempt)
            attempt += 1
            if delay is None or attempt > self._retries:
                raise failed
            if until is not None and time.monotonic() + delay >= until:
                raise failed
            await asyncio.sleep(delay)

    async def aclose(self) -> None:
        client = self._clients.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.aclose()

    # -- from any thread ----------------------------------------------------------------------

    def call(self, path: str, body: Any = None) -> bytes:
        """Ask and wait, with the same retries: GET without a body, POST with one."""
        attempt = 0
        with httpx.Client(timeout=self._timeout, **self._options) as client:
            while True:
                try:
                    response = client.send(self._request(client, path, body))
                    if not response.is_error:
                        return response.content
                    failed, delay = self._refused(response, response.content)
                except httpx.TransportError as error:
                    failed, delay = self._lost(error, attempt)
                attempt += 1
                if delay is None or attempt > self._retries:
                    raise failed
                time.sleep(delay)

    # -- inside -------------------------------------------------------------------------------

    def _refused(
        self, response: httpx.Response, content: bytes
    ) -> tuple[RtlangError, float | None]:
        """(what the server says, seconds until the next try; None: there is none)."""
        return self._read_error(response.status_code, content), _asked_delay(response)

    def _lost(self, error: httpx.TransportError, attempt: int) -> tuple[RtlangError, float | None]:
        """The same for a try that got no answer: another one only if it was certainly not sent."""
        failed = self._broken(error)
        failed.__cause__ = error
        return failed, None if failed.data["sent"] else _FIRST_WAIT_S * 2**attempt

    def _client(self) -> httpx.AsyncClient:
        """The running loop's own: after a fork of the process there is a new loop."""
        running = asyncio.get_running_loop()
        if running not in self._clients:
            self._clients.clear()
            limits = httpx.Limits(
                max_connections=MAX_CONNECTIONS,
                max_keepalive_connections=MAX_CONNECTIONS,
                keepalive_expiry=KEEP_ALIVE_S,
            )
            self._clients[running] = httpx.AsyncClient(
                timeout=self._timeout, limits=limits, **self._options
            )
        return self._clients[running]

    def _request(
        self, client: httpx.Client | httpx.AsyncClient, path: str, body: Any
    ) -> httpx.Request:
        if body is None:
            return client.build_request("GET", self.url + path, headers=self._headers)
        return client.build_request(
            "POST",
            self.url + path,
            headers={**self._headers, "content-type": "application/json"},
            content=msgspec.json.encode(body),
        )

    def _broken(self, error: httpx.TransportError) -> ServerUnreachable:
        """``sent``: whether the server may have got the request."""
        sent = not isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout)
        if isinstance(error, httpx.ReadTimeout):
            text = f"sent nothing for {self._timeout.read} s"
        elif sent:
            text = f"the connection broke: {error or type(error).__name__}"
        else:
            text = f"no connection: {error or type(error).__name__}"
        return ServerUnreachable(f"{self.url}: {text}", sent=sent)


async def _data_of_events(response: httpx.Response) -> AsyncGenerator[bytes, None]:
    """Lines end with a line feed alone: JSON may hold what else Unicode takes for a line's end."""
    buffer, start = bytearray(), 0
    data: list[bytes] = []
    async for part in response.aiter_bytes():
        buffer += part
        at = 0
        while (end := buffer.find(b"\n", max(start, at))) >= 0:
            line = bytes(buffer[at:end]).rstrip(b"\r")
            at = end + 1
            if line.startswith(b"data:"):
                data.append(line[5:].removeprefix(b" "))
            elif not line and data:
                yield b"\n".join(data)
                data = []
        del buffer[:at]
        start = len(buffer)  # searched


def _asked_delay(response: httpx.Response) -> float | None:
    """Seconds after which the server wants to be asked again; None: it has not said."""
    if response.status_code not in _RETRIED:
        return None
    try:
        seconds = float(response.headers.get("retry-after", ""))
    except ValueError:  # a date, or nothing
        return None
    return seconds if 0 <= seconds <= MAX_RETRY_AFTER_S else None


def _check_url(url: str) -> None:
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise ConfigError(f"{url!r} is no address: {error}") from error
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise ConfigError(f"{url!r} is no address such as http://localhost:30000")


def _is_loopback(url: str) -> bool:
    host = httpx.URL(url).host
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


_closing: set[asyncio.Task[None]] = set()


def _close_later(clients: dict[asyncio.AbstractEventLoop, httpx.AsyncClient]) -> None:
    """In the loop, since a finalizer may run anywhere."""

    def close() -> None:
        client = clients.pop(asyncio.get_running_loop(), None)
        if client is not None:
            task = asyncio.get_running_loop().create_task(client.aclose())
            _closing.add(task)
            task.add_done_callback(_closing.discard)

    if clients:
        loop.call_soon(close)
