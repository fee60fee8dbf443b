"""Who writes a row: a signed-in user or a gateway key, with the teams whose rows it may write."""

from dataclasses import dataclass
from typing import Any

from django.contrib.auth import get_user_model
from django.db.models import Q, QuerySet

from proxy.models import ApiKey, Scope, Team

from .roles import TEAM_GROUP
from .row_permissions import Reader, reader_of_key, reader_of_user
from .team_grants import leads_all_teams, teams_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Writer:
    """A signed-in user or a gateway key, with the teams whose rows the caller may write."""

    caller: Any
    is_superuser: bool
    teams: frozenset[str] | None
    """Ledger ids of the teams whose rows the user may write. None: all rows of the table."""
    reader: Reader
    """What this user may see. A key that the user creates must not see more."""

    @property
    def groups(self) -> frozenset[str]:
        """Ledger ids of the teams in whose group the user is; a gateway key is in no group."""
        return frozenset() if isinstance(self.caller, ApiKey) else teams_of(self.caller)

    @property
    def has_all_teams(self) -> bool:
        return self.teams is None

    def leads(self, team: Team) -> bool:
        return self.teams is None or team.ledger_id in self.teams

    def people(self) -> QuerySet[Any]:
        """Return the users to whom the writer may give a key: the writer and users of their teams.

        A user of a team is in the group ``team:<name>``, or has a key of the team that is not
        revoked.
        """
        users = get_user_model().objects.all()
        if self.teams is None:
            return users
        teams = Team.objects.filter(ledger_id__in=self.teams)
        groups = [f"{TEAM_GROUP}{team.name}" for team in teams]
        keys = ApiKey.objects.filter(team__in=teams, revoked=None, user__isnull=False)
        own = None if isinstance(self.caller, ApiKey) else self.caller.pk
        return users.filter(
            Q(pk=own)
            | Q(pk__in=users.filter(groups__name__in=groups).values("pk"))
            | Q(pk__in=keys.values("user"))
        )


def writer_of(caller: Any) -> Writer:
    """Return what a user or a gateway key may write.

    The result is cached as an attribute of the caller, which exists for one HTTP request.
    """
    if not hasattr(caller, "writer"):
        make = _writer_of_key if isinstance(caller, ApiKey) else _writer_of_user
        caller.writer = make(caller)
    writer: Writer = caller.writer
    return writer


def _writer_of_user(user: Any) -> Writer:
    return Writer(
        caller=user,
        is_superuser=user.is_superuser,
        teams=None if leads_all_teams(user) else teams_of(user),
        reader=reader_of_user(user),
    )


def _writer_of_key(key: ApiKey) -> Writer:
    covers_all = {Scope.ADMIN, Scope.CONFIG_WRITE} & set(key.scopes)
    return Writer(
        caller=key,
        is_superuser=False,
        teams=None if covers_all else frozenset({key.team.ledger_id}),
        reader=reader_of_key(key),
    )
