"""The links of the admin's sidebar. A link is shown only to users who may open its page."""

from typing import Any, Final, NamedTuple

from django.http import HttpRequest
from django.urls import reverse

from proxy.permissions.row_permissions import can_open_admin


class SidebarItem(NamedTuple):
    """One link of the sidebar.

    Without a ``permission``, the link is shown to all users who may see requests.
    """

    title: str
    icon: str
    url_name: str
    permission: str = ""


WATCH: Final = (
    SidebarItem("Dashboard", "monitoring", "admin:index"),
    SidebarItem("Requests", "list_alt", "admin:proxy_exchange_changelist"),
    SidebarItem("Sessions", "forum", "admin:proxy_sessions"),
    SidebarItem("Comparison", "compare_arrows", "admin:proxy_comparison"),
    SidebarItem("Stop reasons", "block", "admin:proxy_stop_reasons"),
    SidebarItem("Search", "search", "admin:proxy_search", "proxy.view_transcript"),
    SidebarItem("Outcomes", "task_alt", "admin:proxy_outcomes"),
    SidebarItem(
        "Reports", "summarize", "admin:proxy_savedreport_changelist", "proxy.view_savedreport"
    ),
    SidebarItem("Live", "sensors", "admin:proxy_live"),
    SidebarItem(
        "Audit log", "policy", "admin:proxy_auditentry_changelist", "proxy.view_auditentry"
    ),
    SidebarItem("Drift", "radar", "admin:proxy_drift_changelist", "proxy.view_drift"),
)
CONTROL: Final = (
    SidebarItem("Keys", "key", "admin:proxy_apikey_changelist", "proxy.view_apikey"),
    SidebarItem("Teams", "groups", "admin:proxy_team_changelist", "proxy.view_team"),
    SidebarItem("Routes", "alt_route", "admin:proxy_route_changelist", "proxy.view_route"),
    SidebarItem("Upstreams", "dns", "admin:proxy_upstream_changelist", "proxy.view_upstream"),
    SidebarItem("Pauses", "pause_circle", "admin:proxy_pause_changelist", "proxy.view_pause"),
    SidebarItem(
        "Policies", "rule", "admin:proxy_upstreampolicy_changelist", "proxy.view_upstreampolicy"
    ),
    SidebarItem("Prices", "sell", "admin:proxy_price_changelist", "proxy.view_price"),
    SidebarItem("Budgets", "savings", "admin:proxy_budget_changelist", "proxy.view_budget"),
    SidebarItem("Webhooks", "webhook", "admin:proxy_webhook_changelist", "proxy.view_webhook"),
    SidebarItem("Storage", "database", "admin:proxy_storage", "proxy.purge_transcript"),
)
PEOPLE: Final = (
    SidebarItem("My page", "account_circle", "admin:proxy_me"),
    SidebarItem("Invite", "person_add", "admin:proxy_invite", "proxy.invite_member"),
    SidebarItem("Users", "person", "admin:auth_user_changelist", "auth.view_user"),
    SidebarItem("Groups", "badge", "admin:auth_group_changelist", "auth.view_group"),
)
GROUPS: Final = (("Watch", WATCH), ("Control", CONTROL), ("People", PEOPLE))


def sidebar_groups(request: HttpRequest) -> list[dict[str, Any]]:
    """Return the sidebar of the signed-in user, in the structure that the theme expects."""
    user, index = request.user, reverse("admin:index")
    groups = []
    for title, entries in GROUPS:
        items = []
        for entry in entries:
            if user.has_perm(entry.permission) if entry.permission else can_open_admin(user):
                link = reverse(entry.url_name)
                is_in = link != index and request.path.startswith(link)
                active = is_in or request.path == link
                items.append(
                    {"title": entry.title, "icon": entry.icon, "link": link, "active": active}
                )
        if items:
            groups.append({"title": title, "items": items})
    return groups
