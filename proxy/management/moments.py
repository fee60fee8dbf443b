"""Points in time on the command line: ``2026-11-21``, ``2026-11-21T09:14Z``, ``7d``, ``90m``."""

import re
from argparse import ArgumentTypeError
from datetime import UTC, datetime, timedelta
from typing import Final

from proxy.secrets import ConfigError

AGO: Final = re.compile(r"(\d{1,6})([smhdw])")
UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def check_range(since: datetime | None, until: datetime | None) -> None:
    """Raises ConfigError for a half-open range that ends before it begins: nothing lies in it."""
    if since is not None and until is not None and until <= since:
        raise ConfigError(f"--until {until:%Y-%m-%dT%H:%MZ} is not later than --since")


def moment(text: str) -> datetime:
    """UTC unless the text says otherwise; a number with a unit is that long ago."""
    if found := AGO.fullmatch(text):
        return datetime.now(UTC) - timedelta(**{UNITS[found[2]]: int(found[1])})
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise ArgumentTypeError(
            f"{text!r} is no point in time; write 2026-11-21, 2026-11-21T09:14Z or 7d"
        ) from None
    return at if at.tzinfo else at.replace(tzinfo=UTC)
