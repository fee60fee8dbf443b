"""A number that increases with each change of the configuration."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from django.conf import settings
from django.db import models
from django.db.models import F
from django.db.models.signals import post_delete, post_save

from .drift import UpstreamPolicy
from .setup.budgets import Budget
from .setup.keys import ApiKey, Team
from .setup.pauses import Pause
from .setup.prices import Price
from .setup.routes import Route, RouteTarget
from .setup.upstreams import Upstream
from .setup.webhooks import Webhook

WATCHED = (
    Team, ApiKey, Upstream, Route, RouteTarget, Price, Budget, UpstreamPolicy, Pause, Webhook,
)  # fmt: skip


_changes: ContextVar[list[bool] | None] = ContextVar("revision-changes", default=None)


class Revision(models.Model):
    """A single row whose number increases with each change of the configuration.

    Gateway processes poll the row; when it has changed, they reload the configuration that they
    keep in memory.
    """

    number = models.BigIntegerField(default=0)

    def __str__(self) -> str:
        return str(self.number)

    @classmethod
    def current(cls) -> int:
        """Return the current number. Raises DoesNotExist in a database without configuration."""
        number: int = cls.objects.filter(pk=1).values_list("number", flat=True).get()
        return number

    @classmethod
    @contextmanager
    def bumped_once(cls) -> Iterator[None]:
        """Increase the number at the end of the ``with`` block, if a change in it did so."""
        changes: list[bool] = []
        token = _changes.set(changes)
        try:
            yield
        finally:
            _changes.reset(token)
        if changes:
            cls.bump()

    @classmethod
    def bump(cls) -> None:
        """Increase the number, so that all gateway processes reload the configuration."""
        if (changes := _changes.get()) is not None:
            changes.append(True)
            return
        if not cls.objects.filter(pk=1).update(number=F("number") + 1):
            cls.objects.get_or_create(pk=1, defaults={"number": 1})


def _changed(sender: type[models.Model], update_fields: object = None, **_: object) -> None:
    if update_fields is not None and set(update_fields) == {"last_login"}:  # type: ignore[call-overload]
        return  # a sign-in does not change the configuration
    Revision.bump()


# Users are included, because the keys of a deactivated user are invalid.
for _model in (*WATCHED, settings.AUTH_USER_MODEL):
    post_save.connect(_changed, sender=_model, dispatch_uid=f"revision-save-{_model}")
    post_delete.connect(_changed, sender=_model, dispatch_uid=f"revision-delete-{_model}")
