"""Read the configuration rows from the database, or from a file with the rows last read.

``<data>/configuration.json`` (mode 0600) is written after each read of the database. A gateway that
starts while its database is unreachable reads this file. The file contains no secret that is not in
the database: digests of keys, encrypted secrets, and names of environment variables.
"""

import json
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from django.core.serializers import python
from django.core.serializers.json import DjangoJSONEncoder
from django.db.models import Model

from proxy.conf import conf
from proxy.models import ApiKey, BodyKeyUse, Budget, Revision
from proxy.models.config_revision import WATCHED
from proxy.models.ledger_names import person_id
from proxy.models.setup.config_row_validation import (
    USER,
    Rows,
    UnreadableRow,
    fetch_all,
    split_readable,
)

log = logging.getLogger("proxy.gateway")

USER_FIELDS: Final = ("username", "is_active")  # the password hash is not read

Row = TypeVar("Row", bound=Model)


@dataclass(frozen=True, slots=True)
class Configuration:
    """The valid rows of the configuration models, with their relations loaded."""

    revision: int
    rows: Rows
    unreadable: Sequence[UnreadableRow] = ()
    """Rows that are excluded because they have invalid values."""
    keys: Sequence[ApiKey] = ()
    """All rows of gateway keys, including invalid ones."""
    missing_body_keys: Sequence[str] = ()
    """The ids of the body keys that encrypted stored data, but are not configured."""
    persons: Mapping[int, str] = field(default_factory=dict)
    """Primary key of a user of ``rows`` -> the user's id in the ledger."""

    def rows_of(self, model: type[Row]) -> Sequence[Row]:
        return self.rows[model]


def read_database() -> Configuration:
    """Read the configuration rows from the database.

    The revision number is read first: if a row changes during the read, the next poll sees a new
    revision and reads again.
    """
    revision = Revision.current()
    rows: dict[type[Model], list[Any]] = {model: fetch_all(model) for model in WATCHED}
    owners = {row.__dict__.get("user_id") for model in (ApiKey, Budget) for row in rows[model]}
    user_ids = [pk for pk in owners if isinstance(pk, int)]
    users = USER.objects.filter(pk__in=user_ids).only(*USER_FIELDS)
    rows[USER] = list(users.prefetch_related("person"))
    return Configuration(
        revision,
        *split_readable(rows, query_missing=True),
        keys=rows[ApiKey],
        missing_body_keys=BodyKeyUse.missing(),
        persons={user.pk: person_id(user) for user in rows[USER]},
    )


def save_cached(configuration: Configuration, path: Path | None = None) -> None:
    """Write the rows to the file for a start without the database. Errors are only logged.

    ``django.core.serializers.serialize`` would first import the XML and YAML serializers, so the
    Python serializer is used directly.
    """
    path = path or conf.last_configuration
    rows = {
        model._meta.label: python.Serializer().serialize(  # noqa: SLF001 -- documented model API
            objects, fields=USER_FIELDS if model is USER else None
        )
        for model, objects in configuration.rows.items()
    }
    # each worker has its own temporary file
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        content = {
            "revision": configuration.revision,
            "rows": rows,
            "persons": configuration.persons,
        }
        text = json.dumps(content, cls=DjangoJSONEncoder)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        with os.fdopen(os.open(temporary, flags, 0o600), "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except (OSError, ValueError, RecursionError) as exc:
        log.warning("%s cannot be written: %s", path.name, exc)


def load_cached(path: Path | None = None) -> Configuration | None:
    """Return the configuration rows in the file; None if the file is missing or invalid.

    A file of a version before ``persons`` is invalid, because it has no ids of the ledger.
    """
    path = path or conf.last_configuration
    try:
        content = json.loads(path.read_bytes())
        rows: dict[type[Model], list[Any]] = {model: [] for model in (*WATCHED, USER)}
        for serialized in content["rows"].values():
            for row in python.Deserializer(serialized, ignorenonexistent=True):
                rows[type(row.object)].append(row.object)
        readable = split_readable(rows, query_missing=False)
        persons = {int(pk): ident for pk, ident in content["persons"].items()}
        return Configuration(int(content["revision"]), *readable, persons=persons)
    except FileNotFoundError:
        return None
    except Exception as exc:  # noqa: BLE001 -- an invalid file must not prevent the start
        log.warning("%s cannot be used: %s", path.name, exc)
        return None
