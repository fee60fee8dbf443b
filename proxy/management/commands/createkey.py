"""Create a gateway key and print its secret, which is never shown again."""

import json
import re
from datetime import timedelta
from typing import Any, Final

from django.core.management.base import CommandParser
from django.db import transaction

from proxy.bootstrap import data_directory, first_start
from proxy.conf import conf
from proxy.config.apply import find_user
from proxy.management.arguments import find_key, find_team
from proxy.management.base import BridgeCommand
from proxy.models import ApiKey, Scope
from proxy.secrets import ConfigError

MAX_OVERLAP_H: Final = 24 * 90
NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")  # the same rule as for key names in bridge.toml


class Command(BridgeCommand):
    help = "Create a gateway key for a team. The secret is printed once and not stored."
    example = "manage.py createkey --team default --name laptop --user ada --scope messages"

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--team", required=True, help="name of an existing team")
        parser.add_argument("--name", required=True, help="name of the key within its team")
        parser.add_argument("--user", help="name of the existing user to whom the key belongs")
        parser.add_argument(
            "--scope",
            action="append",
            choices=Scope.values,
            help="what the key may do (repeatable; default: messages)",
        )
        parser.add_argument(
            "--rotate", action="store_true", help="give an existing key a new secret"
        )
        parser.add_argument(
            "--overlap-h", type=float, default=24, metavar="HOURS",
            help="how long the old secret stays valid after --rotate (default: 24)",
        )  # fmt: skip
        parser.add_argument("--json", action="store_true", help="print the key as JSON")

    def handle(self, *args: Any, **options: Any) -> None:
        data_directory.prepare(conf.data_dir)
        data_directory.ensure_secret_key()
        first_start.migrate()
        if options["rotate"]:
            if options["user"]:
                raise ConfigError("--user is for a new key; --rotate keeps the user of the key")
            key, secret = _rotate_by_name(options["team"], options["name"], options["overlap_h"])
        else:
            fields = {"scopes": options["scope"]} if options["scope"] else {}
            if options["user"]:
                fields["user"] = find_user(options["user"], "--user")
            key, secret = _make(options["team"], options["name"], fields)
        if options["json"]:
            result = {
                "team": key.team.name,
                "name": key.name,
                "user": key.user.get_username() if key.user else None,
                "scopes": key.scopes,
                "key": secret,
            }
            self.stdout.write(json.dumps(result))
        else:
            owner = f" of {key.user.get_username()}" if key.user else ""
            scopes = ", ".join(key.scopes)
            self.stdout.write(f"{key}{owner} ({scopes}), shown this once:\n{secret}")


@transaction.atomic
def _make(team_name: str, name: str, fields: dict[str, Any]) -> tuple[ApiKey, str]:
    """Create a key with a secret, or a secret for a key from bridge.toml without one.

    ``fields``: the given fields of the key, ``user`` and ``scopes``. A key from bridge.toml keeps
    its own; another user is an error.
    """
    team = find_team(team_name)
    key = ApiKey.objects.select_for_update().filter(team=team, name=name).first()
    if key is None:
        if not NAME.fullmatch(name):
            raise ConfigError(f"--name is {name!r}; letters, digits, - and _ are expected, 1 to 64")
        return ApiKey.issue(team, name, **fields)
    if key.has_secret:
        raise ConfigError(f"key {key} exists; choose another name, or --rotate it")
    if "user" in fields and fields["user"] != key.user:
        raise ConfigError(
            f"key {key} belongs to {key.user or 'no user'}; bridge.toml or the admin changes that"
        )
    return _rotate(key, timedelta())


@transaction.atomic
def _rotate_by_name(team_name: str, name: str, overlap_h: float) -> tuple[ApiKey, str]:
    if not 0 <= overlap_h <= MAX_OVERLAP_H:
        raise ConfigError(f"--overlap-h is 0 to {MAX_OVERLAP_H}")
    key = find_key(ApiKey.objects.select_for_update(), team_name, name)
    if key.successor:
        raise ConfigError(f"key {key} is an old secret of {key.successor}; rotate that one")
    return _rotate(key, timedelta(hours=overlap_h))


def _rotate(key: ApiKey, overlap: timedelta) -> tuple[ApiKey, str]:
    if key.revoked:
        raise ConfigError(f"key {key} is revoked; create another one")
    _, secret = key.rotate(overlap)
    return key, secret
