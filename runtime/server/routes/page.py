"""The page at /: its files, and what it asks for while it is open."""

from __future__ import annotations

import time
from functools import cache
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from rtlang.errors import NotFound
from rtlang.runtime.server.replies import Json
from rtlang.runtime.server.routes.control import ANSWER_S, check_operator, engine_stats
from rtlang.runtime.server.state import principal_of, server_of
from rtlang.runtime.server.threads import in_thread

router = APIRouter(include_in_schema=False)

FOLDER = Path(__file__).parent.parent / "page"
_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}
#: Nothing from elsewhere, nothing inline: what users wrote can only be shown as text.
_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
#: Of the tree: nodes that are drawn, and tokens of each whose text can be read.
NUM_NODES, NUM_IDS = 300, 48


@cache
def _file(name: str) -> tuple[bytes, str] | None:
    path = FOLDER / name
    if path.suffix not in _TYPES or path.parent != FOLDER or not path.is_file():
        return None
    return path.read_bytes(), _TYPES[path.suffix]


@router.get("/")
async def index() -> Response:
    return _page("index.html")


@router.get("/page/{name}")
async def file(name: str) -> Response:
    return _page(name)


def _page(name: str) -> Response:
    found = _file(name)
    if found is None:
        raise NotFound(f"there is no /page/{name}")
    return Response(found[0], media_type=found[1], headers=_HEADERS)


@router.get("/live")
async def live(request: Request) -> Response:
    """What the page shows, at this moment. Keys that are no operator's see their own calls."""
    state, who = server_of(request), principal_of(request.scope)
    stats = await engine_stats(state.engine)
    counts = ("total_len", "free_len", "evictable_len", "locked_len", "private_len")
    counters = (
        "cached_tokens", "computed_tokens", "output_tokens", "forced_tokens", "prompt_tokens",
        "num_finished", "num_failed", "num_retractions", "evicted_tokens",
    )  # fmt: skip
    return Json(
        {
            "time": time.time(),
            "model": state.model_name,
            "phase": state.phase.value,
            "frontend": state.index,
            "frontends": state.config.frontends,
            "uptime": time.time() - state.started,
            "operator": who.operator,
            "queue": stats["queue"],
            "kv": {name.removesuffix("_len"): stats[name] for name in counts},
            "counters": {name: stats[name] for name in counters},
            "latencies": state.board.latencies(),
            "calls": state.board.calls(None if who.operator else who.name),
        }
    )


@router.get("/tree")
async def tree(request: Request) -> Response:
    """The radix tree with the text of its nodes: for operators."""
    check_operator(request)
    state = server_of(request)
    engine = state.engine
    found: dict[str, Any] = await in_thread(
        lambda: engine.cache_tree(max_nodes=NUM_NODES, max_ids=NUM_IDS, timeout=ANSWER_S)
    )
    for node in found["nodes"]:
        text = engine.tokenizer.decode(node.pop("ids"), skip_special_tokens=False)
        node["text"] = text + ("…" if node["num_tokens"] > NUM_IDS else "")
    return Json(found)
