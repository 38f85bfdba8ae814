"""What was measured, and the figures that follow from it. All times are the client's clock.

TTFT: from sending to the first visible delta. ITL: the gaps between visible deltas. TPOT: (last -
first) / (tokens - 1), undefined for one token. E2E: from sending to the end. Goodput: requests per
second that met every given objective; one that failed met none.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from rtlang.errors import ConfigError

PERCENTILES = (50, 90, 95, 99)
#: Latencies that an objective can be about.
OBJECTIVES = ("ttft", "tpot", "itl", "e2e")


@dataclasses.dataclass(slots=True, kw_only=True)
class Outcome:
    """One request, as its client saw it; seconds on one monotonic clock."""

    due: float  # when it was to be sent
    sent: float
    first_byte: float | None = None  # of the answer's headers
    deltas: list[float] = dataclasses.field(default_factory=list)  # visible ones
    end: float | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    error: str | None = None

    @property
    def ttft(self) -> float | None:
        return self.deltas[0] - self.sent if self.deltas else None

    @property
    def tpot(self) -> float | None:
        if len(self.deltas) < 2 or self.completion_tokens < 2:
            return None
        return (self.deltas[-1] - self.deltas[0]) / (self.completion_tokens - 1)

    @property
    def gaps(self) -> list[float]:
        return [b - a for a, b in zip(self.deltas, self.deltas[1:], strict=False)]

    @property
    def e2e(self) -> float | None:
        return self.end - self.sent if self.end is not None else None

    def meets(self, objectives: Mapping[str, float]) -> bool:
        """Every objective, in seconds; ``itl`` is about the largest gap. What is undefined (the
        TPOT of one token) is met."""
        if self.error is not None:
            return False
        values = {
            "ttft": self.ttft,
            "tpot": self.tpot,
            "itl": max(self.gaps, default=None),
            "e2e": self.e2e,
        }
        found = ((values[name], limit) for name, limit in objectives.items())
        return all(value is None or value <= limit for value, limit in found)


def parse_objectives(given: Sequence[str]) -> dict[str, float]:
    """From ``ttft=0.5`` and the like. Raises ``ConfigError``."""
    objectives: dict[str, float] = {}
    for item in given:
        name, _, value = item.partition("=")
        try:
            objectives[name] = float(value)
        except ValueError:
            objectives[name] = math.nan
        if name not in OBJECTIVES or not objectives[name] > 0:
            names = ", ".join(OBJECTIVES)
            raise ConfigError(f"--slo {item}: give SECONDS to one of {names}, as ttft=0.5")
    return objectives


def figures(outcomes: Sequence[Outcome], objectives: Mapping[str, float]) -> dict[str, Any]:
    """Seconds, counts, and rates per second. Percentiles are of requests that succeeded."""
    good = [o for o in outcomes if o.error is None]
    start = min(o.sent for o in outcomes)
    seconds = max(o.end if o.end is not None else o.sent for o in outcomes) - start
    seconds = max(seconds, 1e-9)
    prompt = sum(o.prompt_tokens for o in good)
    completion = sum(o.completion_tokens for o in good)
    cached = sum(o.cached_tokens for o in good)
    errors: dict[str, int] = {}
    for outcome in outcomes:
        if outcome.error is not None:
            errors[outcome.error] = errors.get(outcome.error, 0) + 1
    report: dict[str, Any] = {
        "requests": len(outcomes),
        "failed": len(outcomes) - len(good),
        "error_rate": (len(outcomes) - len(good)) / len(outcomes),
        "errors": errors,
        "seconds": seconds,
        "requests_per_s": len(good) / seconds,
        "input_tokens_per_s": prompt / seconds,
        "output_tokens_per_s": completion / seconds,
        "total_tokens_per_s": (prompt + completion) / seconds,
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "hit_rate": cached / prompt if prompt else 0.0,
        "objectives": dict(objectives),
        "goodput_per_s": sum(o.meets(objectives) for o in outcomes) / seconds,
        **spread("lateness_s", [o.sent - o.due for o in outcomes]),
        **spread("ttft_s", [o.ttft for o in good]),
        **spread("itl_s", [gap for o in good for gap in o.gaps]),
        **spread("tpot_s", [o.tpot for o in good]),
        **spread("e2e_s", [o.e2e for o in good]),
    }
    return report


def spread(name: str, values: Sequence[float | None]) -> dict[str, float]:
    """Percentiles (nearest rank) and the mean of what is defined; nothing for nothing."""
    ordered = sorted(value for value in values if value is not None)
    if not ordered:
        return {}
    found = {f"{name}_mean": math.fsum(ordered) / len(ordered)}
    for percent in PERCENTILES:
        rank = max(1, math.ceil(percent / 100 * len(ordered)))
        found[f"{name}_p{percent}"] = ordered[rank - 1]
    return found


def compare(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[tuple[str, float, float]]:
    """(figure, first, second) of two saved reports. Raises ``ConfigError`` where they are of
    different workloads, or not reports."""
    hashes = [report.get("workload_hash") for report in (first, second)]
    if None in hashes:
        raise ConfigError("that is no report of `rtlang bench`")
    if hashes[0] != hashes[1]:
        raise ConfigError(
            f"the workloads differ ({hashes[0]} and {hashes[1]}): their figures say nothing "
            "about each other"
        )
    return [
        (name, float(first[name]), float(second[name]))
        for name in first
        if _is_number(first[name]) and _is_number(second.get(name))
    ]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
