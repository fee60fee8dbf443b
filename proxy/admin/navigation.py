"""The sidebar: every page in plain words, each only for whom it opens; and the badge beside it."""

from dataclasses import dataclass
from typing import Any, Final

from django.http import HttpRequest
from django.urls import NoReverseMatch, reverse

from proxy.visibility import may_open_windows


@dataclass(frozen=True, slots=True)
class Place:
    """One line of the sidebar. ``permission`` empty: for whoever may open the request list."""

    title: str
    icon: str
    url_name: str
    permission: str = ""


WATCH: Final = (
    Place("Dashboard", "monitoring", "admin:index"),
    Place("Requests", "list_alt", "admin:proxy_exchange_changelist"),
    Place("Sessions", "forum", "admin:proxy_sessions"),
    Place("Live", "sensors", "admin:proxy_live"),
    Place("Drift", "radar", "admin:proxy_drift_changelist", "proxy.view_drift"),
)
CONTROL: Final = (
    Place("Keys", "key", "admin:proxy_apikey_changelist", "proxy.view_apikey"),
    Place("Teams", "groups", "admin:proxy_team_changelist", "proxy.view_team"),
    Place("Routes", "alt_route", "admin:proxy_route_changelist", "proxy.view_route"),
    Place("Upstreams", "dns", "admin:proxy_upstream_changelist", "proxy.view_upstream"),
    Place("Policies", "rule", "admin:proxy_upstreampolicy_changelist", "proxy.view_upstreampolicy"),
    Place("Prices", "sell", "admin:proxy_price_changelist", "proxy.view_price"),
    Place("Budgets", "savings", "admin:proxy_budget_changelist", "proxy.view_budget"),
    Place("Storage", "database", "admin:proxy_storage", "proxy.purge_transcript"),
)
PEOPLE: Final = (
    Place("Users", "person", "admin:auth_user_changelist", "auth.view_user"),
    Place("Groups", "badge", "admin:auth_group_changelist", "auth.view_group"),
)
GROUPS: Final = (("Watch", WATCH), ("Control", CONTROL), ("People", PEOPLE))


def groups(request: HttpRequest) -> list[dict[str, Any]]:
    """The sidebar of this user, as the theme wants it; a page without a URL is left out."""
    found = []
    for title, places in GROUPS:
        items = [item for place in places if (item := _item(request, place)) is not None]
        if items:
            found.append({"title": title, "items": items})
    return found


def _item(request: HttpRequest, place: Place) -> dict[str, Any] | None:
    try:
        link = reverse(place.url_name)
    except NoReverseMatch:
        return None
    user = request.user
    allowed = user.has_perm(place.permission) if place.permission else may_open_windows(user)
    if not allowed:
        return None
    here = request.path == link or (
        link != reverse("admin:index") and request.path.startswith(link)
    )
    return {"title": place.title, "icon": place.icon, "link": link, "active": here}
