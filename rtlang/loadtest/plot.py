"""A picture of a load test: latencies over time, and their distributions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rtlang.loadtest.report import Outcome


def save(outcomes: Sequence[Outcome], path: Path) -> None:
    """Four panels in the format that the file's name says (.png, .svg, .pdf)."""
    good = [o for o in outcomes if o.error is None]
    start = min(o.sent for o in outcomes)
    figure = Figure(figsize=(11, 7), layout="constrained")
    panels = figure.subplots(2, 2)
    times = [o.sent - start for o in good]
    _scatter(panels[0][0], times, [o.ttft for o in good], "time to first token")
    _scatter(panels[0][1], times, [o.e2e for o in good], "end to end")
    _distribution(panels[1][0], [o.ttft for o in good], "time to first token")
    _distribution(panels[1][1], [gap for o in good for gap in o.gaps], "between tokens")
    figure.savefig(path)


def _scatter(
    axes: Axes, times: Sequence[float], values: Sequence[float | None], title: str
) -> None:
    pairs = [(t, v) for t, v in zip(times, values, strict=True) if v is not None]
    axes.scatter([t for t, _ in pairs], [v for _, v in pairs], s=6)
    axes.set(title=title, xlabel="sent at, s", ylabel="s", ylim=(0, None))


def _distribution(axes: Axes, values: Sequence[float | None], title: str) -> None:
    ordered = sorted(v for v in values if v is not None)
    shares = [(i + 1) / len(ordered) for i in range(len(ordered))]
    axes.plot(ordered, shares, drawstyle="steps-post")
    axes.set(title=title, xlabel="s", ylabel="share of all", ylim=(0, 1))
