"""Write the gateway keys of a bridge.toml to the database.

If a key was revoked or rotated in the admin or by a command, the file's old secret for that key is
not used again.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

import msgspec
from django.utils import timezone

from proxy.models import ApiKey, Team
from proxy.models.setup.json_field_types import SecretReference
from proxy.models.setup.keys import Stored, secret_columns
from proxy.secrets import ConfigError, resolve

from . import schema
from .row_writer import ConfigWriter, find_user

SECRET_LENGTH: Final = 32  # minimum characters of a gateway key that the operator supplies


def apply_keys(file: schema.BridgeFile, rows: ConfigWriter) -> None:
    written = set()
    for place, entry in enumerate(file.keys):
        where = f"keys[{place}]"
        with rows.entry("key", f"{entry.team}/{entry.name}"):
            team = rows.find(Team, entry.team, f"{where}.team")
            written.add(_apply_key(entry, team, rows, where).pk)
    for key in ApiKey.objects.filter(managed=True).exclude(pk__in=written):
        dropped = key.revoked is None
        revoked = timezone.now() if dropped else key.revoked
        rows.unmanage(key, str(key), "revoked", revoked=revoked, dropped=dropped)


def _apply_key(entry: schema.Key, team: Team, rows: ConfigWriter, where: str) -> ApiKey:
    identity, name = {"team": team, "name": entry.name}, f"{entry.team}/{entry.name}"
    before = ApiKey.objects.filter(**identity).first()
    given: Stored = _stored(entry.secret, where) if entry.secret else {}
    if given and (other := _key_with_same_secret(given, identity)):
        if before is None or other.successor_id != before.pk:
            raise ConfigError(f"{where}.secret: key {other} has the same secret")
        rows.add_plan_line("=", "key", name, _replaced_detail(other))
        given = {}
    fields: dict[str, Any] = {
        "user": find_user(entry.user, f"{where}.user") if entry.user is not None else None,
        "scopes": list(entry.scopes),
        "limits": msgspec.to_builtins(entry.limits),
        "models_allowed": entry.models,
        "ip_allow": entry.ip_allow,
        "options": msgspec.to_builtins(entry.options),
        "expires": entry.expires,
        **given,
    }
    if before is None or before.revoked is None:
        return rows.put(ApiKey, identity, fields, where, name)
    old = before.stored_secret
    reissued = bool(given) and given != old
    if before.dropped or reissued:
        fields |= {"revoked": None, "dropped": False}
    else:
        rows.add_plan_line("=", "key", name, _revoked_detail(before.revoked))
    key = rows.put(ApiKey, identity, fields, where, name)
    if reissued and old and not before.dropped:
        key.retire(old, timezone.now(), before.revoked)  # the old secret must not be valid again
    return key


def _key_with_same_secret(given: Stored, identity: Mapping[str, Any]) -> ApiKey | None:
    return ApiKey.objects.filter(digest=given["digest"]).exclude(**identity).first()


def _replaced_detail(other: ApiKey) -> str:
    verb, at = ("revoked", other.revoked) if other.revoked else ("rotated", other.created)
    return f"the file still has the secret that was {verb} on {_day(at)}: put the new one in"


def _revoked_detail(at: datetime) -> str:
    return f"revoked {_day(at)}: stays revoked; a new secret in the file activates it again"


def _day(at: datetime) -> str:
    return f"{at:%Y-%m-%d}"


def _stored(reference: SecretReference, where: str) -> Stored:
    try:
        secret = resolve(reference.stored)
    except ConfigError as missing:
        raise ConfigError(f"{where}.secret: {missing}") from None
    if len(secret) < SECRET_LENGTH:
        raise ConfigError(f"{where}.secret: has fewer than {SECRET_LENGTH} characters")
    return secret_columns(secret)
