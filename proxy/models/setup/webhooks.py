"""Webhooks: URLs to which the gateway sends signed events, as Standard Webhooks describes."""

import base64
import binascii
import secrets
from typing import Final

from django.core.exceptions import ValidationError
from django.db import models
from django.utils.timezone import now

from proxy.encryption.upstream_secrets import decrypt_secret, encrypt_secret
from proxy.secrets import ConfigError, Secret, resolve
from proxy.url_hosts import host_error, is_private

from .columns import A_SECRET, SEALED, SecretColumn, TypedJSON
from .keys import Team
from .upstreams import split_url

MAX_WEBHOOKS: Final = 100
"""Maximum rows. Each webhook may occupy one sending thread while its receiver does not respond."""
SECRET_PREFIX: Final = "whsec_"  # noqa: S105 - this is the public prefix of every secret
MIN_SECRET_BYTES: Final = 24
MAX_SECRET_BYTES: Final = 64
ASSOCIATED: Final = "webhook signing secret"
"""The associated data of encrypted secrets, so that none can be decrypted for an upstream."""


class EventType(models.TextChoices):
    """What a webhook can be notified of."""

    BUDGET_THRESHOLD = "budget.threshold", "A budget reached 80 %"
    BUDGET_EXHAUSTED = "budget.exhausted", "A budget is used up"
    KEY_REVOKED = "key.revoked", "A key was revoked"
    REQUESTS_STOPPED = "requests.stopped", "Running requests were stopped"
    UPSTREAM_ERROR = "upstream.error", "An upstream has a new class of errors"
    UPSTREAM_PAUSED = "upstream.paused", "An upstream or a model was paused"
    UPSTREAM_RESUMED = "upstream.resumed", "A pause was ended"
    UPSTREAM_DISABLED = "upstream.disabled", "An upstream was disabled"
    LEDGER_HEAD = "ledger.head", "The end of the hash chain was signed"


TEST_EVENT: Final = "webhook.test"
"""The type of the event that a user sends to one webhook to test it."""


def check_url(url: str) -> None:
    """Raise ValidationError for a URL to which the gateway sends nothing.

    As for upstreams, plain http is permitted only for this machine, private networks and
    single-label host names. Addresses of cloud metadata services are never permitted, because the
    log of deliveries shows the start of the response.
    """
    parts, host = split_url(url)
    if "@" in parts.netloc:  # this check is the first, because the other messages contain the URL
        raise ValidationError("the URL cannot contain a user or password")
    if parts.scheme not in {"http", "https"} or not host or url != url.strip() or "#" in url:
        raise ValidationError(f"{url!r} must look like https://host/path")
    if error := host_error(host):
        raise ValidationError(error)
    if parts.scheme == "http" and not is_private(host):
        raise ValidationError(f"{url!r} would send events unencrypted to a public host; use https")


def check_events(events: list[str]) -> None:
    for place, event in enumerate(events):
        if event not in EventType.values:
            known = ", ".join(EventType.values)
            raise ValidationError(f"[{place}]: unknown event {event[:60]!r}; known: {known}")


class Webhook(models.Model):
    """A URL that receives signed events of one team, or of all teams and upstreams.

    ``secret`` and ``previous_secret`` refer to an environment variable or a file, or contain the
    encrypted secret. During a rotation both secrets sign, so a receiver may know either of them.
    """

    name = models.SlugField(max_length=64, unique=True)
    # null: the events of all teams, and those of upstreams, which belong to no team
    team = models.ForeignKey(Team, null=True, blank=True, on_delete=models.CASCADE)
    url = models.CharField(max_length=500, validators=[check_url])
    # event types; empty: all of them
    events = TypedJSON(list[str], checks=(check_events,), default=list)
    secret = SecretColumn()
    previous_secret = SecretColumn()
    # When the previous secret stops to sign; null: it signs until it is removed.
    previous_until = models.DateTimeField(null=True, blank=True, editable=False)
    enabled = models.BooleanField(default=True)
    managed = models.BooleanField(default=False, editable=False)
    created = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name

    def clean(self) -> None:
        """Raise ValidationError without a secret, or if there are too many webhooks."""
        if self.pk is None and type(self).objects.count() >= MAX_WEBHOOKS:
            raise ValidationError(f"there are {MAX_WEBHOOKS} webhooks; delete one first")
        if not self.secret:
            raise ValidationError({"secret": f"a webhook needs one: {A_SECRET}"})

    def wants(self, event: str) -> bool:
        events = self.events
        return isinstance(events, list) and (not events or event in events)  # see ``TypedJSON``

    def give_secret(self) -> Secret:
        """Set a new random secret, encrypted; return it. The row is not saved."""
        secret = new_signing_secret()
        self.secret = {SEALED: encrypt_secret(secret, ASSOCIATED)}
        return secret

    def signing_keys(self) -> list[bytes]:
        """Return the keys of the secret and of the previous secret while it is valid.

        Raises ConfigError if a secret cannot be read or is none.
        """
        references = [self.secret]
        if self.previous_secret and (self.previous_until is None or self.previous_until > now()):
            references.append(self.previous_secret)
        return [signing_key(_read(reference)) for reference in references]


def new_signing_secret() -> Secret:
    """Return a new secret in the format of Standard Webhooks, with 256 random bits."""
    return Secret(SECRET_PREFIX + base64.b64encode(secrets.token_bytes(32)).decode())


def signing_key(secret: str) -> bytes:
    """Return the bytes of a secret ``whsec_<base64>``. Raises ConfigError for any other text."""
    try:
        key = base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not secret.startswith(SECRET_PREFIX) or not MIN_SECRET_BYTES <= len(key) <= MAX_SECRET_BYTES:
        raise ConfigError(
            f"the secret is not {SECRET_PREFIX} and base64 of {MIN_SECRET_BYTES} to "
            f"{MAX_SECRET_BYTES} bytes"
        )
    return key


def _read(reference: dict[str, str]) -> Secret:
    if SEALED in reference:
        return decrypt_secret(reference[SEALED], ASSOCIATED)
    secret = resolve(reference)
    if not secret:
        raise ConfigError("no secret to sign with is set")
    return secret
