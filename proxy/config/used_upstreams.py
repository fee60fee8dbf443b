"""Check and query the upstreams that are targets of routes."""

import logging
from collections.abc import Iterator
from urllib.parse import SplitResult, urlsplit

from django.core.exceptions import ValidationError
from django.db.models import QuerySet

from proxy.encryption.upstream_secrets import reencrypt_secret
from proxy.models import Upstream, Webhook
from proxy.models.setup.columns import SEALED
from proxy.models.setup.upstreams import SANDBOXES
from proxy.models.setup.webhooks import ASSOCIATED
from proxy.secrets import ConfigError, resolve

from .load import BridgeFile

log = logging.getLogger(__name__)


def used_upstreams() -> QuerySet[Upstream]:
    """Return the enabled upstreams that are a target of at least one route."""
    return Upstream.objects.filter(enabled=True, routetarget__isnull=False).distinct()


def check_used_upstreams() -> None:
    """Raise ConfigError for an upstream in use that has a wrong field or a missing secret.

    An encrypted secret that cannot be decrypted is only logged, because an administrator must enter
    the secret again in the admin, so the gateway must start.
    """
    reencrypt_secrets()
    for upstream in used_upstreams():
        try:
            upstream.full_clean(validate_unique=False, validate_constraints=False)
            upstream.credential()
        except ValidationError as wrong:
            if not _is_undecryptable(upstream):
                messages = " ".join(wrong.messages)
                raise ConfigError(f"upstream {upstream.name!r}: {messages}") from None
        except ConfigError as missing:
            raise ConfigError(f"upstream {upstream.name!r}: {missing}") from None


def missing_secret_warnings(file: BridgeFile) -> Iterator[str]:
    """Yield a warning for each upstream of the file whose secret is missing in this environment.

    The command ``serve`` may run with other environment variables, so a missing secret is not an
    error here.
    """
    for entry in file.upstreams:
        try:
            resolve(entry["secret"] if entry["enabled"] else {})
        except ConfigError as missing:
            yield (
                f"{entry.where}.api_key: {missing} here; "
                f"serve needs it if a route has {entry['name']!r} as a target"
            )


def reencrypt_secrets() -> None:
    """Encrypt stored secrets again with the current secret key, so an old key can be removed."""
    for upstream in Upstream.objects.filter(secret__has_key=SEALED):
        _reencrypt(upstream, "secret", upstream.base_url)
    for field in ("secret", "previous_secret"):
        for webhook in Webhook.objects.filter(**{f"{field}__has_key": SEALED}):
            _reencrypt(webhook, field, ASSOCIATED)


def _reencrypt(row: Upstream | Webhook, field: str, associated: str) -> None:
    kind, stored = type(row).__name__.lower(), getattr(row, field)[SEALED]
    try:
        text = reencrypt_secret(stored, associated)
    except ConfigError as unreadable:
        log.warning("%s %s: %s", kind, row.name, unreadable)
        return
    if text != stored:
        setattr(row, field, {SEALED: text})
        row.save(update_fields=[field])
        log.info("%s %s: its secret is encrypted with the new secret key", kind, row.name)


def _is_undecryptable(upstream: Upstream) -> bool:
    if not upstream.has_encrypted_secret:
        return False
    try:
        upstream.credential()
    except ConfigError:
        return True
    return False


def sandbox_url() -> SplitResult:
    """Return the parsed URL of the built-in sandbox; empty if no route uses the sandbox."""
    sandboxes = used_upstreams().filter(name__in=SANDBOXES)
    return urlsplit(sandboxes.values_list("base_url", flat=True).first() or "")
