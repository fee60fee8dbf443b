"""The page that compares models: cost, speed, errors and cut answers, as a table or as a chart."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.views.decorators.http import require_GET

from proxy.admin.core.number_format import UNKNOWN, dollars, duration, short_count
from proxy.admin.core.permissions import require_reader
from proxy.permissions.row_permissions import reader_of_user

from . import queries
from .queries import Key
from .views import DashboardQuery, form_context, parse_query, request_list_links

MAX_ROWS: Final = 50

GROUPS: Final[Mapping[str, tuple[str, str]]] = {  # value -> (label, filter of the request list)
    "model": ("Model", "model_requested"),
    "model_upstream": ("Upstream model", ""),
    "upstream": ("Upstream", "via"),
    "client": ("Client", ""),
}


def _money(value: float | None) -> str:
    return UNKNOWN if value is None else dollars(round(value))


def _rate(value: float | None) -> str:
    return UNKNOWN if value is None else f"{100 * value:.1f} %"


def _speed(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:,.1f} tokens/s"


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
        "output_tokens_per_upstream_s", "Speed", _speed, "output_tokens_per_upstream_s_delta_pct",
        "good",
    ),
    Figure("error_rate", "Error rate", _rate, "error_rate_delta_pct", "bad"),
    Figure("cut_rate", "Cut answers", _rate, "cut_rate_delta_pct", "bad"),
)  # fmt: skip
BY_NAME: Final = {figure.name: figure for figure in FIGURES}


class Cell(NamedTuple):
    text: str
    change: str
    tone: str


class Bar(NamedTuple):
    """One row of the chart. ``percent``: its length, compared with the longest bar."""

    name: str
    url: str
    value: str
    percent: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonQuery:
    """The choices of the page beside the range and the time zone."""

    by: str
    show: str
    figure: str
    form: DashboardQuery

    def url(self, **changes: str) -> str:
        values = {
            "range": self.form.range,
            "from": self.form.start,
            "to": self.form.end,
            "by": self.by,
            "show": self.show,
            "figure": self.figure,
        }
        return "?" + urlencode({name: value for name, value in (values | changes).items() if value})


def parse_choices(request: HttpRequest) -> ComparisonQuery:
    """Parse the query string; an unknown value is replaced by its default."""
    get = request.GET
    return ComparisonQuery(
        by=get["by"] if get.get("by") in GROUPS else "model",
        show="chart" if get.get("show") == "chart" else "table",
        figure=get["figure"] if get.get("figure") in BY_NAME else "cost_per_request_nanousd",
        form=parse_query(request),
    )


@require_GET
def comparison_view(request: HttpRequest) -> HttpResponse:
    """Show the models side by side; the figures come from the usage rollups."""
    require_reader(request)
    params = parse_choices(request)
    reader, time_range = reader_of_user(request.user), params.form.time_range
    earlier = queries.period_before(time_range)
    before = queries.compare(reader, earlier, params.by)
    now = queries.compare(reader, time_range, params.by)
    ranked = sorted(now.items(), key=lambda one: (-one[1].sums["requests"], str(one[0])))
    figures = {key: one.figures() for key, one in ranked[:MAX_ROWS]}
    links = _links(params)
    context = {
        **admin.site.each_context(request),
        **form_context(params.form),
        "title": "Comparison of models",
        "choices": params,
        "groups": _choices(params, "by", {name: label for name, (label, _) in GROUPS.items()}),
        "shows": _choices(params, "show", {"table": "Table", "chart": "Chart"}),
        "figures": _choices(params, "figure", {one.name: one.label for one in FIGURES}),
        "group_label": GROUPS[params.by][0],
        "columns": FIGURES,
        "rows": [
            {
                "name": _name(key),
                "url": links(key),
                "cells": _cells(figures[key], before.get(key)),
                "cut": now[key].cut,
                "cut_url": links(key, stopped="max_tokens"),
            }
            for key in figures
        ],
        "figure": BY_NAME[params.figure],
        "bars": bars_of(params, figures, links),
        "more": max(0, len(ranked) - MAX_ROWS),
        "compared": f"{earlier.start.astimezone(time_range.zone):%d %b %Y, %H:%M}",
        "csv_url": _csv_url(params),
        "own_only": not reader.may_report,
    }
    return TemplateResponse(request, "admin/proxy/dashboard/comparison.html", context)


def _links(params: ComparisonQuery) -> Callable[..., str]:
    """Return a function that links to the requests of a row; "" if no filter selects them."""
    link, column = request_list_links(params.form.time_range), GROUPS[params.by][1]
    return lambda key, **more: link(**{column: key[0]}, **more) if key[0] and column else ""


def _csv_url(params: ComparisonQuery) -> str:
    time_range = params.form.time_range
    query = {
        "format": "csv", "by": params.by, "from": time_range.start.isoformat(),
        "to": time_range.end.isoformat(), "tz": str(time_range.zone),
    }  # fmt: skip
    return f"/api/v1/comparison/?{urlencode(query)}"


def _choices(
    params: ComparisonQuery, parameter: str, labels: Mapping[str, str]
) -> list[dict[str, Any]]:
    current = getattr(params, parameter)
    return [
        {"label": label, "url": params.url(**{parameter: name}), "current": name == current}
        for name, label in labels.items()
    ]


def _name(key: Key) -> str:
    return str(key[0] or "(none)")


def _cells(figures: Mapping[str, Any], before: queries.Compared | None) -> list[Cell]:
    changes = queries.deltas(dict(figures), before.figures() if before else None)
    return [_cell(one, figures[one.name], changes.get(one.delta)) for one in FIGURES]


def _cell(figure: Figure, value: Any, change: float | None) -> Cell:
    if change is None:
        return Cell(figure.format(value), "", "")
    text = "no change" if round(change) == 0 else f"{change:+,.0f} %"
    if abs(change) >= 1000:
        text = "over +1,000 %"
    good = (change > 0) == (figure.more_is == "good")
    is_neutral = not figure.more_is or round(change) == 0
    return Cell(figure.format(value), text, "" if is_neutral else "good" if good else "bad")


def bars_of(
    params: ComparisonQuery, figures: Mapping[Key, Mapping[str, Any]], links: Callable[..., str]
) -> Sequence[Bar]:
    """Return a bar for each model, the longest first; an unknown value has no bar."""
    figure = BY_NAME[params.figure]
    values = {key: one[figure.name] for key, one in figures.items()}
    most = max((value for value in values.values() if value), default=0) or 1
    order = sorted(values, key=lambda key: (values[key] is None, -(values[key] or 0)))
    return [
        Bar(
            name=_name(key),
            url=links(key),
            value=figure.format(values[key]),
            percent=round(100 * (values[key] or 0) / most, 2),
        )
        for key in order
    ]
