"""The waterfall chart of a session: a bar for each request on its lane; long gaps are shortened.

Horizontal positions are percentages of the chart's width, so the SVG needs no script and no inline
style to fit the page.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from proxy.admin.core.number_format import cost_of, dollars, duration, short_count
from proxy.admin.core.outcome_label import outcome_label
from proxy.admin.core.time_zone import viewer_zone
from proxy.models import Exchange

from .timeline import Lane, Step

LANE_HEIGHT: Final = 26
BAR_HEIGHT: Final = 14
MAX_GAP_MS: Final = 20_000
"""A longer gap between requests is drawn with this length and labeled with its real length."""
MIN_WIDTH: Final = 0.35
"""Minimum width of a bar, in percent of the chart's width."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """The bar of one request. ``wait`` is the width of its part before the first content."""

    step: Step
    x: str
    y: int
    width: str
    wait: str
    tone: str
    title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """A gap between two requests that is drawn shortened. ``length`` is its real length."""

    x: str
    length: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """A curve of one value over the requests, in an SVG viewBox of 100 by 100 units."""

    label: str
    points: str
    last: str
    maximum: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Waterfall:
    lanes: Sequence[Lane]
    bars: Sequence[Bar]
    gaps: Sequence[Gap]
    curves: Sequence[Curve]
    height: int
    lane_height: int = LANE_HEIGHT
    bar_height: int = BAR_HEIGHT


def draw_waterfall(steps: Sequence[Step], lanes: Sequence[Lane]) -> Waterfall:
    scale = _Scale([step.row for step in steps])
    return Waterfall(
        lanes=lanes,
        bars=[_bar(step, scale) for step in steps],
        gaps=scale.gaps,
        curves=_curves(steps, scale),
        height=max(1, len(lanes)) * LANE_HEIGHT,
    )


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
            Gap(x=f"{100 * at / self._whole:.3f}%", length=duration(gap)) for at, gap in gaps
        ]

    def _since(self, row: Exchange) -> float:
        return (row.created - self._start).total_seconds() * 1000 if self._start else 0.0

    def position(self, row: Exchange) -> float:
        at = self._since(row)
        removed = max((removed for start, removed in self._cuts if at >= start), default=0.0)
        return 100 * (at - removed) / self._whole

    def width(self, ms: float) -> float:
        return 100 * ms / self._whole


def _bar(step: Step, scale: _Scale) -> Bar:
    row = step.row
    tone, outcome_text = outcome_label(row)
    length = _length_ms(row)
    width = max(MIN_WIDTH, scale.width(length))
    first = min(length, row.ttft_ms if row.ttft_ms is not None else length)
    x = min(scale.position(row), 100 - width)
    return Bar(
        step=step,
        x=f"{x:.3f}%",
        y=step.lane.number * LANE_HEIGHT + (LANE_HEIGHT - BAR_HEIGHT) // 2,
        width=f"{width:.3f}%",
        wait=f"{width * (first / length if length else 1):.3f}%",
        tone=tone,
        title=f"#{step.number} {row.created.astimezone(viewer_zone()):%H:%M:%S}, "
        f"{outcome_text}: {duration(row.total_ms)}, "
        f"{cost_of(row)}, output {short_count(row.output_tokens)}",
    )


def _curves(steps: Sequence[Step], scale: _Scale) -> list[Curve]:
    """Return the curves of the cumulative cost and of the input tokens on the main lane."""
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
            Curve(label="Cumulative cost", points=_points(costs), last=last, maximum=last)
        )
    if len(sent) > 1:
        maximum = short_count(round(max(value for _, value in sent)))
        last = short_count(round(sent[-1][1]))
        curves.append(Curve(label="Input tokens", points=_points(sent), last=last, maximum=maximum))
    return curves


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
