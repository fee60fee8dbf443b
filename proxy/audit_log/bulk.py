"""Write the entries of many changes together, as many as a configuration file makes."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final

from django.db.models.signals import post_save

from proxy.models import AuditEntry

BATCH: Final = 500


@dataclass(slots=True)
class Batch:
    entries: list[AuditEntry] = field(default_factory=list)
    names: dict[tuple[Any, Any], str] = field(default_factory=dict)
    """The names of rows by model and primary key, so that none is read twice."""

    def write(self) -> None:
        """Write the entries so far, and send the signal of each, which stores its event."""
        entries, self.entries = self.entries, []
        for entry in AuditEntry.objects.bulk_create(entries, BATCH):
            post_save.send(AuditEntry, instance=entry, created=True, raw=False, update_fields=None)


_batch: Final[ContextVar[Batch | None]] = ContextVar("audit-batch", default=None)
current_batch: Final = _batch.get


@contextmanager
def in_bulk() -> Iterator[Batch]:
    """Collect the entries that the ``with`` block records, and write them at its end."""
    batch = Batch()
    token = _batch.set(batch)
    try:
        yield batch
    finally:
        _batch.reset(token)
    batch.write()
