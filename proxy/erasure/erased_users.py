"""The list of erased users, a file in the data directory: restoring a database does not change it.

Each line has the keyed digest of a name and the time until which its data was erased (Unix
seconds). It contains no name. After the restore of an older backup, the users are erased again.
"""

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from django.conf import settings
from django.contrib.auth import get_user_model

from proxy.conf import conf
from proxy.models import UsageByCallerDay
from proxy.secrets import ConfigError

from .person import MARK, Person, digest_of

FILE: Final = "erased_users"


def add(person: Person) -> None:
    """Add a person durably. Raises ConfigError if the file cannot be written."""
    try:
        file = os.open(_path(), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            line = f"{digest_of(person.name)} {person.until.timestamp():.6f}\n"
            os.write(file, line.encode())
            os.fsync(file)
        finally:
            os.close(file)
    except OSError as error:
        raise ConfigError(f"{_path()} cannot be written: {error.strerror}") from None


def read() -> dict[str, datetime]:
    """Return the latest time of each digest. Raises ConfigError if a line is damaged.

    Ignoring a line would bring a person back unnoticed.
    """
    try:
        lines = _path().read_text(encoding="ascii").splitlines()
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{_path()} cannot be read: {error}") from None
    found: dict[str, datetime] = {}
    for number, line in enumerate(lines, 1):
        try:
            digest, at = line.split()
            until = datetime.fromtimestamp(float(at), UTC)
        except (ValueError, OverflowError, OSError):
            raise ConfigError(
                f"{_path()}, line {number}: {line[:80]!r} is not a digest and a time"
            ) from None
        found[digest] = max(until, found.get(digest, until))
    return found


def people_with_data() -> list[Person]:
    """Return the erased users with data from before their erasure: a backup was restored."""
    erased = read()
    if not erased:
        return []
    users = get_user_model()._default_manager  # noqa: SLF001 - documented by Django
    names = set(users.values_list("username", flat=True))
    names.update(UsageByCallerDay.objects.values_list("user", flat=True).distinct())
    found = []
    for name in sorted(each for each in names if each and not each.startswith(MARK)):
        for root in (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS):
            until = erased.get(digest_of(name, root))
            if until is not None and has_data(name, until):
                found.append(Person.load(name, until))
                break
    return found


def has_data(name: str, until: datetime) -> bool:
    """Return whether a user or a request of this name from before ``until`` exists."""
    users = get_user_model()._default_manager  # noqa: SLF001 - documented by Django
    return (
        users.filter(username=name, date_joined__lte=until).exists()
        or UsageByCallerDay.objects.filter(user=name, start__lte=until).exists()
    )


def _path() -> Path:
    return conf.data_dir / FILE
