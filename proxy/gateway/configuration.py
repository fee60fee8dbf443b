"""The rows that the gateway decides by: as the database has them, or as it last had them.

``<data>/configuration.json`` (0600) is written whenever they are read, and read when a gateway
starts while its database is away. No secret is in it that is not in the database: digests of
keys, sealed secrets, references to the environment.
"""

import json
import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from django.contrib.auth import get_user_model
from django.core.serializers import python
from django.core.serializers.json import DjangoJSONEncoder
from django.db.models import Model

from proxy.conf import conf
from proxy.models import ApiKey, Budget, Revision
from proxy.models.revision import WATCHED

log = logging.getLogger("proxy.gateway")

USER: Final[Any] = get_user_model()
OF_USERS: Final = ("username", "is_active")  # nothing by which somebody could sign in

Row = TypeVar("Row", bound=Model)


@dataclass(frozen=True, slots=True)
class Configuration:
    """All rows of the models that ``Revision`` watches, each knowing the rows it points to."""

    revision: int
    rows: Mapping[type[Model], list[Any]]

    def of(self, model: type[Row]) -> list[Row]:
        return self.rows[model]


def read() -> Configuration:
    """From the database. The revision comes first: a change meanwhile makes the next look read."""
    revision = Revision.current()
    rows: dict[type[Model], list[Any]] = {model: list(_all(model)) for model in WATCHED}
    owners = {row.user_id for model in (ApiKey, Budget) for row in rows[model]}
    rows[USER] = list(USER.objects.filter(pk__in=owners - {None}).only(*OF_USERS))
    return _linked(revision, rows)


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
    told = json.dumps({"revision": configuration.revision, "rows": rows}, cls=DjangoJSONEncoder)
    newly = path.with_name(f".{path.name}.{os.getpid()}")  # each worker keeps what it has read
    try:
        with os.fdopen(os.open(newly, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(told)
            file.flush()
            os.fsync(file.fileno())
        newly.replace(path)
    except OSError as exc:
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
        return _linked(int(kept["revision"]), rows)
    except FileNotFoundError:
        return None
    except Exception as exc:  # noqa: BLE001 -- whatever is wrong with the file, the gateway starts
        log.warning("%s cannot be used: %s", path.name, exc)
        return None


def _all(model: type[Model]) -> Iterable[Model]:
    return model._default_manager.all()  # noqa: SLF001 -- Django's documented model API


def _linked(revision: int, rows: Mapping[type[Model], list[Any]]) -> Configuration:
    """Rows find each other in memory. One that was made between two queries is asked for then."""
    known = {model: {row.pk: row for row in found} for model, found in rows.items()}
    for model, found in rows.items():
        for field in model._meta.concrete_fields:  # noqa: SLF001 -- Django's documented model API
            others = known.get(field.related_model, {}) if field.related_model else {}
            for row in found if others else ():
                other = others.get(getattr(row, field.attname))
                if other is not None:
                    setattr(row, field.name, other)
    return Configuration(revision, rows)
