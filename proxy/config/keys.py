"""The keys of a bridge.toml. A revocation and a rotation win over the file's old secret."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

import msgspec
from django.utils import timezone

from proxy.models import ApiKey, Team
from proxy.models.keys import Stored, stored_of
from proxy.secrets import ConfigError, resolve

from . import schema
from .rows import Rows

SECRET_LENGTH: Final = 32  # characters of a gateway key that is given, not made


def apply_keys(file: schema.BridgeFile, rows: Rows) -> None:
    wanted = set()
    for place, entry in enumerate(file.keys):
        where = f"keys[{place}]"
        team = rows.find(Team, entry.team, f"{where}.team")
        wanted.add(_apply_key(entry, team, rows, where).pk)
    for key in ApiKey.objects.filter(managed=True).exclude(pk__in=wanted):
        dropped = key.revoked is None
        revoked = timezone.now() if dropped else key.revoked
        rows.release(key, str(key), "revoked", revoked=revoked, dropped=dropped)


def _apply_key(entry: schema.Key, team: Team, rows: Rows, where: str) -> ApiKey:
    identity, name = {"team": team, "name": entry.name}, f"{entry.team}/{entry.name}"
    before = ApiKey.objects.filter(**identity).first()
    given: Stored = _stored(entry.secret, where) if entry.secret else {}
    if given and (twin := _twin_of(given, identity)):
        if before is None or twin.successor_id != before.pk:
            raise ConfigError(f"{where}.secret: key {twin} has the same secret")
        rows.tell("=", "key", name, _replaced(twin))
        given = {}
    fields: dict[str, Any] = {
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
        rows.tell("=", "key", name, _revoked(before.revoked))
    key = rows.put(ApiKey, identity, fields, where, name)
    if reissued and old and not before.dropped:
        key.retire(old, timezone.now(), before.revoked)  # so that it opens nothing again
    return key


def _twin_of(given: Stored, identity: Mapping[str, Any]) -> ApiKey | None:
    return ApiKey.objects.filter(digest=given["digest"]).exclude(**identity).first()


def _replaced(twin: ApiKey) -> str:
    verb, at = ("revoked", twin.revoked) if twin.revoked else ("rotated", twin.created)
    return f"the file still has the secret that was {verb} on {_day(at)}: put the new one in"


def _revoked(at: datetime) -> str:
    return f"revoked {_day(at)}: stays revoked; a new secret in the file opens it again"


def _day(at: datetime) -> str:
    return f"{at:%Y-%m-%d}"


def _stored(reference: schema.SecretReference, where: str) -> Stored:
    try:
        secret = resolve(reference.stored)
    except ConfigError as missing:
        raise ConfigError(f"{where}.secret: {missing}") from None
    if len(secret) < SECRET_LENGTH:
        raise ConfigError(f"{where}.secret: shorter than {SECRET_LENGTH} characters")
    return stored_of(secret)
