"""The shape of a session: who spoke on which lane, when, what it cost, and where the cache broke.

Pure: rows of the ledger in, frozen values out. A lane is a line of conversation: the main one, one
for each sub-agent, one for each branch that a rewind began, one for calls that lead nowhere (titles
and the like).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from proxy.models import Exchange, Outcome, State

MAIN: Final = "main"
SIDE: Final = "side calls"
LEAST_BREAK: Final = 1024
"""Tokens: providers cache in steps of up to so many, so that a smaller loss is none."""
CACHE_LIVES_S: Final = 300
NANO_PER_TOKEN: Final = 1000
"""Nano-dollars a token, at one dollar a million."""


@dataclass(slots=True)
class Lane:
    """``rows`` in time order. ``kind``: main, agent, branch or side."""

    label: str
    kind: str
    number: int = 0
    rows: list[Exchange] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheBreak:
    """The upstream read less from its cache than it had put there one turn before."""

    lost_tokens: int
    nanousd: int | None
    """What reading them anew cost more; None: no price."""
    causes: Sequence[str]

    @property
    def lost_text(self) -> str:
        return f"{self.lost_tokens:,}"

    @property
    def because(self) -> str:
        return "; ".join(self.causes) or "nothing that we sent tells why"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One request of the session."""

    row: Exchange
    number: int
    """Its place in the session, from 1."""
    lane: Lane
    follows: "int | None"
    """The number of the request that it goes on from; None: it starts anew."""
    turned: bool
    """It leaves the line: somebody went back, or an agent was sent off."""
    total_nanousd: int
    """Of all requests up to this one that have a price."""
    context: int | None
    """Tokens that were sent, whether read from a cache or not."""
    broke: CacheBreak | None

    @property
    def anew(self) -> bool:
        """It shares no history with what was said on its lane before."""
        return self.follows is None and self.lane.rows[0] is not self.row


def context_of(row: Exchange) -> int | None:
    counts = (
        row.input_tokens,
        row.cache_read_tokens,
        row.cache_write_5m_tokens,
        row.cache_write_1h_tokens,
    )
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def steps_of(
    rows: Sequence[Exchange], parts: Mapping[str, Mapping[str, Any]], before: int = 0
) -> list[Step]:
    """``rows`` in time order; ``parts``: of broken_pairs' rows, what system and tools they had.

    ``before``: nano-dollars of earlier requests that are not among the rows.
    """
    placed = _placed(rows)
    numbers = {row.pk: number for number, row in enumerate(rows, 1)}
    known = {row.pk: row for row in rows}
    steps = []
    total = before
    for row in rows:
        lane = placed[row.pk]
        previous = known.get(row.previous_id)
        total += row.cost_nanousd or 0
        steps.append(
            Step(
                row=row,
                number=numbers[row.pk],
                lane=lane,
                follows=numbers.get(row.previous_id),
                turned=previous is not None and lane.kind == "branch" and lane.rows[0] is row,
                total_nanousd=total,
                context=context_of(row),
                broke=_broke(previous, row, parts) if previous is not None else None,
            )
        )
    return steps


def lanes_of(steps: Iterable[Step]) -> list[Lane]:
    """The lanes as they are drawn: main first, side calls last, the rest as they began."""
    found = list({id(step.lane): step.lane for step in steps}.values())
    order = {"main": 0, "side": 2}
    found.sort(key=lambda lane: order.get(lane.kind, 1))
    for number, lane in enumerate(found):
        lane.number = number
    return found


def _placed(rows: Sequence[Exchange]) -> dict[str, Lane]:
    """The lane of each row."""
    known = {row.pk: row for row in rows}
    leads = {row.previous_id for row in rows if row.previous_id in known}
    placed: dict[str, Lane] = {}
    trunks: dict[str, Lane] = {}  # by agent; "" is the main one
    side = Lane(SIDE, "side")
    numbers = {row.pk: number for number, row in enumerate(rows, 1)}
    main = next((row.pk for row in rows if not row.agent_id and row.pk in leads), None)
    for row in rows:
        previous = known.get(row.previous_id)
        if previous is not None and previous.agent_id == row.agent_id:
            lane = _next_on(placed[previous.pk], previous)
            if lane is None:
                lane = Lane(f"branch from #{numbers[previous.pk]}", "branch")
        elif not row.agent_id and main is not None and row.pk != main and row.pk not in leads:
            lane = side
        else:
            kind = "agent" if row.agent_id else "main"
            label = f"agent {row.agent_id}" if row.agent_id else MAIN
            lane = trunks.setdefault(row.agent_id, Lane(label, kind))
        lane.rows.append(row)
        placed[row.pk] = lane
    return placed


def _next_on(lane: Lane, previous: Exchange) -> Lane | None:
    """The lane itself, if the row goes on at its end or repeats what failed; else a branch."""
    after = lane.rows[lane.rows.index(previous) + 1 :]
    return lane if all(_failed(row) for row in after) else None


def _failed(row: Exchange) -> bool:
    return row.state == State.CLOSED and row.outcome != Outcome.COMPLETED


def broken_pairs(rows: Sequence[Exchange]) -> set[str]:
    """Ids of the requests at which the cache broke, and of those that they go on from."""
    known = {row.pk: row for row in rows}
    found: set[str] = set()
    for row in rows:
        previous = known.get(row.previous_id)
        if previous is not None and _lost(previous, row):
            found |= {row.pk, previous.pk}
    return found


def _lost(previous: Exchange, row: Exchange) -> int:
    """Tokens that were in the cache after the one and were not read from it by the other."""
    if previous.cache_read_tokens is None or row.cache_read_tokens is None:
        return 0
    written = (previous.cache_write_5m_tokens or 0) + (previous.cache_write_1h_tokens or 0)
    lost = previous.cache_read_tokens + written - row.cache_read_tokens
    return lost if lost >= LEAST_BREAK else 0


def _broke(
    previous: Exchange, row: Exchange, parts: Mapping[str, Mapping[str, Any]]
) -> CacheBreak | None:
    lost = _lost(previous, row)
    if not lost:
        return None
    return CacheBreak(
        lost_tokens=lost,
        nanousd=_more_for(lost, row.price),
        causes=list(_causes(previous, row, parts)),
    )


def _causes(
    previous: Exchange, row: Exchange, parts: Mapping[str, Mapping[str, Any]]
) -> Iterable[str]:
    """What is known to end a cache, where it happened between the two."""
    if (previous.upstream, previous.model_upstream) != (row.upstream, row.model_upstream):
        yield f"another model answered ({row.upstream} · {row.model_upstream})"
    one, other = parts.get(previous.pk, {}), parts.get(row.pk, {})
    for name, words in (("system", "the system prompt changed"), ("tools", "the tools changed")):
        if name in one and name in other and one[name] != other[name]:
            yield words
    ended = previous.finished or previous.created
    silent = (row.created - ended).total_seconds()
    if silent > CACHE_LIVES_S:
        yield f"{silent / 60:.0f} minutes passed, a cache commonly lives 5"


def _more_for(tokens: int, price: Any) -> int | None:
    """Nano-dollars between reading so many tokens anew and reading them from the cache."""
    try:
        fresh, cached = float(price["input"]), float(price["cache_read"])
    except (KeyError, TypeError, ValueError):
        return None
    return round(tokens * (fresh - cached) * NANO_PER_TOKEN)
