"""The page on stop reasons: why answers ended, by model, tool, client version, team or user."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from django.http import HttpRequest, HttpResponse
from django.utils.timezone import now
from django.views.decorators.http import require_GET

from proxy.admin.core.number_format import percent, short_count
from proxy.admin.core.pages import page, require_reader

from . import queries
from .outcomes import RANGES, parse_query
from .queries import TimeRange, load_zone
from .views import request_list_links

MAX_ROWS: Final = 200
MAX_COLUMNS: Final = 7
GROUPS: Final[Mapping[str, str]] = {
    "model": "Model",
    "tool": "Tool",
    "client_version": "Client version",
    "client": "Client",
    "team": "Team",
    "user": "User",
    "day": "Day",
}
LINKED: Final[Mapping[str, tuple[str, ...]]] = {
    "model": ("model_requested",),
    "client": ("client_name",),
    "client_version": ("client_name", "client_version"),
    "team": ("of_team",),
    "user": ("user",),
}
"""Group -> the filters of the request list that select its requests."""
NO_VALUE: Final = {"tool": "(no tool)"}
NO_REASON: Final = "(none)"


@require_GET
def stop_reasons_view(request: HttpRequest) -> HttpResponse:
    """Show a table with a row for each group and a column for each frequent stop reason."""
    reader = require_reader(request)
    params = parse_query(request, now(), GROUPS, "stop_reasons")
    groups = ["client", "client_version"] if params.by == "client_version" else [params.by]
    table: dict[tuple[str, ...], Counter[str]] = {}  # group -> stop reason -> requests
    totals: Counter[str] = Counter()
    for found in queries.stop_reason_rows(reader, params.since, params.until, groups):
        key, reason = tuple(found[name] or "" for name in groups), found["stop_reason"] or ""
        table.setdefault(key, Counter())[reason] += found["requests"]
        totals[reason] += found["requests"]
    ranked = sorted(table, key=lambda key: (-table[key].total(), key))
    if params.by == "day":
        ranked = sorted(table, reverse=True)
    columns = [reason for reason, _ in totals.most_common(MAX_COLUMNS)]
    link = request_list_links(TimeRange([params.since, params.until], "all", load_zone("UTC")))
    filters = LINKED.get(params.by, ())

    def url(key: tuple[str, ...], **more: str) -> str:
        """Link to the requests of a row; "" if no filter selects them."""
        if not (filters and all(key)):
            return ""
        return link(**dict(zip(filters, key, strict=True)), **more)

    return page(
        request,
        "dashboard/stop_reasons",
        "Stop reasons",
        params=params,
        ranges=params.links("range", RANGES),
        groups=params.links("by", GROUPS),
        group_label=GROUPS[params.by],
        columns=[reason or NO_REASON for reason in columns],
        has_more_reasons=len(totals) > MAX_COLUMNS,
        rows=[
            {
                "name": " ".join(filter(None, key)) or NO_VALUE.get(params.by, "(unknown)"),
                "url": url(key),
                **_figures(table[key], columns, partial(url, key)),
            }
            for key in ranked[:MAX_ROWS]
        ],
        more=len(ranked) > MAX_ROWS,
        own_only=not reader.may_report,
    )


def _figures(
    counts: Counter[str], columns: Sequence[str], link: Callable[..., str]
) -> dict[str, Any]:
    """Return the cells of a row: for each stop reason its share and its number of requests."""
    total = counts.total()
    rest = total - sum(counts[reason] for reason in columns)
    return {
        "requests": short_count(total),
        "cells": [
            {
                "share": percent(counts[reason], total),
                "count": short_count(counts[reason]),
                "url": link(stopped=reason) if reason else "",
            }
            if counts[reason]
            else None
            for reason in columns
        ],
        "rest": short_count(rest) if rest else "",
    }
