"""Django's command, but without names of deleted people."""

from typing import Any

from django.contrib.auth.management.commands import createsuperuser
from django.contrib.auth.models import User
from django.core.management.base import CommandError

from proxy.permissions.usernames import was_used

USED = "requests or the audit log have a deleted user of the name {!r}; choose another name"


class Command(createsuperuser.Command):
    help = "Create a superuser. The name of a deleted user with requests is refused."

    def handle(self, *args: Any, **options: Any) -> str | None:
        name = options["username"]
        if name and was_used(name) and not User.objects.filter(username=name).exists():
            raise CommandError(USED.format(name))
        return super().handle(*args, **options)

    def _validate_username(self, username: str, *rest: Any) -> str | None:
        """Return why a name that was entered cannot be used; None if it can."""
        error = super()._validate_username(username, *rest)  # type: ignore[misc]
        return error or (USED.format(username) if was_used(username) else None)
