"""The rows that the gateway decides by: as the database has them, or as it last had them.

``<data>/configuration.json`` (0600) is written whenever they are read, and read when a gateway
starts while its database is away. No secret is in it that is not in the database: digests of
keys, sealed secrets, references to the environment.
"""

import json
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from django.core.serializers import python
from django.core.serializers.json import DjangoJSONEncoder
from django.db.models import Model

from proxy.conf import conf
from proxy.models import ApiKey, Budget, Revision
from proxy.models.revision import WATCHED
from proxy.soundness import USER, Rows, Unread, judged, rows_of

log = logging.getLogger("proxy.gateway")

OF_USERS: Final = ("username", "is_active")  # nothing by which somebody could sign in

Row = TypeVar("Row", bound=Model)


@dataclass(frozen=True, slots=True)
class Configuration:
    """The sound rows of what ``Revision`` watches, each knowing the rows it points to."""

    revision: int
    rows: Rows
    unread: Sequence[Unread] = ()
    """What is left out, since nobody can read it."""
    keys: Sequence[ApiKey] = ()
    """All of them, as the database has them."""

    def of(self, model: type[Row]) -> Sequence[Row]:
        return self.rows[model]


def read() -> Configuration:
    """From the database. The revision comes first: a change meanwhile makes the next look read."""
    revision = Revision.current()
    rows: dict[type[Model], list[Any]] = {model: rows_of(model) for model in WATCHED}
    owners = {row.__dict__.get("user_id") for model in (ApiKey, Budget) for row in rows[model]}
    known = [pk for pk in owners if isinstance(pk, int)]
    rows[USER] = list(USER.objects.filter(pk__in=known).only(*OF_USERS))
    return Configuration(revision, *judged(rows, ask=True), keys=rows[ApiKey])


def keep(configuration: Configuration, path: Path | None = None) -> None:
    """For a start without the database. Never raises for the file: it is not needed now.

    Django's own door to its serializers would import those for XML and YAML first.
    """
    path = path or conf.last_configuration
    rows = {
        model._meta.label: python.Serializer().serialize(  # noqa: SLF001 -- documented model API
            found, fields=OF_USERS if model is USER else None
        )
        for model, found in configuration.rows.items()
    }
    newly = path.with_name(f".{path.name}.{os.getpid()}")  # each worker keeps what it has read
    try:
        told = json.dumps({"revision": configuration.revision, "rows": rows}, cls=DjangoJSONEncoder)
        with os.fdopen(os.open(newly, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(told)
            file.flush()
            os.fsync(file.fileno())
        newly.replace(path)
    except (OSError, ValueError, RecursionError) as exc:
        log.warning("%s cannot be written: %s", path.name, exc)


def recall(path: Path | None = None) -> Configuration | None:
    """What was kept last; None where nothing was, or nothing that can be read."""
    path = path or conf.last_configuration
    try:
        kept = json.loads(path.read_bytes())
        rows: dict[type[Model], list[Any]] = {model: [] for model in (*WATCHED, USER)}
        for found in kept["rows"].values():
            for told in python.Deserializer(found, ignorenonexistent=True):
                rows[type(told.object)].append(told.object)
        return Configuration(int(kept["revision"]), *judged(rows, ask=False))
    except FileNotFoundError:
        return None
    except Exception as exc:  # noqa: BLE001 -- whatever is wrong with the file, the gateway starts
        log.warning("%s cannot be used: %s", path.name, exc)
        return None
