"""/v1/organizations/: Anthropic's paths, which have no last slash."""

from collections.abc import Mapping
from typing import Final

from django.urls import path, re_path

from proxy.reports.base import ReportView
from proxy.reports.faults import not_found

from . import analytics, lists, usage_report

VIEWS: Final[Mapping[str, type[ReportView]]] = {
    "me": lists.MeView,
    "usage_report/messages": usage_report.UsageReportView,
    "usage_report/claude_code": analytics.ClaudeCodeView,
    "cost_report": usage_report.CostReportView,
    "analytics/usage": analytics.AnalyticsUsageView,
    "analytics/cost": analytics.AnalyticsCostView,
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
