"""The list of erased users, a file in the data directory: restoring a database does not change it.

Each line has the keyed digest of an id in the ledger and the time until which its data was erased
(Unix seconds). It contains no id and no name. After the restore of an older backup, the users are
erased again.
"""

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from django.conf import settings
from django.db.models import QuerySet

from proxy.conf import conf
from proxy.models import FormerName, NameKind, UsageByCallerDay, ledger_names
from proxy.secrets import ConfigError

from .person import MARK, Person, digest_of

FILE: Final = "erased_users"


def add(person: Person) -> None:
    """Add a person durably. Raises ConfigError if the file cannot be written."""
    try:
        file = os.open(_path(), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            line = f"{digest_of(person.id)} {person.until.timestamp():.6f}\n"
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
    ids = set(ledger_names.Person.objects.values_list("pk", flat=True))
    ids.update(_former_users().values_list("ident", flat=True))
    ids.update(UsageByCallerDay.objects.values_list("user", flat=True).distinct())
    found = []
    for ident in sorted(each for each in ids if each and not each.startswith(MARK)):
        for root in (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS):
            until = erased.get(digest_of(ident, root))
            if until is not None and has_data(ident, until):
                found.append(Person.load(ident, until))
                break
    return found


def has_data(ident: str, until: datetime) -> bool:
    """Return whether the person's name or a request of the person from before ``until`` exists."""
    account = ledger_names.Person.objects.filter(pk=ident, user__date_joined__lte=until)
    return (
        account.exists()
        or _former_users().filter(ident=ident).exists()
        or UsageByCallerDay.objects.filter(user=ident, start__lte=until).exists()
    )


def _former_users() -> "QuerySet[FormerName]":
    return FormerName.objects.filter(kind=NameKind.USER)


def _path() -> Path:
    return conf.data_dir / FILE
