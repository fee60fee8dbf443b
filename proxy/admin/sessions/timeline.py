"""The timeline of a session: its requests on lanes, their costs, and where the prompt cache broke.

No I/O: the input is ledger rows, the output is frozen dataclasses. A lane is one thread of the
conversation. There is a lane for the main thread, one for each sub-agent, one for each branch after
the user went back to an earlier message, and one for side calls (such as the generation of a title)
that no later request continues.

The waterfall chart draws a bar for each request on its lane; long gaps are shortened. Horizontal
positions are percentages of the chart's width, so the SVG needs no script and no inline style to
fit the page.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from proxy.admin.core.exchange_text import cost_of, outcome_label
from proxy.admin.core.number_format import dollars, duration, short_count
from proxy.admin.core.time_zone import viewer_zone
from proxy.admin.dashboard.queries import sum_known
from proxy.models import Exchange, Outcome, State

MAIN: Final = "main"
SIDE: Final = "side calls"
MIN_LOST_TOKENS: Final = 1024
"""Providers cache in units of up to 1,024 tokens, so losing fewer tokens is no cache break."""
CACHE_LIFETIME_S: Final = 300
NANO_PER_TOKEN: Final = 1000
"""Factor from dollars per million tokens to nano-dollars per token."""
LANE_HEIGHT: Final = 26
BAR_HEIGHT: Final = 14
MAX_GAP_MS: Final = 20_000
"""A longer gap between requests is drawn with this length and labeled with its real length."""
MIN_WIDTH: Final = 0.35
"""Minimum width of a bar, in percent of the chart's width."""


@dataclass(slots=True)
class Lane:
    """One thread of the conversation. ``rows`` are its requests in time order.

    ``kind`` is main, agent, branch or side.
    """

    label: str
    kind: str
    number: int = 0
    rows: list[Exchange] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheBreak:
    """A request read fewer tokens from the prompt cache than the previous request had cached."""

    lost_tokens: int
    extra_nanousd: int | None
    """Extra cost because the lost tokens were billed as uncached; None if there is no price."""
    causes: Sequence[str]

    @property
    def lost_text(self) -> str:
        return f"{self.lost_tokens:,}"

    @property
    def cause_text(self) -> str:
        return "; ".join(self.causes) or "the cause is unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One request of the session, with its place in the timeline."""

    row: Exchange
    number: int
    """Position of the request in the session, starting with 1."""
    lane: Lane
    previous_number: "int | None"
    """Number of the request that this request continues, or None."""
    starts_branch: bool
    """Whether this request starts a branch, because the user went back to an earlier message."""
    total_nanousd: int
    """Cumulative cost of all priced requests of the session up to and including this one."""
    context_tokens: int | None
    """All input tokens of the request, including those read from or written to the cache."""
    cache_break: CacheBreak | None

    @property
    def starts_new_history(self) -> bool:
        """Whether this request repeats no messages of the earlier requests of its lane."""
        return self.previous_number is None and self.lane.rows[0] is not self.row


def steps_of(
    rows: Sequence[Exchange], parts: Mapping[str, Mapping[str, Any]], before: int = 0
) -> list[Step]:
    """Return one step for each row.

    ``rows`` must be in time order. ``parts`` has the system prompt and the tools of the requests
    in ``cache_break_ids``, by request id. ``before`` is the cost, in nano-dollars, of earlier
    requests of the session that ``rows`` does not contain.
    """
    lane_by_row = _assign_lanes(rows)
    numbers = {row.pk: number for number, row in enumerate(rows, 1)}
    known = {row.pk: row for row in rows}
    steps = []
    total = before
    for row in rows:
        lane = lane_by_row[row.pk]
        previous = known.get(row.previous_id)
        total += row.cost_nanousd or 0
        steps.append(
            Step(
                row=row,
                number=numbers[row.pk],
                lane=lane,
                previous_number=numbers.get(row.previous_id),
                starts_branch=previous is not None
                and lane.kind == "branch"
                and lane.rows[0] is row,
                total_nanousd=total,
                context_tokens=sum_known(
                    (
                        row.input_tokens,
                        row.cache_read_tokens,
                        row.cache_write_5m_tokens,
                        row.cache_write_1h_tokens,
                    )
                ),
                cache_break=_cache_break(previous, row, parts) if previous is not None else None,
            )
        )
    return steps


