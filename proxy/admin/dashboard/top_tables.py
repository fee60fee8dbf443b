"""The "top" tables of the dashboard: costs by team, model, user, key, session; stop reasons."""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from proxy.admin.core.exchange_text import session_url, short_id
from proxy.admin.core.number_format import dollars, short_count
from proxy.ledger.transcripts.turn_summary import cut_middle

from . import queries
from .charts import Link
from .queries import Counts, Key

MAX_ROWS: Final = 8  # maximum rows of each table
MAX_TITLE: Final = 90  # characters of a session's title
SESSIONS_NOTE: Final = "The most expensive sessions, by whole days in UTC."


class TopTable(NamedTuple):
    """One table. ``filters`` returns the request list's query parameters for a row, or None."""

    title: str
    name: Callable[[Key], str]
    filters: Callable[[Key], dict[str, Any] | None]


TABLES: Final[Mapping[str, TopTable]] = {
    "team": TopTable("By team", lambda key: key[0] or "no team", lambda key: {"of_team": key[0]}),
    "model": TopTable(
        "By model", lambda key: key[0] or "not named", lambda key: {"model_requested": key[0]}
    ),
    "user": TopTable(
        "By user",
        lambda key: key[0] or "no user",
        lambda key: {"user": key[0]} if key[0] else None,
    ),
    "key": TopTable(
        "By key",
        lambda key: f"{key[0]} / {key[2]}" if key[2] else "no key",
        lambda key: {"key_id": key[1] or 0},
    ),
    "session": TopTable(
        "By session", lambda key: short_id(key[0]), lambda key: {"session_id": key[0]}
    ),
    "stop_reason": TopTable(
        "By stop reason",
        lambda key: key[0] or "none (incomplete or failed)",
        lambda key: {"stopped": key[0] or "none"},
    ),
}


def rankings_of_groups(
    groups: Mapping[str, Mapping[Key, Counts]], link: Link, titles: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Return the template values of a table for each group that is not empty.

    ``titles`` are the names of sessions; the id of a session without a title is shown.
    """
    return [
        _ranking(slug, table, found, link, titles)
        for slug, table in TABLES.items()
        if (found := groups.get(slug))
    ]


def _ranking(
    slug: str, table: TopTable, groups: Mapping[Key, Counts], link: Link, titles: Mapping[str, str]
) -> dict[str, Any]:
    def weight(sums: Counts) -> int:  # rank stop reasons by requests, and other groups by cost
        return sums["requests"] if slug == "stop_reason" else sums["cost_nanousd"]

    ranked = sorted(groups.items(), key=lambda one: (-weight(one[1]), -one[1]["requests"]))
    most = max((weight(sums) for _, sums in ranked), default=0) or 1
    rows = []
    for key, sums in ranked[:MAX_ROWS]:
        filters, name = table.filters(key), table.name(key)
        is_session = slug == "session"
        rows.append(
            {
                "name": cut_middle(titles.get(key[0]) or name, MAX_TITLE) if is_session else name,
                # A group without a filter of the request list has no link.
                "url": session_url(key[0])
                if is_session
                else ("" if filters is None else link(**filters)),
                "cost": dollars(queries.cost_of(sums)),
                "requests": f"{sums['requests']:,}",
                "tokens": short_count(queries.tokens_of(sums)),
                "errors": f"{sums['errors']:,}" if sums["errors"] else "",
                "errors_url": "" if filters is None else link(**filters, result="failed"),
                # The length of the row's bar, in percent of the longest bar of the table.
                "share": round(100 * weight(sums) / most, 1),
            }
        )
    return {
        "title": table.title,
        "slug": slug,
        "rows": rows,
        "more": max(0, len(ranked) - MAX_ROWS),
        "note": SESSIONS_NOTE if slug == "session" else "",
    }
