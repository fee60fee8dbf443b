"""The page on stop reasons: why answers ended, by model, tool, client version, team or user."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.timezone import now
from django.views.decorators.http import require_GET

from proxy.admin.core.number_format import percent, short_count
from proxy.admin.core.permissions import require_reader
from proxy.permissions.row_permissions import reader_of_user

from . import queries
from .outcomes import RANGES, DayQuery, choices, parse_query
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

Key = tuple[str, ...]
Table = dict[Key, Counter[str]]  # group -> stop reason -> requests


@require_GET
def stop_reasons_view(request: HttpRequest) -> HttpResponse:
    """Show a table with a row for each group and a column for each frequent stop reason."""
    require_reader(request)
    params = parse_query(request, now(), GROUPS, "stop_reasons")
    reader = reader_of_user(request.user)
    table = _table(reader, params)
    ranked = sorted(table, key=lambda key: (-table[key].total(), key))
    if params.by == "day":
        ranked = sorted(table, reverse=True)
    totals: Counter[str] = Counter()
    for counts in table.values():
        totals.update(counts)
    columns = [reason for reason, _ in totals.most_common(MAX_COLUMNS)]
    link = _links(params)
    context = {
        **admin.site.each_context(request),
        "title": "Stop reasons",
        "params": params,
        "ranges": choices(params, "range", RANGES),
        "groups": choices(params, "by", GROUPS),
        "group_label": GROUPS[params.by],
        "columns": [reason or NO_REASON for reason in columns],
        "has_more_reasons": len(totals) > MAX_COLUMNS,
        "rows": [_row(params.by, key, table[key], columns, link) for key in ranked[:MAX_ROWS]],
        "more": len(ranked) > MAX_ROWS,
        "own_only": not reader.may_report,
    }
    return TemplateResponse(request, "admin/proxy/dashboard/stop_reasons.html", context)


def _table(reader: Any, params: DayQuery) -> Table:
    groups = ["client", "client_version"] if params.by == "client_version" else [params.by]
    table: Table = {}
    for row in queries.stop_reason_rows(reader, params.since, params.until, groups):
        key = tuple(row[name] or "" for name in groups)
        table.setdefault(key, Counter())[row["stop_reason"] or ""] += row["requests"]
    return table


def _links(params: DayQuery) -> Callable[..., str]:
    """Return a function that links to the requests of a row; "" if no filter selects them."""
    link = request_list_links(TimeRange([params.since, params.until], "all", load_zone("UTC")))
    names = LINKED.get(params.by, ())

    def url(key: Key, **more: str) -> str:
        filters = dict(zip(names, key, strict=True)) if names else {}
        return link(**filters, **more) if filters and all(filters.values()) else ""

    return url


def _row(
    by: str, key: Key, counts: Counter[str], columns: Sequence[str], link: Callable[..., str]
) -> dict[str, Any]:
    name = " ".join(filter(None, key)) or NO_VALUE.get(by, "(unknown)")
    total = counts.total()
    rest = total - sum(counts[reason] for reason in columns)
    return {
        "name": name,
        "url": link(key),
        "requests": short_count(total),
        "cells": [
            {
                "share": percent(counts[reason], total),
                "count": short_count(counts[reason]),
                "url": link(key, stopped=reason) if reason else "",
            }
            if counts[reason]
            else None
            for reason in columns
        ],
        "rest": short_count(rest) if rest else "",
    }
