"""Who may see which rows of the ledger: the one place where windows and reports ask.

Nobody sees anything by default. A key sees what its scope says; a user of the admin sees what the
permission ``view_exchange`` and the groups named ``team:<name>`` say; a member, who has only
``view_own_exchange``, sees what was made with their own keys.
"""

from dataclasses import dataclass, field
from typing import Any, Final

from django.db.models import Q, QuerySet

from .admission import Rehearsal, without_figures
from .models import ApiKey, Budget, Exchange, Route, Scope, Team
from .roles import OWN_REQUESTS

TEAM_GROUP: Final = "team:"
SEE_LEDGER: Final = "proxy.view_exchange"
SEE_OWN: Final = f"proxy.{OWN_REQUESTS}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """Somebody who asks for rows. Exactly these rows are theirs, by any way they ask."""

    everything: bool = False
    teams: frozenset[str] = field(default_factory=frozenset)
    user: str = ""
    """Rows made for this user name (empty: no such rows)."""
    key_id: int | None = None
    """Rows made with this key (None: no such rows)."""
    label: str = ""
    """Who that is, for throttling and logs."""

    @property
    def may_report(self) -> bool:
        """Whether this reader sees more than their own rows."""
        return self.everything or bool(self.teams)


def reader_of_key(key: ApiKey) -> Reader:
    """An admin key sees everything, a reports key its team, any other key its own rows."""
    label = f"key:{key.pk}"
    if Scope.ADMIN in key.scopes:
        return Reader(everything=True, key_id=key.pk, label=label)
    if Scope.REPORTS in key.scopes:
        return Reader(teams=frozenset({key.team.name}), key_id=key.pk, label=label)
    return Reader(key_id=key.pk, label=label)


def reader_of_user(user: Any) -> Reader:
    """A staff user with ``view_exchange`` sees everything, or the teams of their groups."""
    label = f"user:{user.pk}"
    name = str(user.get_username())
    if not (user.is_active and user.is_staff and user.has_perm(SEE_LEDGER)):
        return Reader(user=name, label=label)
    if user.is_superuser:
        return Reader(everything=True, user=name, label=label)
    teams = teams_of(user)
    return Reader(everything=not teams, teams=teams, user=name, label=label)


def teams_of(user: Any) -> frozenset[str]:
    """The teams that this user leads, by their groups."""
    groups = user.groups.filter(name__startswith=TEAM_GROUP).values_list("name", flat=True)
    return frozenset(group.removeprefix(TEAM_GROUP) for group in groups)


def may_open_windows(user: Any) -> bool:
    """Whether the request list opens at all for this user; the rows in it are another question."""
    return bool(user.is_active and (user.has_perm(SEE_LEDGER) or user.has_perm(SEE_OWN)))


def own_rows(reader: Reader) -> Q:
    """The rows that this reader made."""
    own = Q(pk__in=())
    if reader.key_id is not None:
        own |= Q(key_id=reader.key_id)
    if reader.user:
        own |= Q(user=reader.user)
    return own


def visible_rows(reader: Reader) -> Q:
    """The condition on any table with the columns ``team``, ``key_id`` and ``user``."""
    if reader.everything:
        return Q()
    if reader.teams:
        return Q(team__in=reader.teams) | own_rows(reader)
    return own_rows(reader)


def sees(reader: Reader, *, team: str, key_id: int | None, user: str) -> bool:
    """The same condition, on a row that is not in the database."""
    own = (reader.key_id is not None and key_id == reader.key_id) or (
        bool(reader.user) and user == reader.user
    )
    return reader.everything or own or team in reader.teams


def visible_exchanges(reader: Reader) -> QuerySet[Exchange]:
    return Exchange.objects.filter(visible_rows(reader))


def visible_teams(reader: Reader) -> QuerySet[Team]:
    teams = Team.objects.all()
    return teams if reader.everything else teams.filter(name__in=reader.teams)


def visible_budgets(reader: Reader) -> QuerySet[Budget]:
    """Budgets of the reader's teams and of their keys, and the reader's own."""
    budgets = Budget.objects.select_related("team", "key__team", "user")
    budgets = budgets.prefetch_related("key__retiring")
    if reader.everything:
        return budgets
    condition = Q(team__name__in=reader.teams) | Q(key__team__name__in=reader.teams)
    if reader.user:
        condition |= Q(user__username=reader.user) | Q(key__user__username=reader.user)
    if reader.key_id is not None:
        condition |= Q(key=reader.key_id) | Q(key__retiring=reader.key_id)
    return budgets.filter(condition)


def visible_routes(reader: Reader) -> QuerySet[Route]:
    """Who leads teams sees the routes of these, and those that count in every team."""
    routes = Route.objects.all()
    if not reader.teams:
        return routes
    return routes.filter(Q(team__name__in=reader.teams) | Q(team=None))


def visible_keys(reader: Reader) -> QuerySet[ApiKey]:
    """Keys with their teams; an ordinary key sees itself alone."""
    keys = ApiKey.objects.select_related("team", "user")
    if reader.everything:
        return keys
    return keys.filter(
        Q(team__name__in=reader.teams)
        | Q(pk=reader.key_id)
        | (Q(user__username=reader.user) if reader.user else Q(pk__in=()))
    )


def as_seen_by(reader: Reader, key: ApiKey, told: Rehearsal) -> Rehearsal:
    """What a reader may know of a rehearsal with this key: all, if the key is their own.

    Who leads a team sees its keys, and not what a member may spend with those of other teams.
    """
    own = reader.key_id == key.pk or bool(key.user and key.user.get_username() == reader.user)
    if own or reader.everything:
        return told
    return without_figures(told, set(visible_budgets(reader).values_list("pk", flat=True)))
