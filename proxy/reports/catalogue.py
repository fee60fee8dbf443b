"""Which report answers at which path: the urls, the docs and the table of permissions go by it."""

from collections.abc import Mapping
from typing import Final

from . import (
    budgets,
    downloads,
    exports,
    figures,
    me,
    rehearsals,
    requests,
    sessions,
    shares,
    transcripts,
    usage,
)
from .base import ReportView
from .writing import views as setup

VIEWS: Final[Mapping[str, type[ReportView]]] = {
    "usage": usage.UsageView,
    "summary": figures.SummaryView,
    "timeseries": figures.TimeseriesView,
    "top": figures.TopView,
    "latency": shares.LatencyView,
    "errors": shares.ErrorsView,
    "cache": shares.CacheView,
    "requests": requests.RequestsView,
    "requests/<str:request_id>": requests.RequestView,
    "requests/<str:request_id>/transcript": transcripts.TranscriptView,
    "requests/<str:request_id>/raw/<str:side>": downloads.RawView,
    "sessions": sessions.SessionsView,
    "sessions/<path:session_id>": sessions.SessionView,
    "budgets": budgets.BudgetsView,
    "budgets/<str:budget_id>/status": budgets.BudgetView,
    "exports": exports.ExportsView,
    "exports/<str:export_id>": exports.ExportView,
    "exports/<str:export_id>/download": exports.ExportFileView,
    "me": me.MeView,
    "me/rehearsal": rehearsals.MyRehearsalView,
    "keys": setup.KeysView,
    "keys/<int:key_id>": setup.KeyView,
    "keys/<int:key_id>/rehearsal": rehearsals.RehearsalView,
    "teams": setup.TeamsView,
    "teams/<str:team>": setup.TeamView,
    "users": setup.UsersView,
    "users/<str:user>": setup.UserView,
    "models": setup.ModelsView,
    "models/<int:route_id>": setup.ModelView,
    "upstreams": setup.UpstreamsView,
    "upstreams/<str:upstream>": setup.UpstreamView,
    "prices": setup.PricesView,
    "prices/<int:price_id>": setup.PriceView,
}
