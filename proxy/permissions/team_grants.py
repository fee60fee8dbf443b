"""The teams in which a user's role counts: those of the groups ``team:<name>``, or ``team:*``.

A role such as ``owner`` says what a user may do, and these groups say where. A user without such a
group has no team, and may do no more than a member: with fewer groups, a user never sees more.

The group of a team follows its name, and is deleted with it: it must not grant a later team of that
name to the people of the earlier one. Nor does a rename grant the team to people who already are in
a group of the new name, which no team had.
"""

from typing import Any

from django.contrib.auth.models import Group
from django.core.exceptions import PermissionDenied
from django.db.models.signals import post_delete, post_save, pre_save

from proxy.models import Team

from .roles import ALL_TEAMS, MEMBER, ROLES, TEAM_GROUP


def leads_all_teams(user: Any) -> bool:
    return bool(user.is_superuser) or ALL_TEAMS in _team_groups(user)


def teams_of(user: Any) -> frozenset[str]:
    """Return the ledger ids of the teams in whose groups the user is; not of all for ``team:*``."""
    if not hasattr(user, "_teams"):
        teams = Team.objects.filter(name__in=_names_of(user))
        user._teams = frozenset(teams.values_list("ledger_id", flat=True))  # noqa: SLF001 - own attribute
    found: frozenset[str] = user._teams  # noqa: SLF001 - own attribute
    return found


def granted_teams(user: Any) -> list[str]:
    """Return the names of the teams that the user's groups grant, ``["*"]`` for all teams."""
    return ["*"] if leads_all_teams(user) else sorted(_names_of(user))


def _names_of(user: Any) -> list[str]:
    return [group.removeprefix(TEAM_GROUP) for group in _team_groups(user) - {ALL_TEAMS}]


def has_team(user: Any) -> bool:
    return bool(user.is_superuser) or bool(_team_groups(user))


def _team_groups(user: Any) -> frozenset[str]:
    """Return the user's groups of teams; stored in the user as Django stores its permissions."""
    if not hasattr(user, "_team_groups"):
        names = (group.name for group in user.groups.all())
        user._team_groups = frozenset(name for name in names if name.startswith(TEAM_GROUP))  # noqa: SLF001 - own attribute
    found: frozenset[str] = user._team_groups  # noqa: SLF001 - own attribute
    return found


class RolesNeedTeams:
    """Backend of Django that refuses the permissions of a role to a user without a team.

    Django asks its backends in order, and the first one that raises PermissionDenied decides, so
    this one comes before those that grant permissions. Django asks none for a superuser. It has no
    ``get_user``, because no session is of this backend.
    """

    def authenticate(self, request: Any, **credentials: Any) -> None:
        """Sign in nobody."""

    def has_perm(self, user: Any, permission: str, row: Any = None) -> bool:
        if permission not in ROLES[MEMBER] and not has_team(user):
            raise PermissionDenied
        return False


def _note_name(instance: Team, raw: bool = False, **_: Any) -> None:
    """Before a team is saved, remember the name that its row has."""
    names = Team.objects.filter(pk=instance.pk).values_list("name", flat=True)
    instance._saved_name = None if raw else names.first()  # type: ignore[attr-defined]  # noqa: SLF001 - own attribute


def _rename_group(instance: Team, **_: Any) -> None:
    before = instance.__dict__.pop("_saved_name", None)
    if before is None or before == instance.name:
        return
    _delete_group(instance)  # of a team that is gone, or was never made
    for group in Group.objects.filter(name=f"{TEAM_GROUP}{before}"):
        group.name = f"{TEAM_GROUP}{instance.name}"
        group.save()


def _delete_group(instance: Team, **_: Any) -> None:
    for group in Group.objects.filter(name=f"{TEAM_GROUP}{instance.name}"):
        group.delete()


def connect() -> None:
    """Connect the signals. ``AppConfig.ready`` calls it once."""
    pre_save.connect(_note_name, sender=Team, dispatch_uid="team-group-name")
    post_save.connect(_rename_group, sender=Team, dispatch_uid="team-group-rename")
    post_delete.connect(_delete_group, sender=Team, dispatch_uid="team-group-delete")
