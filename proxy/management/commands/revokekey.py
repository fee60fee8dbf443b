"""End a gateway key for good, also one that bridge.toml declares."""

import json
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db import transaction

from proxy.audit_trail import note_of_command
from proxy.management.base import FINDING, BridgeCommand
from proxy.management.keys import find_key
from proxy.models import ApiKey
from proxy.secrets import ConfigError


class Command(BridgeCommand):
    help = (
        "Revoke a gateway key on all nodes, within seconds and for good: no later applyconfig "
        "opens it again with the same secret. Ends with 1 if it was revoked before."
    )
    example = "manage.py revokekey platform/ci"

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("key", nargs="?", metavar="TEAM/NAME", help="the key")
        parser.add_argument("--team", help="name of its team, instead of TEAM/NAME")
        parser.add_argument("--name", help="name of the key within its team")
        parser.add_argument("--json", action="store_true", help="print the result as JSON")

    def handle(self, *args: Any, **options: Any) -> None:
        team, name = _names(options["key"], options["team"], options["name"])
        with transaction.atomic():
            key = find_key(ApiKey.objects.select_for_update(), team, name)
            changed = key.revoke()
            if changed:
                note_of_command("revokekey", key, "Revoked.")
        revoked = f"{key.revoked:%Y-%m-%dT%H:%M:%SZ}"
        if options["json"]:
            told = {"team": team, "name": name, "revoked_at": revoked, "changed": changed}
            self.stdout.write(json.dumps(told))
        elif changed:
            self.stdout.write(f"Key {key} is revoked; it stops working within seconds.")
        if not changed:
            raise CommandError(f"key {key} was revoked before, {revoked}", returncode=FINDING)


def _names(key: str | None, team: str | None, name: str | None) -> tuple[str, str]:
    """Return team and name. Raises ConfigError unless they are given in exactly one way."""
    if key and not team and not name:
        team, _, name = key.partition("/")
    elif key:
        raise ConfigError("TEAM/NAME, or --team and --name: not both")
    if not team or not name:
        raise ConfigError("which key? TEAM/NAME, or --team and --name")
    return team, name
