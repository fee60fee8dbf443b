"""Teams and keys by the names that an operator types; a wrong name is a ConfigError with a hint."""

from django.db.models import QuerySet

from proxy.complaints import did_you_mean
from proxy.models import ApiKey, Team
from proxy.secrets import ConfigError


def find_team(name: str) -> Team:
    team = Team.objects.filter(name=name).first()
    if team is None:
        known = Team.objects.values_list("name", flat=True)
        raise ConfigError(f"no team {name!r}{did_you_mean(name, known)}")
    return team


def find_key(keys: QuerySet[ApiKey], team_name: str, name: str) -> ApiKey:
    team = find_team(team_name)
    key = keys.filter(team=team, name=name).first()
    if key is None:
        known = team.keys.values_list("name", flat=True)
        raise ConfigError(f"no key {name!r} of team {team}{did_you_mean(name, known)}")
    return key
