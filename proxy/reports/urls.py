"""The paths under /api/v1/. Each path works with and without a trailing slash."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from django.urls import path, re_path
from rest_framework.routers import DefaultRouter, SimpleRouter

from proxy.reports.core.base_views import ReportView

from . import audit
from .api_docs import DocsView, IndexView, SchemaView
from .core.exception_handler import not_found
from .exports import views as exports_views
from .requests import search, sessions, stop_all, transcripts
from .requests import views as requests_views
from .saved.reports import REPORTS
from .saved.views import SavedReportViewSet
from .setup import admission_dry_run, own_keys, pauses, viewsets, webhooks
from .usage import budgets

VIEWS: Final[Mapping[str, type[ReportView]]] = {
    **REPORTS,
    "requests/<str:request_id>": requests_views.RequestView,
    "requests/<str:request_id>/transcript": transcripts.TranscriptView,
    "requests/<str:request_id>/raw/<str:side>": transcripts.RawView,
    "search": search.SearchView,
    "stop": stop_all.StopView,
    "sessions/<path:session_id>": sessions.SessionView,
    "budgets/<str:budget_id>/status": budgets.BudgetStatusView,
    "exports": exports_views.ExportsView,
    "exports/<str:export_id>": exports_views.ExportView,
    "exports/<str:export_id>/download": exports_views.ExportFileView,
    "audit": audit.AuditView,
    "me": budgets.MeView,
    "me/dry-run": admission_dry_run.MyDryRunView,
    "me/rehearsal": admission_dry_run.FormerMyDryRunView,
    "me/keys": own_keys.OwnKeysView,
    "me/keys/<str:key_id>": own_keys.OwnKeyView,
    "me/keys/<str:key_id>/rotate": own_keys.OwnKeyRotationView,
    "keys/<str:key_id>/dry-run": admission_dry_run.KeyDryRunView,
    "keys/<str:key_id>/rehearsal": admission_dry_run.FormerKeyDryRunView,
}
"""The reports, which are computed. The tables of the configuration have viewsets."""

VIEWSETS: Final[Sequence[type[viewsets.ConfigViewSet]]] = (
    viewsets.KeyViewSet,
    viewsets.TeamViewSet,
    viewsets.UserViewSet,
    viewsets.RouteViewSet,
    viewsets.UpstreamViewSet,
    viewsets.PriceViewSet,
    viewsets.BudgetViewSet,
    pauses.PauseViewSet,
    webhooks.WebhookViewSet,
    webhooks.DeliveryViewSet,
    SavedReportViewSet,
)


def _name(route: str) -> str:
    words = [part for part in route.split("/") if not part.startswith("<")]
    return "-".join(words) + ("-one" if "<" in route else "")


class Router(DefaultRouter):
    """DRF's router, whose index also lists the reports, which are no viewsets."""

    include_format_suffixes = False

    def get_api_root_view(self, api_urls: Any = None) -> Any:
        lists = {prefix: f"{prefix}-list" for prefix, *_ in self.registry}
        reports = {route: _name(route) for route in VIEWS if "<" not in route}
        others = {name: name for name in ("schema", "docs")}
        return IndexView.as_view(api_root_dict={**reports, **lists, **others})


def _patterns(slash: str) -> list[Any]:
    """Return the paths of all views and viewsets, each with this ending."""
    router = (Router if slash else SimpleRouter)(use_regex_path=False)
    router.trailing_slash = slash
    for viewset in VIEWSETS:
        basename = viewset.resource if slash else f"{viewset.resource}-without-slash"
        router.register(viewset.resource, viewset, basename=basename)
    names = [_name(route) if slash else None for route in VIEWS]
    views = [
        path(f"{route}{slash}", view.as_view(), name=name)
        for (route, view), name in zip(VIEWS.items(), names, strict=True)
    ]
    return [*views, *router.urls]


app_name = "reports"
urlpatterns = [
    *_patterns("/"),
    *_patterns(""),
    path("schema/", SchemaView.as_view(), name="schema"),
    path("docs/", DocsView.as_view(), name="docs"),
    re_path(r"\A(?P<rest>(?s:.*))\Z", not_found),
]
