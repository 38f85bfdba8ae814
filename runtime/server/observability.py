"""What follows the calls of one frontend: metrics always, usage rows and traces where asked for."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from rtlang.errors import ConfigError
from rtlang.runtime.server.metrics import Metrics, make_metrics

if TYPE_CHECKING:
    from rtlang.runtime.server.state import ServerState
    from rtlang.runtime.server.tracing import Tracing
    from rtlang.runtime.server.usage import Usage

#: Seconds that the scheduler gets to answer a scrape.
ANSWER_S = 2.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Observability:
    metrics: Metrics
    usage: Usage | None = None
    tracing: Tracing | None = None


def attach_observability(state: ServerState) -> Callable[[], None]:
    """Follow the calls of ``state``, as its configuration says. Call what is returned when the
    last one has ended: it writes and sends what is left, and blocks for that, some seconds at
    most. Raises ``ConfigError``: a database or a collector that cannot be, a missing package."""
    assert state.observability is None

    def ask() -> Mapping[str, Any]:
        return state.engine.stats(ANSWER_S)

    config = state.config
    metrics = make_metrics(state.metrics_dir, ask)
    tracing = _make_tracing(config.otlp_endpoint) if config.otlp_endpoint else None
    usage = _make_usage(config.usage_db, metrics) if config.usage_db else None
    found = Observability(metrics=metrics, usage=usage, tracing=tracing)
    state.observability = found
    state.sinks.extend(sink for sink in (metrics, usage, tracing) if sink is not None)

    def close() -> None:
        if usage is not None:
            usage.close()
        if tracing is not None:
            tracing.close()

    return close


def _make_tracing(endpoint: str) -> Tracing:
    try:
        from rtlang.runtime.server.tracing import make_tracing  # noqa: PLC0415  optional
    except ImportError as error:
        raise ConfigError(
            f"otlp_endpoint needs {error.name}: pip install 'rtlang[otel]'"
        ) from error
    return make_tracing(endpoint)


def _make_usage(database: str, metrics: Metrics) -> Usage:
    from rtlang.runtime.server.usage import Usage  # noqa: PLC0415  loads SQLAlchemy

    return Usage(database, on_lost=metrics.usage_lost.inc, on_retry=metrics.usage_retries.inc)
