"""The pages of a team and of a user: spend, budgets, keys, people and the dearest sessions.

Every figure is limited to the requests that the viewer may see, so a team lead sees of a user only
the requests in the lead's teams. A user's own page shows all requests of the user.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from django.contrib.auth import get_user_model
from django.core.exceptions import PermissionDenied
from django.db.models import Q, QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.timezone import now
from django.views.decorators.http import require_safe

from proxy.admin.core.number_format import UNKNOWN, dollars
from proxy.admin.core.pages import page
from proxy.admin.dashboard import queries
from proxy.admin.dashboard.budget_status import budget_statuses
from proxy.admin.dashboard.top_tables import rankings_of_groups
from proxy.admin.dashboard.views import request_list_links
from proxy.admin.setup.key_admin import key_state
from proxy.models import ApiKey, Budget
from proxy.models.ledger_names import person_id
from proxy.money import nanousd_of
from proxy.permissions.key_validity import RELATED
from proxy.permissions.roles import TEAM_GROUP
from proxy.permissions.row_permissions import (
    Reader,
    can_open_admin,
    reader_of_user,
    visible_budgets,
    visible_keys,
    visible_teams,
)
from proxy.permissions.write_permissions import (
    choices,
    may_invite,
    may_revoke,
    may_rotate,
    own_key_teams,
)

DAYS: Final = 30
MAX_ROWS: Final = 200  # of keys, and of people
KEY_COLUMNS: Final[Mapping[str, Sequence[str]]] = {
    "user": ("user",),
    "key": ("team", "key_id", "key"),
    "model": ("model",),
}


@require_safe
def team_view(request: HttpRequest, team_id: int) -> HttpResponse:
    """Show a team, and as its people the users in its group and those with one of its keys."""
    reader = reader_of_user(request.user)
    team = visible_teams(reader).filter(pk=team_id).first()
    if team is None or not request.user.has_perm("proxy.view_team"):
        raise Http404("no such team")
    users = get_user_model().objects.all()
    in_group = Q(pk__in=users.filter(groups__name=f"{TEAM_GROUP}{team.name}").values("pk"))
    with_key = Q(pk__in=ApiKey.objects.filter(team=team, revoked=None).values("user"))
    people = users.filter(in_group | with_key).prefetch_related("groups").order_by("username")
    may_view = request.user.has_perm("auth.view_user")
    budgets = Q(team=team) | Q(key__team=team) | Q(user__in=people.values("pk"))
    more = {
        "title": f"Team {team}",
        "kind": "team",
        "settings_url": reverse("admin:proxy_team_change", args=[team.pk]),
        "invite_url": reverse("admin:proxy_invite") if may_invite(request.user, team) else "",
        "people": [
            {
                "name": user.get_username(),
                "url": reverse("admin:proxy_user_overview", args=[user.pk]) if may_view else "",
                "groups": ", ".join(sorted(group.name for group in user.groups.all())),
                "is_active": user.is_active,
                "last_login": user.last_login,
            }
            for user in people[:MAX_ROWS]
        ],
    }
    return _page(
        request,
        reader,
        Q(team=team.ledger_id),
        budgets=visible_budgets(reader).filter(budgets),
        keys=visible_keys(reader).filter(team=team),
        more=more,
    )


@require_safe
def user_view(request: HttpRequest, user_id: int) -> HttpResponse:
    reader = reader_of_user(request.user)
    if not (reader.may_report and request.user.has_perm("auth.view_user")):
        raise PermissionDenied
    found = choices(request.user, get_user_model().objects.all()).filter(pk=user_id).first()
    if found is None:
        raise Http404("no such user")
    return _user_page(request, found, reader)


@require_safe
def me_view(request: HttpRequest) -> HttpResponse:
    """Show the page of the signed-in user, with all the user's own requests and keys."""
    return _user_page(request, request.user, Reader(user=person_id(request.user)))


def _user_page(request: HttpRequest, user: Any, reader: Reader) -> HttpResponse:
    is_own = user == request.user
    more = {
        "title": "My page" if is_own else f"User {user}",
        "kind": "user",
        "user_groups": sorted(group.name for group in user.groups.all()),
        "is_active": user.is_active,
        "own_key_url": reverse("admin:proxy_own_key")
        if is_own and own_key_teams(request.user)
        else "",
        "readings_url": reverse("admin:proxy_my_readings") if is_own else "",
        "settings_url": reverse("admin:auth_user_change", args=[user.pk])
        if request.user.has_perm("auth.view_user")
        else "",
    }
    return _page(
        request,
        reader,
        Q(user=person_id(user)),
        budgets=visible_budgets(reader).filter(Q(user=user) | Q(key__user=user)),
        keys=visible_keys(reader).filter(user=user),
        more=more,
    )


def _page(
    request: HttpRequest,
    reader: Reader,
    condition: Q,
    *,
    budgets: QuerySet[Budget],
    keys: QuerySet[ApiKey],
    more: Mapping[str, Any],
) -> HttpResponse:
    time_range = queries.last_days(DAYS)
    columns = {name: one for name, one in KEY_COLUMNS.items() if name != more["kind"]}
    total, groups = queries.load_usage_of(reader, time_range, condition, columns)
    found = keys.filter(successor=None).select_related(*RELATED).order_by("team__name", "name")
    titles = queries.session_titles(request.user, reader, groups["session"])
    costs = {key[1]: sums for key, sums in groups["key"].items()}
    rankings = rankings_of_groups(groups, request_list_links(time_range), titles)
    return page(
        request,
        "people/overview",
        days=DAYS,
        cost=dollars(queries.cost_of(total)) if total["requests"] else "$0",
        requests=f"{total['requests']:,}",
        errors=f"{total['errors']:,}",
        budgets=_budget_rows(request, budgets),
        keys=[_key_row(request, key, costs.get(key.pk)) for key in found[:MAX_ROWS]],
        rankings=rankings if can_open_admin(request.user) else [],
        **more,
    )


def _budget_rows(request: HttpRequest, budgets: QuerySet[Budget]) -> list[dict[str, Any]]:
    rows = list(budgets.order_by("pk")[:MAX_ROWS])
    statuses = budget_statuses(rows)
    may_view = request.user.has_perm("proxy.view_budget")
    return [
        {
            "owner": budget.owner,
            "limit": f"{dollars(nanousd_of(budget.usd))} a {budget.period}{budget.models_text}",
            "status": statuses.get(budget.pk),
            "is_hard": budget.hard,
            "url": reverse("admin:proxy_budget_change", args=[budget.pk]) if may_view else "",
        }
        for budget in rows
    ]


def _key_row(request: HttpRequest, key: ApiKey, sums: Any) -> dict[str, Any]:
    working = key.revoked is None and (key.expires is None or key.expires > now())
    may_view = request.user.has_perm("proxy.view_apikey")
    return {
        "name": str(key),
        "user": key.user.get_username() if key.user else "",
        "url": reverse("admin:proxy_apikey_change", args=[key.pk]) if may_view else "",
        "prefix": key.prefix,
        "state": key_state(key),
        "last_used": key.last_used,
        "cost": dollars(queries.cost_of(sums)) if sums else UNKNOWN,
        "rotate_url": reverse("admin:proxy_apikey_rotate", args=[key.pk])
        if working and not key.managed and may_rotate(request.user, key)
        else "",
        "revoke_url": reverse("admin:proxy_apikey_revoke", args=[key.pk])
        if working and may_revoke(request.user, key)
        else "",
    }
