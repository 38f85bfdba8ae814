"""What the server costs around a model that costs nothing: deltas and requests per second.

    python benchmarks/server.py streams requests soak [--json FILE]

streams   64 streams of 400 tokens at once: deltas per second of wall clock, and per second of
          CPU time of the HTTP process, which is the figure of one frontend on one core
requests  64 connections, each one short request after the other
soak      20,000 mixed requests: plain, streamed, n > 1, left early, aborted, wrong; counts what
          came of each, and looks at memory after every 5,000
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).parent.parent
if str(ROOT) not in sys.path:  # run as a script: only this folder is
    sys.path.insert(1, str(ROOT))

from benchmarks.server_process import ServerProcess, server_process  # noqa: E402

MODEL = "scripted_models:babble"
#: A model that is faster than its clients read would only fill queues.
SOAK_MODEL = "scripted_models:talk"
NUM_STREAMS, STREAM_TOKENS, REPEATS = 64, 400, 3
NUM_CONNECTIONS, REQUESTS_S = 64, 10.0
SOAK_REQUESTS, SOAK_STEP, SOAK_AT_ONCE = 20_000, 5_000, 64

Body = dict[str, Any]


def chat(tokens: int, **more: Any) -> Body:
    messages = [{"role": "user", "content": more.pop("content", "abc")}]
    return {"messages": messages, "max_tokens": tokens, **more}


# -- streams ----------------------------------------------------------------------------------


def read_stream(server: ServerProcess, path: str, body: Body, counts: list[int]) -> None:
    """Count events on a bare socket: an HTTP client would cost more than the server."""
    data = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        f"Connection: close\r\nContent-Length: {len(data)}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(head.encode() + data)
        count, rest = 0, b""
        while received := connection.recv(1 << 16):
            received = rest + received
            count += received.count(b"data: ")
            rest = received[-5:] if received[-5:] in (b"data:",) else b""
        counts.append(count)


def streams(server: ServerProcess) -> Body:
    paths = {
        "/v1/chat/completions": chat(STREAM_TOKENS, stream=True),
        "/generate": {
            "text": "abc", "stream": True, "incremental": True,
            "sampling_params": {"max_new_tokens": STREAM_TOKENS},
        },
    }  # fmt: skip
    figures: Body = {}
    for path, body in paths.items():
        best_wall = best_cpu = 0.0
        for _ in range(REPEATS):
            counts: list[int] = []
            cpu, start = server.cpu_s(), time.perf_counter()
            threads = [
                threading.Thread(target=read_stream, args=(server, path, body, counts))
                for _ in range(NUM_STREAMS)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            seconds, spent = time.perf_counter() - start, server.cpu_s() - cpu
            assert sum(counts) >= NUM_STREAMS * STREAM_TOKENS, counts
            best_wall = max(best_wall, sum(counts) / seconds)
            best_cpu = max(best_cpu, sum(counts) / spent)
        figures[path] = {"deltas_per_s": best_wall, "deltas_per_cpu_s": best_cpu}
    return figures


# -- requests ---------------------------------------------------------------------------------


async def _loop(server: ServerProcess, body: bytes, until: float) -> int:
    """One connection, kept open, one request after the other."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    ).encode()
    done = 0
    while time.perf_counter() < until:
        writer.write(head + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200"), answer
        length = next(
            int(line[15:]) for line in answer.lower().split(b"\r\n") if b"content-length" in line
        )
        await reader.readexactly(length)
        done += 1
    writer.close()
    return done


def requests(server: ServerProcess) -> Body:
    async def run() -> int:
        until = time.perf_counter() + REQUESTS_S
        body = json.dumps(chat(2)).encode()
        return sum(await asyncio.gather(*(_loop(server, body, until) for _ in range(64))))

    cpu, start = server.cpu_s(), time.perf_counter()
    done = asyncio.run(run())
    seconds, spent = time.perf_counter() - start, server.cpu_s() - cpu
    return {
        "connections": NUM_CONNECTIONS,
        "requests_per_s": done / seconds,
        "requests_per_cpu_s": done / spent,
    }


# -- soak -------------------------------------------------------------------------------------


async def _plain(http: httpx.AsyncClient, rng: random.Random, number: int) -> str:
    tokens, n = rng.randint(1, 40), rng.choice([1, 1, 1, 2, 3])
    text = rng.choice(["a shared beginning ", "another one "]) + str(number)
    answer = await http.post("/v1/chat/completions", json=chat(tokens, n=n, content=text))
    choices = answer.json()["choices"]
    assert answer.status_code == 200 and len(choices) == n, answer.text
    assert all(len(c["message"]["content"]) == tokens for c in choices), answer.text
    return f"answered, n={n}"


async def _streamed(http: httpx.AsyncClient, rng: random.Random, number: int) -> str:
    tokens = rng.randint(1, 40)
    body = chat(tokens, stream=True, content=f"stream {number}")
    text, ends = "", 0
    async with http.stream("POST", "/v1/chat/completions", json=body) as answer:
        async for line in answer.aiter_lines():
            if line == "data: [DONE]":
                ends += 1
            elif line.startswith("data: "):
                text += json.loads(line[6:])["choices"][0]["delta"].get("content") or ""
    assert len(text) == tokens and ends == 1, (text, ends)
    return "streamed"


async def _left(http: httpx.AsyncClient, rng: random.Random, number: int) -> str:
    body = chat(2000, stream=True, content=f"left {number}")
    async with http.stream("POST", "/v1/chat/completions", json=body) as answer:
        lines = answer.aiter_lines()
        for _ in range(rng.randint(1, 6)):
            await anext(lines)
    return "left early"


async def _aborted(http: httpx.AsyncClient, rng: random.Random, number: int) -> str:
    body = {"text": f"abort {number}", "rid": f"soak-{number}", "stream": True,
            "incremental": True, "sampling_params": {"max_new_tokens": 4000}}  # fmt: skip
    async with http.stream("POST", "/generate", json=body) as answer:
        lines = answer.aiter_lines()
        await anext(lines)
        aborting = await http.post("/abort_request", json={"rid": f"soak-{number}"})
        events = [line async for line in lines if line]
    told = (answer.status_code, aborting.status_code, events[-2:])
    assert events[-1] == "data: [DONE]" and '"code":"aborted"' in events[-2], told
    return "aborted"


async def _wrong(http: httpx.AsyncClient, rng: random.Random, number: int) -> str:
    bodies: list[Any] = [
        b"{", b"[]", chat(-1), chat(5, n=0), {"model": SOAK_MODEL}, chat(5, nonsense=1),
        chat(5, content="x" * 20_000), {**chat(5), "model": "none"},
    ]  # fmt: skip
    body = rng.choice(bodies)
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    answer = await http.post("/v1/chat/completions", content=content, headers=headers)
    assert answer.status_code in (400, 404), (answer.status_code, body)
    return f"refused, {answer.status_code}"


_KINDS = (_plain, _plain, _plain, _streamed, _streamed, _left, _aborted, _wrong)


async def _soak_part(
    server: ServerProcess, numbers: range, counts: Counter[str], rng: random.Random
) -> None:
    gate = asyncio.Semaphore(SOAK_AT_ONCE)
    limits = httpx.Limits(max_connections=2 * SOAK_AT_ONCE)
    async with httpx.AsyncClient(base_url=server.url, limits=limits, timeout=120) as http:

        async def one(number: int) -> None:
            async with gate:
                counts[await rng.choice(_KINDS)(http, rng, number)] += 1

        await asyncio.gather(*(one(number) for number in numbers))


def soak(server: ServerProcess) -> Body:
    """Raises at the first request that gets another answer than it should."""
    counts: Counter[str] = Counter()
    rng = random.Random(0)
    memory: dict[int, dict[str, float]] = {}
    start = time.perf_counter()
    for first in range(0, SOAK_REQUESTS, SOAK_STEP):
        asyncio.run(_soak_part(server, range(first, first + SOAK_STEP), counts, rng))
        stats = server.settled()
        balance = stats["free_len"] + stats["evictable_len"] - stats["total_len"]
        assert balance == 0 and stats["locked_len"] == stats["num_rows_used"] == 0, stats
        memory[first + SOAK_STEP] = server.rss_mib()
        print(f"  {first + SOAK_STEP}: {memory[first + SOAK_STEP]}", flush=True)
    assert sum(counts.values()) == SOAK_REQUESTS
    early, late = memory[SOAK_STEP], memory[SOAK_REQUESTS]
    return {
        "requests": SOAK_REQUESTS,
        "seconds": time.perf_counter() - start,
        "outcomes": dict(sorted(counts.items())),
        "rss_mib": memory,
        "rss_growth": sum(late.values()) / sum(early.values()) - 1,
    }


WORKLOADS: dict[str, Callable[[ServerProcess], Body]] = {
    "streams": streams,
    "requests": requests,
    "soak": soak,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workloads", nargs="+", choices=WORKLOADS)
    parser.add_argument("--json", type=Path, help="save the figures here")
    args = parser.parse_args()
    figures: Body = {}
    for name in args.workloads:
        with server_process(SOAK_MODEL if name == "soak" else MODEL) as server:
            figures[name] = WORKLOADS[name](server)
        print(name, json.dumps(figures[name], indent=1), flush=True)
    if args.json:
        args.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
