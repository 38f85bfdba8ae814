"""The server's log: one line for each call, for people or as JSON."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import msgspec

from rtlang.errors import RtlangError
from rtlang.runtime.server.config import ServerConfig
from rtlang.runtime.server.record import CallRecord, now

logger = logging.getLogger(__name__)

#: Asked every few seconds by machines: not told, if they say what they are there to say.
QUIET_PATHS = frozenset({"/health", "/ready", "/ping", "/metrics"})
#: Longest prompt or answer in a line, in characters, where they are logged at all.
TEXT_LEN = 100_000


class JsonFormatter(logging.Formatter):
    """One JSON object a line; the fields of a call stand beside the message."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": _iso(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "call", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()


class TextFormatter(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")
        self.converter = time.gmtime
        self.default_time_format, self.default_msec_format = "%Y-%m-%dT%H:%M:%S", "%s.%03dZ"


def configure_logging(config: ServerConfig) -> None:
    """To standard error, all of the process; what libraries say from warnings on."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if config.log_json else TextFormatter())
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.getLogger("rtlang").setLevel(logging.INFO)


def log_call(scope: Mapping[str, Any], status: int) -> None:
    """One call is over. ``scope``: the request's; ``status``: what was answered, 499 when the
    client left before."""
    path = scope["path"]
    if path in QUIET_PATHS and status in (200, 503):
        return
    known: Mapping[str, Any] = scope["state"]
    principal = known.get("principal")
    fields: dict[str, Any] = {
        "id": known["request_id"],
        "method": scope["method"],
        "route": path,
        "status": status,
        "key": principal.name if principal is not None else "",
    }
    generations = known.get("generations", [])
    error: RtlangError | None = known.get("error")
    for generation in generations:
        error = generation.record.error or error
    if error is not None:
        fields["error"] = error.code
    if generations:
        fields |= _generated([generation.record for generation in generations])
    fields["total_s"] = round(now() - known["received"], 6)
    logger.info("%s", _text(fields), extra={"call": fields})


def _generated(records: list[CallRecord]) -> dict[str, Any]:
    """Tokens and times of a call, of all its sequences."""
    first = records[0]
    fields: dict[str, Any] = {
        "model": first.model,
        "stream": first.stream,
        "sequences": sum(r.num_sequences for r in records),
        "prompt": sum(r.usage.prompt_tokens for r in records),
        "cached": sum(r.usage.cached_tokens for r in records),
        "completion": sum(r.usage.completion_tokens for r in records),
        "finish": ",".join(sorted({reason for r in records for reason in r.finish_reasons})),
    }
    for name, stamp in (("sent_s", first.sent), ("first_s", first.first_token)):
        if stamp is not None:
            fields[name] = round(stamp - first.received, 6)
    texts = {"prompt_text": first.prompt, "answer_text": "".join(r.text for r in records)}
    return fields | {name: text[:TEXT_LEN] for name, text in texts.items() if text}


def _text(fields: Mapping[str, Any]) -> str:
    """The same for people. What a client chose is quoted: it cannot begin another line."""
    head = f"{fields['method']} {quote(fields['route'], safe='/')} {fields['status']}"
    shown = [
        f"{name}={value!r}" if name.endswith("_text") else f"{name}={_plain(value)}"
        for name, value in fields.items()
        if name not in ("method", "route", "status") and value != ""
    ]
    return " ".join([head, *shown])


def _plain(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3f}"
    return quote(value, safe="/:@+,#") if isinstance(value, str) else str(value)


def _iso(seconds: float) -> str:
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    return f"{whole}.{int(seconds % 1 * 1000):03d}Z"
