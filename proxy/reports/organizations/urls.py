"""The URLs under /v1/organizations/: the paths of Anthropic's API, without trailing slash."""

from collections.abc import Mapping
from typing import Final

from django.urls import path, re_path

from proxy.reports.core.base_views import ReportView
from proxy.reports.core.exception_handler import not_found

from . import lists, usage_reports

VIEWS: Final[Mapping[str, type[ReportView]]] = {
    "me": lists.MeView,
    "usage_report/messages": usage_reports.UsageReportView,
    "usage_report/claude_code": usage_reports.ClaudeCodeView,
    "cost_report": usage_reports.CostReportView,
    "analytics/usage": usage_reports.AnalyticsUsageView,
    "analytics/cost": usage_reports.AnalyticsCostView,
    "api_keys": lists.KeysView,
    "api_keys/<str:ident>": lists.KeyView,
    "users": lists.UsersView,
    "users/<str:ident>": lists.UserView,
    "workspaces": lists.WorkspacesView,
    "workspaces/<str:ident>": lists.WorkspaceView,
    "workspaces/<str:ident>/members": lists.MembersView,
    "spend_limits": lists.SpendLimitsView,
    "spend_limits/effective": lists.EffectiveView,
}

app_name = "organizations"
urlpatterns = [
    *(path(route, view.as_view()) for route, view in VIEWS.items()),
    re_path(r"\A(?P<rest>(?s:.*))\Z", not_found),
]
