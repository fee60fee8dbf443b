"""The paths of the reports with their views, for the URLs, the API documentation and the tests."""

from collections.abc import Mapping
from typing import Final

from proxy.reports.core.base_views import ReportView

from .audit import views as audit_views
from .exports import views as exports_views
from .requests import raw_bodies, search, sessions, transcripts
from .requests import views as requests_views
from .setup import admission_dry_run, own_keys
from .setup import write_views as setup
from .usage import budgets, comparison, latency_errors_cache, me, outcomes, summary, usage

VIEWS: Final[Mapping[str, type[ReportView]]] = {
    "usage": usage.UsageView,
    "summary": summary.SummaryView,
    "timeseries": summary.TimeseriesView,
    "top": summary.TopView,
    "latency": latency_errors_cache.LatencyView,
    "errors": latency_errors_cache.ErrorsView,
    "cache": latency_errors_cache.CacheView,
    "comparison": comparison.ComparisonView,
    "outcomes": outcomes.OutcomesView,
    "requests": requests_views.RequestsView,
    "requests/<str:request_id>": requests_views.RequestView,
    "requests/<str:request_id>/transcript": transcripts.TranscriptView,
    "requests/<str:request_id>/raw/<str:side>": raw_bodies.RawView,
    "search": search.SearchView,
    "sessions": sessions.SessionsView,
    "sessions/<path:session_id>": sessions.SessionView,
    "budgets": budgets.BudgetsView,
    "budgets/<str:budget_id>/status": budgets.BudgetView,
    "exports": exports_views.ExportsView,
    "exports/<str:export_id>": exports_views.ExportView,
    "exports/<str:export_id>/download": exports_views.ExportFileView,
    "audit": audit_views.AuditView,
    "me": me.MeView,
    "me/rehearsal": admission_dry_run.MyDryRunView,
    "me/keys": own_keys.OwnKeysView,
    "me/keys/<int:key_id>": own_keys.OwnKeyView,
    "me/keys/<int:key_id>/rotate": own_keys.OwnKeyRotationView,
    "keys": setup.KeysView,
    "keys/<int:key_id>": setup.KeyView,
    "keys/<int:key_id>/rehearsal": admission_dry_run.KeyDryRunView,
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
