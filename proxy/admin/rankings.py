"""The dashboard's tables: who and what cost most, and how answers ended."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from . import books
from .books import Books, Key, Sums
from .drawings import Link
from .figures import dollars, short_count
from .live import session_url
from .session_list import short_id

ROWS: Final = 8  # of each ranking, before "and so many more"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """One line of a table by team, model, key and so on. Costs and counts as they are read."""

    name: str
    url: str
    """Empty: no list of requests is just these."""
    cost: str
    requests: str
    tokens: str
    errors: str
    errors_url: str
    share: float
    """Of the widest bar, 0 to 100."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    title: str
    slug: str
    rows: Sequence[Rank]
    more: int
    note: str = ""


@dataclass(frozen=True, slots=True)
class Kind:
    """How one table is made. ``filters``: of the request list; None: there are none for it."""

    slug: str
    title: str
    name: Callable[[Key], str]
    filters: Callable[[Key], dict[str, Any] | None]


KINDS: Final = (
    Kind("team", "By team", lambda key: key[0] or "no team", lambda key: {"of_team": key[0]}),
    Kind(
        "model",
        "By model",
        lambda key: key[0] or "not named",
        lambda key: {"model_requested": key[0]},
    ),
    Kind(
        "user",
        "By user",
        lambda key: key[0] or "no user",
        lambda key: {"user": key[0]} if key[0] else None,
    ),
    Kind(
        "key",
        "By key",
        lambda key: f"{key[0]} / {key[2]}" if key[2] else "no key",
        lambda key: {"key_id": key[1] or 0},
    ),
    Kind(
        "session",
        "By session",
        lambda key: short_id(key[0]),
        lambda key: {"session_id": key[0]},
    ),
    Kind(
        "stop_reason",
        "By stop reason",
        lambda key: key[0].replace("_", " ") or "none (cut or failed)",
        lambda key: {"stopped": key[0] or "none"},
    ),
)
SESSIONS_NOTE: Final = "The most expensive ones, counted by whole days of UTC."


def rankings_of(found: Books, link: Link) -> list[Ranking]:
    groups = {**found.groups, "session": found.sessions}
    return [_ranking(kind, groups[kind.slug], link) for kind in KINDS if groups[kind.slug]]


def _ranking(kind: Kind, groups: Mapping[Key, Sums], link: Link) -> Ranking:
    def weight(sums: Sums) -> int:  # a stop reason is a matter of how often, the rest of how dear
        return sums["requests"] if kind.slug == "stop_reason" else sums["cost_nanousd"]

    ranked = sorted(groups.items(), key=lambda one: (-weight(one[1]), -one[1]["requests"]))
    most = max((weight(sums) for _, sums in ranked), default=0) or 1
    return Ranking(
        title=kind.title,
        slug=kind.slug,
        rows=[
            _rank(kind, key, sums, round(100 * weight(sums) / most, 1), link)
            for key, sums in ranked[:ROWS]
        ],
        more=max(0, len(ranked) - ROWS),
        note=SESSIONS_NOTE if kind.slug == "session" else "",
    )


def _rank(kind: Kind, key: Key, sums: Sums, share: float, link: Link) -> Rank:
    filters = kind.filters(key)
    url = "" if filters is None else link(**filters)
    return Rank(
        name=kind.name(key),
        url=session_url(key[0]) if kind.slug == "session" else url,
        cost=dollars(books.cost_of(sums)),
        requests=f"{sums['requests']:,}",
        tokens=short_count(books.tokens_of(sums)),
        errors=f"{sums['errors']:,}" if sums["errors"] else "",
        errors_url="" if filters is None else link(**filters, result="failed"),
        share=share,
    )
