"""One number that rises whenever something changes that the gateway keeps in memory."""

from django.conf import settings
from django.db import models
from django.db.models import F
from django.db.models.signals import post_delete, post_save

from .budgets import Budget
from .drift import UpstreamPolicy
from .keys import ApiKey, Team
from .routes import Price, Route, RouteTarget, Upstream

WATCHED = (Team, ApiKey, Upstream, Route, RouteTarget, Price, Budget, UpstreamPolicy)


class Revision(models.Model):
    """A single row. The gateway polls it and loads a new directory when it has risen."""

    number = models.BigIntegerField(default=0)

    def __str__(self) -> str:
        return str(self.number)

    @classmethod
    def current(cls) -> int:
        """DoesNotExist: nothing was configured yet, as in a database that is just being made."""
        number: int = cls.objects.filter(pk=1).values_list("number", flat=True).get()
        return number

    @classmethod
    def rise(cls) -> None:
        if not cls.objects.filter(pk=1).update(number=F("number") + 1):
            cls.objects.get_or_create(pk=1, defaults={"number": 1})


def _changed(sender: type[models.Model], update_fields: object = None, **_: object) -> None:
    if update_fields is not None and set(update_fields) == {"last_login"}:  # type: ignore[call-overload]
        return  # somebody signed in; nothing the gateway decides by
    Revision.rise()


for _model in (*WATCHED, settings.AUTH_USER_MODEL):  # a user who leaves takes the keys along
    post_save.connect(_changed, sender=_model, dispatch_uid=f"revision-save-{_model}")
    post_delete.connect(_changed, sender=_model, dispatch_uid=f"revision-delete-{_model}")
