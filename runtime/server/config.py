"""ServerConfig: the options of `rtlang serve` beside the engine's."""

from __future__ import annotations

import dataclasses

from rtlang.errors import ConfigError
from rtlang.runtime.config import option
from rtlang.runtime.parsers.registry import REASONING_PARSERS, TOOL_PARSERS


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """Options of the server. Raises ``ConfigError`` for a value out of range.

    A key is what clients authenticate with; without any, everybody may call everything.
    """

    host: str = option("127.0.0.1", "address to listen on")
    port: int = option(30000, "port to listen on; 0: a free one, which is logged")
    frontends: int = option(1, "processes that speak HTTP; all share one scheduler")
    served_model_name: str | None = option(None, "what clients call the model; none: its name")
    accept_any_model: bool = option(False, "serve requests for models of any name")
    tool_parser: str = option(
        "auto", f"how the model writes tool calls: {' | '.join(TOOL_PARSERS)} | none | auto"
    )
    reasoning_parser: str = option(
        "auto", f"how it marks its reasoning: {' | '.join(REASONING_PARSERS)} | none | auto"
    )
    api_key_file: str | None = option(None, "JSON file with hashed keys and their limits")
    requests_per_minute: int | None = option(None, "for keys that have no limit of their own")
    tokens_per_minute: int | None = option(None, "prompt and completion tokens, likewise")
    concurrency: int | None = option(None, "requests of a key that run at once, likewise")
    request_timeout_s: float | None = option(None, "a request's longest time, in seconds")
    stall_timeout_s: float = option(30.0, "requests fail when the scheduler is silent so long")
    shutdown_timeout_s: float = option(30.0, "seconds that running requests get after SIGTERM")
    max_body_mib: int = option(16, "largest request body")
    cors_origins: tuple[str, ...] = option((), "origins whose pages may call; none by default")
    tls_cert: str | None = option(None, "PEM file with the certificate chain")
    tls_key: str | None = option(None, "PEM file with its private key")
    log_json: bool = option(False, "one JSON object a line")
    log_prompts: bool = option(False, "write prompts and answers to the log")
    usage_db: str | None = option(None, "SQLAlchemy URL of the usage rows, or a SQLite file")
    otlp_endpoint: str | None = option(None, "where traces go (OTLP over HTTP)")

    def __post_init__(self) -> None:
        if not 0 <= self.port < 65536:
            raise ConfigError(f"port must be in [0, 65535], got {self.port}")
        parsers = {"tool_parser": TOOL_PARSERS, "reasoning_parser": REASONING_PARSERS}
        for name, known in parsers.items():
            if getattr(self, name) not in (*known, "none", "auto"):
                raise ConfigError(f"{name} may be auto, none, {', '.join(known)}")
        for name in ("frontends", "max_body_mib"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("requests_per_minute", "tokens_per_minute", "concurrency"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} must be at least 1, got {value}")
        for name in ("request_timeout_s", "stall_timeout_s", "shutdown_timeout_s"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigError(f"{name} must be above 0, got {value}")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ConfigError("TLS needs both tls_cert and tls_key")
