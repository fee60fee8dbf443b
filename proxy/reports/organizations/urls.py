"""The URLs under /v1/organizations/: the paths of Anthropic's API, without trailing slash."""

from collections.abc import Mapping
from typing import Final

from django.urls import path, re_path

from proxy.reports.core.base_views import ReportView
from proxy.reports.core.exception_handler import not_found

from . import admin_api_views, analytics, claude_code, spend_limits, usage_report

VIEWS: Final[Mapping[str, type[ReportView]]] = {
    "me": admin_api_views.MeView,
    "usage_report/messages": usage_report.UsageReportView,
    "usage_report/claude_code": claude_code.ClaudeCodeView,
    "cost_report": usage_report.CostReportView,
    "analytics/usage": analytics.AnalyticsUsageView,
    "analytics/cost": analytics.AnalyticsCostView,
    "api_keys": admin_api_views.KeysView,
    "api_keys/<str:ident>": admin_api_views.KeyView,
    "users": admin_api_views.UsersView,
    "users/<str:ident>": admin_api_views.UserView,
    "workspaces": admin_api_views.WorkspacesView,
    "workspaces/<str:ident>": admin_api_views.WorkspaceView,
    "workspaces/<str:ident>/members": admin_api_views.MembersView,
    "spend_limits": spend_limits.SpendLimitsView,
    "spend_limits/effective": spend_limits.EffectiveView,
}

app_name = "organizations"
urlpatterns = [
    *(path(route, view.as_view()) for route, view in VIEWS.items()),
    re_path(r"\A(?P<rest>(?s:.*))\Z", not_found),
]