def lanes_of(steps: Iterable[Step]) -> list[Lane]:
    """Return the lanes in drawing order: main first, then by start time, side calls last."""
    found = list({id(step.lane): step.lane for step in steps}.values())
    order = {"main": 0, "side": 2}
    found.sort(key=lambda lane: order.get(lane.kind, 1))
    for number, lane in enumerate(found):
        lane.number = number
    return found


def _assign_lanes(rows: Sequence[Exchange]) -> dict[str, Lane]:
    """Return the lane of each request, by request id."""
    known = {row.pk: row for row in rows}
    continued = {row.previous_id for row in rows if row.previous_id in known}
    lane_by_row: dict[str, Lane] = {}
    trunks: dict[str, Lane] = {}  # agent id -> lane; "" is the main lane
    side = Lane(SIDE, "side")
    numbers = {row.pk: number for number, row in enumerate(rows, 1)}
    main = next((row.pk for row in rows if not row.agent_id and row.pk in continued), None)
    for row in rows:
        previous = known.get(row.previous_id)
        if previous is not None and previous.agent_id == row.agent_id:
            lane = lane_by_row[previous.pk]
            after = lane.rows[lane.rows.index(previous) + 1 :]
            if any(row.state == State.OPEN or row.outcome == Outcome.COMPLETED for row in after):
                # Some other request continued the earlier one with success.
                lane = Lane(f"branch from #{numbers[previous.pk]}", "branch")
        elif not row.agent_id and main is not None and row.pk != main and row.pk not in continued:
            lane = side
        else:
            kind = "agent" if row.agent_id else "main"
            label = f"agent {row.agent_id}" if row.agent_id else MAIN
            lane = trunks.setdefault(row.agent_id, Lane(label, kind))
        lane.rows.append(row)
        lane_by_row[row.pk] = lane
    return lane_by_row


def cache_break_ids(rows: Sequence[Exchange]) -> set[str]:
    """Return the ids of requests with a cache break, and of the requests that they continue."""
    known = {row.pk: row for row in rows}
    found: set[str] = set()
    for row in rows:
        previous = known.get(row.previous_id)
        if previous is not None and _lost_tokens(previous, row):
            found |= {row.pk, previous.pk}
    return found


def _lost_tokens(previous: Exchange, row: Exchange) -> int:
    """Return how many tokens were cached after ``previous`` but not read by ``row``, or 0."""
    if previous.cache_read_tokens is None or row.cache_read_tokens is None:
        return 0
    written = (previous.cache_write_5m_tokens or 0) + (previous.cache_write_1h_tokens or 0)
    lost = previous.cache_read_tokens + written - row.cache_read_tokens
    return lost if lost >= MIN_LOST_TOKENS else 0


def _cache_break(
    previous: Exchange, row: Exchange, parts: Mapping[str, Mapping[str, Any]]
) -> CacheBreak | None:
    lost = _lost_tokens(previous, row)
    if not lost:
        return None
    try:
        price: Any = row.price
        uncached, cached = float(price["input"]), float(price["cache_read"])
        extra = round(lost * (uncached - cached) * NANO_PER_TOKEN)
    except (KeyError, TypeError, ValueError):
        extra = None
    causes = list(_cache_break_causes(previous, row, parts))
    return CacheBreak(lost_tokens=lost, extra_nanousd=extra, causes=causes)


def _cache_break_causes(
    previous: Exchange, row: Exchange, parts: Mapping[str, Mapping[str, Any]]
) -> Iterable[str]:
    """Yield the known causes of a cache break that apply to these two requests, as text."""
    if (previous.upstream, previous.model_upstream) != (row.upstream, row.model_upstream):
        yield f"another model responded ({row.upstream} · {row.model_upstream})"
    before, after = parts.get(previous.pk, {}), parts.get(row.pk, {})
    for name, cause in (("system", "the system prompt changed"), ("tools", "the tools changed")):
        if name in before and name in after and before[name] != after[name]:
            yield cause
    ended = previous.finished or previous.created
    pause_s = (row.created - ended).total_seconds()
    if pause_s > CACHE_LIFETIME_S:
        yield f"{pause_s / 60:.0f} minutes passed; caches usually last 5"


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
