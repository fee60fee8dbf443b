"""The "top" tables of the dashboard: costs by team, model, user, key, session; stop reasons."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from proxy.admin.core.number_format import dollars, short_count
from proxy.admin.core.session_links import session_url, short_id
from proxy.ledger.transcripts.turn_summary import cut_middle

from . import queries
from .charts import Link
from .queries import Counts, DashboardData, Key

MAX_ROWS: Final = 8  # maximum rows of each table
MAX_TITLE: Final = 90  # characters of a session's title


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """One row of a "top" table, with formatted costs and counts."""

    name: str
    url: str
    """URL of the list of the row's requests; empty if the list has no filter for them."""
    cost: str
    requests: str
    tokens: str
    errors: str
    errors_url: str
    share: float
    """Length of the row's bar, in percent of the longest bar of the table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    title: str
    slug: str
    rows: Sequence[Rank]
    more: int
    note: str = ""


@dataclass(frozen=True, slots=True)
class TableSpec:
    """One table. ``filters`` returns the request list's query parameters for a row, or None."""

    slug: str
    title: str
    name: Callable[[Key], str]
    filters: Callable[[Key], dict[str, Any] | None]


TABLES: Final = (
    TableSpec("team", "By team", lambda key: key[0] or "no team", lambda key: {"of_team": key[0]}),
    TableSpec(
        "model",
        "By model",
        lambda key: key[0] or "not named",
        lambda key: {"model_requested": key[0]},
    ),
    TableSpec(
        "user",
        "By user",
        lambda key: key[0] or "no user",
        lambda key: {"user": key[0]} if key[0] else None,
    ),
    TableSpec(
        "key",
        "By key",
        lambda key: f"{key[0]} / {key[2]}" if key[2] else "no key",
        lambda key: {"key_id": key[1] or 0},
    ),
    TableSpec(
        "stop_reason",
        "By stop reason",
        lambda key: key[0] or "none (incomplete or failed)",
        lambda key: {"stopped": key[0] or "none"},
    ),
)
SESSIONS_NOTE: Final = "The most expensive sessions, by whole days in UTC."


def rankings_of(data: DashboardData, link: Link, titles: Mapping[str, str]) -> list[Ranking]:
    return rankings_of_groups({**data.groups, "session": data.sessions}, link, titles)


def rankings_of_groups(
    groups: Mapping[str, Mapping[Key, Counts]], link: Link, titles: Mapping[str, str]
) -> list[Ranking]:
    """Return a table for each group that is not empty, with stop reasons last.

    ``titles`` are the names of sessions; the id of a session without a title is shown.
    """
    tables = [*TABLES[:-1], _session_table(titles), TABLES[-1]]
    return [_ranking(kind, groups[kind.slug], link) for kind in tables if groups.get(kind.slug)]


def _session_table(titles: Mapping[str, str]) -> TableSpec:
    return TableSpec(
        "session",
        "By session",
        lambda key: cut_middle(titles.get(key[0]) or short_id(key[0]), MAX_TITLE),
        lambda key: {"session_id": key[0]},
    )


def _ranking(kind: TableSpec, groups: Mapping[Key, Counts], link: Link) -> Ranking:
    def weight(sums: Counts) -> int:  # rank stop reasons by requests, and other groups by cost
        return sums["requests"] if kind.slug == "stop_reason" else sums["cost_nanousd"]

    ranked = sorted(groups.items(), key=lambda one: (-weight(one[1]), -one[1]["requests"]))
    most = max((weight(sums) for _, sums in ranked), default=0) or 1
    return Ranking(
        title=kind.title,
        slug=kind.slug,
        rows=[
            _rank(kind, key, sums, round(100 * weight(sums) / most, 1), link)
            for key, sums in ranked[:MAX_ROWS]
        ],
        more=max(0, len(ranked) - MAX_ROWS),
        note=SESSIONS_NOTE if kind.slug == "session" else "",
    )


def _rank(kind: TableSpec, key: Key, sums: Counts, share: float, link: Link) -> Rank:
    filters = kind.filters(key)
    url = "" if filters is None else link(**filters)
    return Rank(
        name=kind.name(key),
        url=session_url(key[0]) if kind.slug == "session" else url,
        cost=dollars(queries.cost_of(sums)),
        requests=f"{sums['requests']:,}",
        tokens=short_count(queries.tokens_of(sums)),
        errors=f"{sums['errors']:,}" if sums["errors"] else "",
        errors_url="" if filters is None else link(**filters, result="failed"),
        share=share,
    )
