"""The reports that can be saved, and the check of their parameters."""

import json
from collections.abc import Mapping
from typing import Any, Final

from django.http import QueryDict
from rest_framework import serializers

from proxy.reports.core.base_views import ReportView
from proxy.reports.core.exception_handler import format_detail
from proxy.reports.core.query_parameters import normalize_query
from proxy.reports.requests.sessions import SessionsView
from proxy.reports.requests.views import RequestsView
from proxy.reports.usage import days, reports, usage

REPORTS: Final[Mapping[str, type[ReportView]]] = {
    "usage": usage.UsageView,
    "summary": reports.SummaryView,
    "timeseries": reports.TimeseriesView,
    "top": reports.TopView,
    "latency": reports.LatencyView,
    "errors": reports.ErrorsView,
    "cache": reports.CacheView,
    "comparison": reports.ComparisonView,
    "outcomes": days.OutcomesView,
    "stop_reasons": days.StopReasonsView,
    "requests": RequestsView,
    "sessions": SessionsView,
}
MAX_QUERY_CHARS: Final = 4_000
PERIOD: Final = frozenset({"month", "from", "to"})
"""Parameters of which a caller's own replace all of the saved ones."""


def query_error(report: str, stored: Any) -> str:
    """Return why the report does not accept these parameters, with the name of the parameter.

    The result is empty if it does. A page of a list cannot be saved.
    """
    if not isinstance(stored, dict) or len(json.dumps(stored)) > MAX_QUERY_CHARS:
        return f"expected an object of at most {MAX_QUERY_CHARS} characters"
    if "page" in stored:
        return "page: a saved report starts with its first page"
    try:
        parameters = REPORTS[report].parameters(data=normalize_query(as_query(stored)))
        parameters.is_valid(raise_exception=True)
    except serializers.ValidationError as error:
        return format_detail(error.detail)
    return ""


def as_query(stored: Mapping[str, Any], given: QueryDict | None = None) -> QueryDict:
    """Return the saved parameters as those of a URL. ``given``: parameters that replace them."""
    query = QueryDict(mutable=True)
    replaced = {name.removesuffix("[]") for name in given or ()}
    if replaced & PERIOD:
        replaced |= PERIOD
    for name, value in stored.items():
        if name.removesuffix("[]") not in replaced:
            values = value if isinstance(value, list) else [value]
            query.setlist(name, [_text(one) for one in values])
    for name in given or ():
        query.setlist(name, given.getlist(name) if given else [])
    return query


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
