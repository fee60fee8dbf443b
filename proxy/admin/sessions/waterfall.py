"""The waterfall chart of a session: a bar for each request on its lane; long gaps are shortened.

Horizontal positions are percentages of the chart's width, so the SVG needs no script and no inline
style to fit the page.
"""

from collections.abc import Sequence
from typing import Any, Final

from proxy.admin.core.exchange_text import cost_of, outcome_label
from proxy.admin.core.number_format import dollars, duration, short_count
from proxy.admin.core.time_zone import viewer_zone
from proxy.models import Exchange

from .timeline import Lane, Step

LANE_HEIGHT: Final = 26
BAR_HEIGHT: Final = 14
MAX_GAP_MS: Final = 20_000
"""A longer gap between requests is drawn with this length and labeled with its real length."""
MIN_WIDTH: Final = 0.35
"""Minimum width of a bar, in percent of the chart's width."""


def draw_waterfall(steps: Sequence[Step], lanes: Sequence[Lane]) -> dict[str, Any]:
    """Return the bars, the shortened gaps, and the curves of cost and of the main lane's input."""
    scale = _Scale([step.row for step in steps])
    costs = [(scale.position(step.row), float(step.total_nanousd)) for step in steps]
    sent = [
        (scale.position(step.row), float(step.context_tokens))
        for step in steps
        if step.lane.kind == "main" and step.context_tokens is not None
    ]
    curves = []
    if any(value for _, value in costs):
        last = dollars(round(costs[-1][1]))
        curves.append(
            {"label": "Cumulative cost", "points": _points(costs), "last": last, "maximum": last}
        )
    if len(sent) > 1:
        maximum = short_count(round(max(value for _, value in sent)))
        last = short_count(round(sent[-1][1]))
        curves.append(
            {"label": "Input tokens", "points": _points(sent), "last": last, "maximum": maximum}
        )
    return {
        "bars": [_bar(step, scale) for step in steps],
        "gaps": scale.gaps,
        "curves": curves,
        "height": max(1, len(lanes)) * LANE_HEIGHT,
        "bar_height": BAR_HEIGHT,
    }


def _length_ms(row: Exchange) -> float:
    return max(0.0, row.total_ms or 0.0)


class _Scale:
    """Map a request's time to a percentage of the chart's width; long gaps are shortened."""

    def __init__(self, rows: Sequence[Exchange]) -> None:
        self._start = rows[0].created if rows else None
        self._cuts: list[tuple[float, float]] = []  # (time in ms, ms removed before it)
        gaps: list[tuple[float, float]] = []
        end = removed = 0.0
        for row in rows:
            at = self._since(row)
            gap = at - end
            if end and gap > MAX_GAP_MS:
                removed += gap - MAX_GAP_MS
                gaps.append((at - removed - MAX_GAP_MS / 2, gap))
                self._cuts.append((at, removed))
            end = max(end, at + _length_ms(row))
        self._whole = max(1.0, end - removed)
        self.gaps = [
            {"x": f"{100 * at / self._whole:.3f}%", "length": duration(gap)} for at, gap in gaps
        ]

    def _since(self, row: Exchange) -> float:
        return (row.created - self._start).total_seconds() * 1000 if self._start else 0.0

    def position(self, row: Exchange) -> float:
        at = self._since(row)
        removed = max((removed for start, removed in self._cuts if at >= start), default=0.0)
        return 100 * (at - removed) / self._whole

    def width(self, ms: float) -> float:
        return 100 * ms / self._whole


def _bar(step: Step, scale: _Scale) -> dict[str, Any]:
    """Return the bar of one request. ``wait``: the width of its part before the first content."""
    row = step.row
    tone, outcome_text = outcome_label(row)
    length = _length_ms(row)
    width = max(MIN_WIDTH, scale.width(length))
    first = min(length, row.ttft_ms if row.ttft_ms is not None else length)
    return {
        "step": step,
        "x": f"{min(scale.position(row), 100 - width):.3f}%",
        "y": step.lane.number * LANE_HEIGHT + (LANE_HEIGHT - BAR_HEIGHT) // 2,
        "width": f"{width:.3f}%",
        "wait": f"{width * (first / length if length else 1):.3f}%",
        "tone": tone,
        "title": f"#{step.number} {row.created.astimezone(viewer_zone()):%H:%M:%S}, "
        f"{outcome_text}: {duration(row.total_ms)}, "
        f"{cost_of(row)}, output {short_count(row.output_tokens)}",
    }


def _points(values: Sequence[tuple[float, float]]) -> str:
    """Return the SVG points of a step curve: each value is constant up to the next one."""
    top = max(value for _, value in values) or 1.0
    points = []
    height = 100.0
    for x, value in values:
        points.append(f"{x:.2f},{height:.2f}")
        height = 100 - 96 * value / top
        points.append(f"{x:.2f},{height:.2f}")
    return " ".join([*points, f"100,{height:.2f}"])
