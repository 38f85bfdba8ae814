"""Health, information and control: what operators and load balancers ask."""

from __future__ import annotations

import asyncio
import dataclasses
import importlib.metadata
import urllib.parse
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from pydantic import Field
from starlette.responses import Response

from rtlang.errors import EngineError, NotAllowed, RtlangError, ServerUnavailable
from rtlang.runtime.engine import Engine
from rtlang.runtime.job import Ask, CallOptions
from rtlang.runtime.sampling_params import SamplingParams
from rtlang.runtime.server.body import Body
from rtlang.runtime.server.config import ServerConfig
from rtlang.runtime.server.generation import MAX_RID_LEN
from rtlang.runtime.server.replies import Json
from rtlang.runtime.server.state import principal_of, server_of
from rtlang.runtime.server.threads import in_thread

router = APIRouter()

#: Seconds that the scheduler gets to answer a question about itself.
ANSWER_S = 5.0
#: Seconds that it gets for one token, in ``/health_generate``.
GENERATE_S = 10.0
#: The longest that ``/flush_cache`` waits, in seconds.
MAX_FLUSH_S = 3600.0


def check_operator(request: Request) -> None:
    """Raises ``NotAllowed`` for a key that is not an operator's."""
    if not principal_of(request.scope).operator:
        raise NotAllowed("this needs an operator's key")


@router.get("/health")
@router.get("/ready")
@router.get("/ping", include_in_schema=False)
async def health(request: Request) -> Response:
    """200 when new requests are served, else 503."""
    server_of(request).accepting()
    return Json({"status": "ready"})


@router.get("/health_generate")
async def health_generate(request: Request) -> Response:
    """One token, all the way through the scheduler; 503 when it does not come in time."""
    state = server_of(request)
    engine = state.accepting()
    state.is_suspect = True  # the watchdog asks too, and a scheduler that is silent is told at once
    ask = Ask(
        [0], SamplingParams(max_new_tokens=1, temperature=0.0), CallOptions(priority=2**63 - 1)
    )
    job = engine.submit([ask], stream=False)
    try:
        async with asyncio.timeout(GENERATE_S):
            failed = [i for i in await job.agather() if isinstance(i, RtlangError)]
    except TimeoutError as error:
        job.abort()
        text = f"no token came within {GENERATE_S} s"
        raise ServerUnavailable(text, retry_after=5) from error
    if failed:
        raise ServerUnavailable(failed[0].message, retry_after=5)
    return Json({"status": "ready"})


@router.get("/model_info")
@router.get("/get_model_info", include_in_schema=False)
async def model_info(request: Request) -> Response:
    state = server_of(request)
    info = state.engine.info
    return Json(
        {
            "model_path": state.engine.config.model,
            "served_model_name": state.model_name,
            "tokenizer_path": info.model_path,
            "is_generation": True,
            "context_length": info.context_length,
            "vocab_size": info.vocab_size,
            "eos_ids": sorted(info.eos_ids),
            "kv_bytes_per_token": info.kv_bytes_per_token,
            "chat_defaults": info.chat_defaults,
            "weight_version": "default",
        }
    )


async def engine_stats(engine: Engine) -> dict[str, Any]:
    """Raises ``DeadlineExceeded`` where the scheduler does not answer."""
    return await in_thread(lambda: engine.stats(ANSWER_S))


@router.get("/server_info")
@router.get("/get_server_info", include_in_schema=False)
async def server_info(request: Request) -> Response:
    """Options, statistics and memory; for operators, since it tells of everybody's load."""
    check_operator(request)
    state = server_of(request)
    engine = state.engine
    stats = await engine_stats(engine)
    config = dataclasses.asdict(engine.config)
    del config["hub_token"]
    kv_bytes = engine.info.kv_bytes_per_token
    return Json(
        {
            "version": importlib.metadata.version("rtlang"),
            "served_model_name": state.model_name,
            "status": state.phase.value,
            **config,
            "server": _shown(state.config),
            "max_total_num_tokens": stats["total_len"],
            "internal_states": [stats],
            "memory_usage": {
                "kv_bytes_per_token": kv_bytes,
                "kv_cache_gib": stats["total_len"] * kv_bytes / 2**30,
            },
        }
    )


def _shown(config: ServerConfig) -> dict[str, Any]:
    """Of URLs only scheme, host and path: the rest may hold passwords."""
    found = dataclasses.asdict(config)
    for name in ("usage_db", "otlp_endpoint"):
        if "://" in (found[name] or ""):
            url = urllib.parse.urlsplit(found[name])
            host = url.netloc.rpartition("@")[2]
            found[name] = urllib.parse.urlunsplit((url.scheme, host, url.path, "", ""))
    return found


@router.post("/flush_cache")
@router.get("/flush_cache", include_in_schema=False)
async def flush_cache(
    request: Request, timeout: Annotated[float, Query(ge=0, le=MAX_FLUSH_S)] = 0.0
) -> Response:
    """Forget every cached prefix. 400 with the counts of requests while any runs or waits, after
    ``timeout`` seconds of waiting for them."""
    check_operator(request)
    state = server_of(request)
    deadline = asyncio.get_running_loop().time() + timeout
    while True:
        try:
            async with asyncio.timeout(ANSWER_S):
                await in_thread(state.accepting().flush_cache)
            return Json({"success": True, "message": "the cache is empty"})
        except TimeoutError as error:
            text = f"the scheduler did not answer within {ANSWER_S} s"
            raise ServerUnavailable(text, retry_after=5) from error
        except EngineError as error:
            if error.code != "engine_busy":
                raise
            if asyncio.get_running_loop().time() >= deadline:
                body = {"success": False, "message": error.message}
                return Json({**body, "error": {"message": error.message, "code": error.code}}, 400)
        await asyncio.sleep(0.05)


class AbortBody(Body):
    rid: str | None = Field(None, max_length=MAX_RID_LEN)
    abort_all: bool = False


@router.post("/abort_request")
async def abort_request(request: Request, body: AbortBody) -> Response:
    """End the key's request with exactly this id; operators end anybody's, or all. Unknown ids
    are no error: it may have just ended."""
    if body.abort_all:
        check_operator(request)
    server_of(request).abort(body.rid, principal_of(request.scope), everything=body.abort_all)
    return Json({"success": True})
