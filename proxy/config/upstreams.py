"""Questions about the upstreams that routes really use."""

import logging
from collections.abc import Iterator
from urllib.parse import SplitResult, urlsplit

from django.core.exceptions import ValidationError
from django.db.models import QuerySet

from proxy.models import Upstream
from proxy.models.routes import SEALED
from proxy.sealing import resealed
from proxy.secrets import ConfigError, resolve

from .first_start import SANDBOXES
from .schema import BridgeFile

log = logging.getLogger(__name__)


def used_upstreams() -> QuerySet[Upstream]:
    """The enabled upstreams that at least one route leads to."""
    return Upstream.objects.filter(enabled=True, routetarget__isnull=False).distinct()


def check_used_upstreams() -> None:
    """Refuse to start with an upstream that could never answer; raises ConfigError.

    A sealed secret that cannot be read is only told: the admin, where it is mended, must start.
    """
    reseal()
    for upstream in used_upstreams():
        try:
            upstream.clean()
            upstream.credential()
        except ValidationError as wrong:
            if not _is_unreadable(upstream):
                told = " ".join(wrong.messages)
                raise ConfigError(f"upstream {upstream.name!r}: {told}") from None
        except ConfigError as missing:
            raise ConfigError(f"upstream {upstream.name!r}: {missing}") from None


def lacking_secrets(file: BridgeFile) -> Iterator[str]:
    """The upstreams of a file whose secret is not here: ``serve`` may have another environment."""
    for place, entry in enumerate(file.upstreams):
        try:
            resolve(entry.api_key.stored if entry.api_key and entry.enabled else {})
        except ConfigError as missing:
            yield (
                f"upstreams[{place}].api_key: {missing} here; "
                f"serve needs it if a route leads to {entry.name!r}"
            )


def reseal() -> None:
    """After a new secret key: sealed secrets are sealed anew, so that the old key may go."""
    for upstream in Upstream.objects.filter(secret__has_key=SEALED):
        try:
            text = resealed(upstream.secret[SEALED], upstream.base_url)
        except ConfigError as unreadable:
            log.warning("upstream %s: %s", upstream.name, unreadable)
            continue
        if text != upstream.secret[SEALED]:
            upstream.secret = {SEALED: text}
            upstream.save(update_fields=["secret"])
            log.info("upstream %s: its secret is sealed by the new secret key", upstream.name)


def _is_unreadable(upstream: Upstream) -> bool:
    if not upstream.is_sealed:
        return False
    try:
        upstream.credential()
    except ConfigError:
        return True
    return False


def sandbox_url() -> SplitResult:
    """Where the sandbox is expected; without host and port when no route leads to it."""
    sandboxes = used_upstreams().filter(name__in=SANDBOXES)
    return urlsplit(sandboxes.values_list("base_url", flat=True).first() or "")
