"""Who may write which rows, with which values: the one place that the admin and the API ask.

Django's permissions say which tables a person may write. ``TABLE`` says which rows of them, and is
checked twice: on the row as it is, and on the row as it would become. A person in groups named
``team:<name>`` leads these teams and writes for them alone; all others who have the permission
write for every team. Nobody hands out a key that reaches further than its maker.

Gateway keys write nothing, and commands are run by the operator, who has the database itself.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from django.contrib.auth import get_user_model
from django.db.models import Model, Q, QuerySet

from .models import ApiKey, Budget, Price, Route, Scope, Team, UpstreamPolicy
from .roles import PROBE_UPSTREAMS, PURGE_TRANSCRIPTS, STOP_REQUESTS
from .visibility import TEAM_GROUP, Reader, reader_of_user, teams_of

ADD: Final = "add"
CHANGE: Final = "change"
DELETE: Final = "delete"
ROTATE: Final = "rotate"
"""Shows the new secret of a key, and so is equal to getting that key."""
REVOKE: Final = "revoke"

Fault = tuple[str, str]
"""A field, and why this person may not write what stands in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Writer:
    """A signed-in person who writes."""

    is_superuser: bool
    teams: frozenset[str] | None
    """None: every team, and what belongs to no team."""
    username: str
    reader: Reader
    """What this person sees: a key that they make sees no more."""

    @property
    def of_all(self) -> bool:
        return self.teams is None

    def leads(self, team: Team) -> bool:
        return self.teams is None or team.name in self.teams

    def people(self) -> QuerySet[Any]:
        """Who a key may be for: the writer, who is in a group of the teams or has a key there."""
        users = get_user_model().objects.all()
        if self.teams is None:
            return users
        groups = [f"{TEAM_GROUP}{name}" for name in self.teams]
        keys = ApiKey.objects.filter(team__name__in=self.teams, revoked=None, user__isnull=False)
        return users.filter(
            Q(username=self.username)
            | Q(pk__in=users.filter(groups__name__in=groups).values("pk"))
            | Q(pk__in=keys.values("user"))
        )


def writer_of(user: Any) -> Writer:
    """The groups are read once for each object of a user, which lives as long as its request."""
    if not hasattr(user, "writer"):
        user.writer = Writer(
            is_superuser=user.is_superuser,
            teams=None if user.is_superuser else teams_of(user) or None,
            username=user.get_username(),
            reader=reader_of_user(user),
        )
    writer: Writer = user.writer
    return writer


Rule = Callable[[Writer, Any], Iterator[Fault]]
"""The faults of a row; of None: why this person may write no row at all."""


def for_superusers(writer: Writer, row: Any) -> Iterator[Fault]:
    if not writer.is_superuser:
        yield "", "only a superuser writes this"


def for_all_teams(writer: Writer, row: Any) -> Iterator[Fault]:
    if not writer.of_all:
        yield "", "it counts in every team, and you write for yours"


def own_team(writer: Writer, team: Team | None) -> Iterator[Fault]:
    if team is not None and not writer.leads(team):
        yield "name", f"{team.name!r} is no team of yours"


def of_own_team(writer: Writer, row: Any) -> Iterator[Fault]:
    if row is None or writer.of_all:
        return
    if row.team is None:
        yield "team", "choose one of your teams; without a team it counts in every team"
    elif not writer.leads(row.team):
        yield "team", f"{row.team.name!r} is no team of yours"


def of_own_team_or_name(writer: Writer, key: ApiKey | None) -> Iterator[Fault]:
    """Anybody who may end keys may end the one in their own name, wherever it is."""
    if key is None or key.user is None or key.user.get_username() != writer.username:
        yield from of_own_team(writer, key)


