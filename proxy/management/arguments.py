"""Parse arguments of the commands: times (``2026-11-21``, ``7d``, ``90m``), teams and keys."""

import re
from argparse import ArgumentTypeError
from datetime import UTC, date, datetime, timedelta
from typing import Final

from django.db.models import QuerySet

from proxy.decode_errors import did_you_mean
from proxy.models import ApiKey, Team
from proxy.secrets import ConfigError

AGO: Final = re.compile(r"(\d{1,6})([smhdw])")
UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def check_range(since: datetime | None, until: datetime | None) -> None:
    """Raise ConfigError if ``until`` is not later than ``since``; None means no bound."""
    if since is not None and until is not None and until <= since:
        raise ConfigError(f"--until {until:%Y-%m-%dT%H:%MZ} is not later than --since")


def parse_datetime(text: str) -> datetime:
    """Parse a time, in UTC if it has no zone; ``7d`` or ``90m`` means that long before now."""
    if match := AGO.fullmatch(text):
        return datetime.now(UTC) - timedelta(**{UNITS[match[2]]: int(match[1])})
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise ArgumentTypeError(
            f"{text!r} is not a time; write 2026-11-21, 2026-11-21T09:14Z or 7d"
        ) from None
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def parse_month(text: str) -> tuple[date, date]:
    """Parse a month, ``2026-11``; return its first day and that of the following month."""
    try:
        first = datetime.strptime(text, "%Y-%m").replace(tzinfo=UTC).date()
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is not a month; write 2026-11") from None
    return first, (first + timedelta(days=32)).replace(day=1)


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
