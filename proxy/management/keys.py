"""Find teams and keys by name; for an unknown name, raise ConfigError with a suggestion."""

from django.db.models import QuerySet

from proxy.decode_errors import did_you_mean
from proxy.models import ApiKey, Team
from proxy.secrets import ConfigError


def find_team(name: str) -> Team:
    """Return the team with this name. Raises ConfigError for an unknown name."""
    team = Team.objects.filter(name=name).first()
    if team is None:
        known = Team.objects.values_list("name", flat=True)
        raise ConfigError(f"no team {name!r}{did_you_mean(name, known)}")
    return team


def find_key(keys: QuerySet[ApiKey], team_name: str, name: str) -> ApiKey:
    """Return the team's key with this name. Raises ConfigError for an unknown team or key."""
    team = find_team(team_name)
    key = keys.filter(team=team, name=name).first()
    if key is None:
        known = team.keys.filter(successor=None).values_list("name", flat=True)
        raise ConfigError(f"no key {name!r} of team {team}{did_you_mean(name, known)}")
    return key
