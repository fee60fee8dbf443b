"""The page that compares models: cost, speed, errors and cut answers, as a table or as a chart."""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_GET

from proxy.admin.core.number_format import UNKNOWN, dollars, duration, short_count
from proxy.admin.core.pages import choice_links, page, query_string, require_reader

from . import queries
from .views import form_context, parse_query, request_list_links

MAX_ROWS: Final = 50

GROUPS: Final[Mapping[str, tuple[str, str]]] = {  # value -> (label, filter of the request list)
    "model": ("Model", "model_requested"),
    "model_upstream": ("Upstream model", ""),
    "upstream": ("Upstream", "via"),
    "client": ("Client", ""),
}
SHOWS: Final = {"table": "Table", "chart": "Chart"}


def _money(value: float | None) -> str:
    return UNKNOWN if value is None else dollars(round(value))


def _rate(value: float | None) -> str:
    return UNKNOWN if value is None else f"{100 * value:.1f} %"


class Figure(NamedTuple):
    """A column of the table, and a choice of the chart. ``more_is``: good, bad or neither."""

    name: str
    label: str
    format: Callable[[Any], str]
    delta: str = ""
    more_is: str = ""


FIGURES: Final = (
    Figure("requests", "Requests", short_count, "requests_delta_pct"),
    Figure("input_tokens", "Input", short_count),
    Figure("output_tokens", "Output", short_count),
    Figure("cost_nanousd", "Cost", _money, "cost_delta_pct"),
    Figure(
        "cost_per_request_nanousd", "Cost per request", _money, "cost_per_request_delta_pct", "bad"
    ),
    Figure(
        "cost_per_million_tokens_nanousd", "Cost per million tokens", _money,
        "cost_per_million_tokens_delta_pct", "bad",
    ),
    Figure("ttft_p50_ms", "First byte, p50", duration, "ttft_p50_delta_pct", "bad"),
    Figure("ttft_p95_ms", "First byte, p95", duration),
    Figure(
        "output_tokens_per_upstream_s", "Speed",
        lambda value: UNKNOWN if value is None else f"{value:,.1f} tokens/s",
        "output_tokens_per_upstream_s_delta_pct", "good",
    ),
    Figure("error_rate", "Error rate", _rate, "error_rate_delta_pct", "bad"),
    Figure("cut_rate", "Cut answers", _rate, "cut_rate_delta_pct", "bad"),
)  # fmt: skip
BY_NAME: Final = {figure.name: figure for figure in FIGURES}


@require_GET
def comparison_view(request: HttpRequest) -> HttpResponse:
    """Show the models side by side; the figures come from the usage rollups.

    An unknown value in the query string is replaced by its default.
    """
    reader, get, params = require_reader(request), request.GET, parse_query(request)
    by = get["by"] if get.get("by") in GROUPS else "model"
    show = get["show"] if get.get("show") in SHOWS else "table"
    name = get["figure"] if get.get("figure") in BY_NAME else "cost_per_request_nanousd"
    chosen = {"by": by, "show": show, "figure": name}
    time_range, figure = params.time_range, BY_NAME[name]
    earlier = queries.period_before(time_range)
    before = queries.compare(reader, earlier, by)
    now = queries.compare(reader, time_range, by)
    ranked = sorted(now.items(), key=lambda one: (-one[1].sums["requests"], str(one[0])))
    link, column = request_list_links(time_range), GROUPS[by][1]
    rows = []
    for key, one in ranked[:MAX_ROWS]:
        figures = one.figures()
        earlier_figures = before[key].figures() if key in before else None
        changes = queries.deltas(figures, earlier_figures)
        has_filter = bool(key[0] and column)  # else no filter of the list selects the requests
        rows.append(
            {
                "name": str(key[0] or "(none)"),
                "url": link(**{column: key[0]}) if has_filter else "",
                "cells": [_cell(f, figures[f.name], changes.get(f.delta)) for f in FIGURES],
                "cut": one.cut,
                "cut_url": link(**{column: key[0]}, stopped="max_tokens") if has_filter else "",
                "figure": figures[name],
                "value": figure.format(figures[name]),
            }
        )
    most = max((row["figure"] for row in rows if row["figure"]), default=0) or 1

    def choices(parameter: str, labels: Mapping[str, str]) -> list[dict[str, Any]]:
        shown = {"range": params.range, "from": params.start, "to": params.end, **chosen}
        return choice_links(
            labels, chosen[parameter], lambda one: query_string({**shown, parameter: one})
        )

    csv = {
        "format": "csv", "by": by, "from": time_range.start.isoformat(),
        "to": time_range.end.isoformat(), "tz": str(time_range.zone),
    }  # fmt: skip
    return page(
        request,
        "dashboard/comparison",
        "Comparison of models",
        **form_context(params),
        choices=chosen,
        groups=choices("by", {value: label for value, (label, _) in GROUPS.items()}),
        shows=choices("show", SHOWS),
        figures=choices("figure", {one.name: one.label for one in FIGURES}),
        group_label=GROUPS[by][0],
        columns=FIGURES,
        rows=rows,
        figure=figure,
        # The longest bar first; an unknown value has no bar.
        bars=[
            {**row, "percent": round(100 * (row["figure"] or 0) / most, 2)}
            for row in sorted(rows, key=lambda row: (row["figure"] is None, -(row["figure"] or 0)))
        ],
        more=max(0, len(ranked) - MAX_ROWS),
        compared=f"{earlier.start.astimezone(time_range.zone):%d %b %Y, %H:%M}",
        csv_url=f"/api/v1/comparison/?{urlencode(csv)}",
        own_only=not reader.may_report,
    )


def _cell(figure: Figure, value: Any, change: float | None) -> dict[str, str]:
    """Return a value with its change in percent, which is good or bad news."""
    if change is None:
        return {"text": figure.format(value)}
    is_neutral = not figure.more_is or round(change) == 0
    good = (change > 0) == (figure.more_is == "good")
    text = "no change" if round(change) == 0 else f"{change:+,.0f} %"
    return {
        "text": figure.format(value),
        "change": "over +1,000 %" if abs(change) >= 1000 else text,
        "tone": "" if is_neutral else "good" if good else "bad",
    }
