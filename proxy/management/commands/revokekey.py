"""Revoke a gateway key permanently, even if bridge.toml declares it."""

import json
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db import transaction

from proxy.management.arguments import find_key
from proxy.management.base import FINDING, BridgeCommand
from proxy.models import ApiKey
from proxy.secrets import ConfigError


class Command(BridgeCommand):
    help = (
        "Revoke a gateway key on all nodes, within seconds and permanently: a later applyconfig "
        "cannot restore it with the same secret. Exit 1 if it was revoked before."
    )
    example = "manage.py revokekey platform/ci"

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("key", nargs="?", metavar="TEAM/NAME", help="team and name of the key")
        parser.add_argument("--team", help="name of the key's team, instead of TEAM/NAME")
        parser.add_argument("--name", help="name of the key within its team")
        parser.add_argument("--json", action="store_true", help="print the result as JSON")

    def handle(self, *args: Any, **options: Any) -> None:
        team, name = _names(options["key"], options["team"], options["name"])
        with transaction.atomic():
            key = find_key(ApiKey.objects.select_for_update(), team, name)
            changed = key.revoke()
        revoked = f"{key.revoked:%Y-%m-%dT%H:%M:%SZ}"
        if options["json"]:
            result = {"team": team, "name": name, "revoked_at": revoked, "changed": changed}
            self.stdout.write(json.dumps(result))
        elif changed:
            self.stdout.write(f"Key {key} is revoked; it stops working within seconds.")
        if not changed:
            raise CommandError(f"key {key} was revoked before, at {revoked}", returncode=FINDING)


def _names(key: str | None, team: str | None, name: str | None) -> tuple[str, str]:
    """Return the team and name of a key, from ``key`` (TEAM/NAME) or from ``team`` and ``name``.

    Raises ConfigError if both or neither are given.
    """
    if key and not team and not name:
        team, _, name = key.partition("/")
    elif key:
        raise ConfigError("give TEAM/NAME, or --team and --name, not both")
    if not team or not name:
        raise ConfigError("no key is named: give TEAM/NAME, or --team and --name")
    return team, name