def within_own_reach(writer: Writer, key: ApiKey | None) -> Iterator[Fault]:
    """Of a team that one writes for, in the name of its people, with scopes that one has."""
    if key is None or writer.is_superuser:
        return
    yield from of_own_team(writer, key)
    if key.user is not None and not writer.people().filter(pk=key.user.pk).exists():
        yield "user", f"{key.user.get_username()!r} has no key and no group of your teams"
    for scope in key.scopes if isinstance(key.scopes, list) else [key.scopes]:
        grant = GRANTS.get(scope) if isinstance(scope, str) else None
        refused = grant(writer.reader, key.team) if grant else f"{scope!r} is no scope"
        if refused:
            yield "scopes", refused


GRANTS: Final[Mapping[str, Callable[[Reader, Team], str]]] = {
    Scope.MESSAGES.value: lambda _reader, _team: "",
    Scope.REPORTS.value: lambda reader, team: (
        ""
        if reader.everything or team.name in reader.teams
        else f"the scope 'reports' reads the usage of {team.name!r}, which you may not see"
    ),
    Scope.ADMIN.value: lambda _reader, _team: "only a superuser grants the scope 'admin'",
}
"""Why somebody who sees so much may not hand out a scope; empty: they may."""


def budget_of_own_team(writer: Writer, budget: Budget | None) -> Iterator[Fault]:
    """A budget of a user counts in every team."""
    if budget is None or writer.of_all:
        return
    if budget.user is not None:
        yield "user", "a budget of a user counts in every team, and you write for yours"
    if budget.key is not None and not writer.leads(budget.key.team):
        yield "key", f"{budget.key.team.name!r} is no team of yours"
    if budget.team is not None and not writer.leads(budget.team):
        yield "team", f"{budget.team.name!r} is no team of yours"


TABLE: Final[Mapping[type[Model], Mapping[str, Rule]]] = {
    Team: {ADD: for_all_teams, CHANGE: own_team, DELETE: for_all_teams},
    ApiKey: {
        ADD: within_own_reach,
        CHANGE: within_own_reach,
        ROTATE: within_own_reach,
        REVOKE: of_own_team_or_name,
    },
    Budget: dict.fromkeys((ADD, CHANGE, DELETE), budget_of_own_team),
    Route: dict.fromkeys((ADD, CHANGE, DELETE), of_own_team),
    Price: dict.fromkeys((ADD, CHANGE, DELETE), for_all_teams),
    UpstreamPolicy: dict.fromkeys((ADD, CHANGE, DELETE), for_all_teams),
}
"""What is not here (upstreams, to which keys are sent; users and groups, by which somebody could
make themselves a superuser) is for superusers."""


def faults(user: Any, action: str, model: type[Model], row: Any = None) -> list[Fault]:
    """Why this person may not do this to the row; empty: they may, if Django's permission agrees.

    Without a row: why to none of the model.
    """
    rule = TABLE.get(model, {}).get(action, for_superusers)
    return list(rule(writer_of(user), row))


def may_write(user: Any, action: str, model: type[Model], row: Any = None) -> bool:
    return not faults(user, action, model, row)


def choices(user: Any, rows: QuerySet[Any]) -> QuerySet[Any]:
    """Of the rows that a field refers to, those that this person may name."""
    writer = writer_of(user)
    if writer.teams is None:
        return rows
    if rows.model is Team:
        return rows.filter(name__in=writer.teams)
    if rows.model is ApiKey:
        return rows.filter(team__name__in=writer.teams)
    if rows.model is get_user_model():
        return rows.filter(pk__in=writer.people().values("pk"))
    return rows


def may_stop(user: Any, *, owner: str) -> bool:
    """Whether a request that this user sees may be stopped by them: their own, always."""
    return bool(user.has_perm(f"proxy.{STOP_REQUESTS}") or owner == user.get_username())


def may_purge(user: Any) -> bool:
    """Whoever sees some teams only must not delete what belongs to the others."""
    return bool(user.has_perm(f"proxy.{PURGE_TRANSCRIPTS}") and reader_of_user(user).everything)


def may_probe(user: Any) -> bool:
    return bool(user.has_perm(f"proxy.{PROBE_UPSTREAMS}"))
